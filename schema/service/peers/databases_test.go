package peers

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// The answer of another database counts for nothing, whether it agrees or refuses.
func TestAnswersOfOtherDatabasesAreRefused(t *testing.T) {
	t.Parallel()
	refusal := status.Error(codes.FailedPrecondition, "refused")
	for name, c := range map[string]struct {
		trailer []string
		answer  error
		meet    error
		want    codes.Code
	}{
		"known, agrees":  {[]string{DatabaseKey, uid(1).String()}, nil, nil, codes.OK},
		"known, refuses": {[]string{DatabaseKey, uid(1).String()}, refusal, nil, codes.FailedPrecondition},
		"another one, agrees": {
			[]string{DatabaseKey, uid(2).String()},
			nil, &peer.DatabaseError{Deployment: other},
			codes.Unavailable,
		},
		"another one, refuses": {
			[]string{DatabaseKey, uid(2).String()},
			refusal,
			&peer.DatabaseError{Deployment: other}, codes.Unavailable,
		},
		"not sent":                {nil, nil, &peer.DatabaseError{Deployment: other}, codes.OK},
		"not sent, with an error": {nil, refusal, &peer.DatabaseError{Deployment: other}, codes.FailedPrecondition},
		"no UUID":                 {[]string{DatabaseKey, "mine"}, nil, nil, codes.InvalidArgument},
	} {
		p := New(self, nil)
		known := &databaseDouble{database: uid(9), check: func(with schema.DeploymentID, _ uuid.UUID) error {
			require.Equal(t, other, with)
			return c.meet
		}}
		p.SetKnown(known, known)
		invoke := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
			md, _ := metadata.FromOutgoingContext(ctx)
			require.Equal(t, []string{uid(9).String()}, md.Get(DatabaseKey),
				"the call names the database of the caller")
			for _, o := range opts {
				if trailer, ok := o.(grpc.TrailerCallOption); ok {
					*trailer.TrailerAddr = metadata.Pairs(c.trailer...)
				}
			}
			return c.answer
		}
		err := p.checkAnswers(other)(t.Context(), confirmMethod, nil, nil, nil, invoke)
		require.Equal(t, c.want, status.Code(err), name)
	}
}

func TestDatabasesAreNamedBetweenDeploymentsOnly(t *testing.T) {
	t.Parallel()
	p := New(self, nil)
	sent := func(method string) []string {
		var got []string
		err := p.checkAnswers(other)(t.Context(), method, nil, nil, nil,
			func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				md, _ := metadata.FromOutgoingContext(ctx)
				got = md.Get(DatabaseKey)
				return nil
			})
		require.NoError(t, err)
		var opened []string
		_, err = p.sendDatabase(t.Context(), nil, nil, method,
			func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string,
				_ ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				md, _ := metadata.FromOutgoingContext(ctx)
				opened = md.Get(DatabaseKey)
				return nil, nil
			})
		require.NoError(t, err)
		require.Equal(t, got, opened)
		return got
	}
	require.Empty(t, sent(confirmMethod), "before there is a store")
	p.SetKnown(&databaseDouble{database: uid(9)}, &databaseDouble{})
	require.Equal(t, []string{uid(9).String()}, sent(confirmMethod))
	for _, method := range []string{
		getMethod, adminv1.AdminService_Status_FullMethodName,
		healthv1.Health_Check_FullMethodName,
	} {
		require.Empty(t, sent(method), method)
	}
}

// A deployment that refuses this one because it is decommissioned there is reported, by a call and by a
// watch; other refusals are not.
func TestARefusalOfADecommissionedDeploymentIsHeard_I31(t *testing.T) {
	t.Parallel()
	p, known := New(self, nil), &databaseDouble{database: uid(9)}
	p.SetKnown(known, known)
	for reason, heard := range map[string]int{"DECOMMISSIONED": 2, "DENIED": 0} {
		known.refusedBy = nil
		refused := outcome.Because(reason, errors.New("no"))
		require.Equal(t, refused, p.hear(other, confirmMethod, refused))
		stream := &addresslessStream{&clientStream{err: refused}, func(err error) error {
			return p.hear(other, confirmMethod, err)
		}}
		require.Equal(t, refused, stream.RecvMsg(nil))
		require.NoError(t, p.hear(other, confirmMethod, nil))
		require.Len(t, known.refusedBy, heard, reason)
	}
}
