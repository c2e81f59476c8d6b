package outcome

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

func TestErrorsBecomeStatuses(t *testing.T) {
	refusal := func(reason peer.Reason) *peer.RefusedError {
		return &peer.RefusedError{Refusals: []peer.Refusal{{
			Holder: "hs/h", Path: "p", Reason: reason,
			Target: schema.FullName{
				Deployment: schema.DeploymentID{Service: "a.example.com", Region: "us"},
				Name:       "ts/t",
			},
		}}}
	}
	for _, c := range []struct {
		err  error
		code codes.Code
	}{
		{peer.ErrNotFound, codes.NotFound},
		{peer.ErrExists, codes.AlreadyExists},
		{peer.ErrConflict, codes.FailedPrecondition}, // the same request would be refused again
		{peer.ErrUnknown, codes.Unknown},
		{peer.ErrReset, codes.OutOfRange},
		{&peer.InvalidError{Err: errors.New("bad")}, codes.InvalidArgument},
		{schema.Problems{{Message: "bad"}}, codes.InvalidArgument},
		{&peer.BlockedError{Name: "ts/t"}, codes.FailedPrecondition},
		{&peer.UnavailableError{Err: errors.New("away")}, codes.Unavailable},
		{refusal(peer.TargetMissing), codes.FailedPrecondition},
		{refusal(peer.TargetClosing), codes.Aborted},
		{refusal(peer.NotImported), codes.Unavailable}, // not heard of yet is not refused
		{&peer.BlockedError{Name: "ts/t", Undecided: true}, codes.Aborted},
		{refusal(peer.TargetUnreadable), codes.Unavailable},
		{&peer.RefusedError{}, codes.Internal}, // no refusal at all is a mistake of ours, and no reason to end
		{&pgconn.PgError{Code: "55000", Message: "SQLSTATE"}, codes.Unavailable},
		{&pgconn.PgError{Code: "57014"}, codes.Unavailable},
		{&pgconn.PgError{Code: "55P03"}, codes.Unavailable},
		{&pgconn.PgError{Code: "40P01"}, codes.Unavailable},
		{&pgconn.PgError{Code: "42501"}, codes.Internal},
		{errors.New(`ERROR: relation "secret" (SQLSTATE 42P01)`), codes.Internal},
	} {
		got := Status(zap.NewNop(), c.err)
		require.Equal(t, c.code, status.Code(got), "%T %v", c.err, c.err)
		require.NotContains(t, got.Error(), "SQLSTATE")
	}
	require.NoError(t, Status(zap.NewNop(), nil))

	var refused *peer.RefusedError
	require.ErrorAs(t, FromStatus(Status(zap.NewNop(), refusal(peer.TargetMissing))), &refused)
	require.Equal(t, refusal(peer.TargetMissing), refused, "refusals survive the wire")
}

// A client decides by the code of an error whether to repeat a request, and the store decides by the error
// whether to keep it under the request id. Both agree for every reason: a request with a definite error never
// takes effect, and no other error is kept.
func TestCodesAreDefiniteAsTheStoreKeepsThem_I29(t *testing.T) {
	t.Parallel()
	samples := []error{
		&peer.InvalidError{Err: errors.New("bad")}, &peer.BlockedError{Name: "ts/t"},
		&peer.BlockedError{Undecided: true},
		&peer.ProtectedError{}, &peer.KeptError{}, &pgconn.PgError{Code: "53100"},
		&peer.UnavailableError{Err: errors.New("away")}, &peer.DatabaseError{},
		fmt.Errorf("%w: %w", peer.ErrUnknown, peer.ErrNotFound), &pgconn.PgError{Code: "57P01"},
		&pgconn.PgError{Code: "55P03"}, errors.New("a fault"),
	}
	for _, o := range outcomes {
		samples = append(samples, fmt.Errorf("ts/t: %w", o.err))
	}
	ofReferences := peer.Reasons()
	for i, reason := range ofReferences {
		samples = append(samples, &peer.RefusedError{Refusals: []peer.Refusal{{Reason: reason}}},
			&peer.RefusedError{Refusals: []peer.Refusal{
				{Reason: reason},
				{Reason: ofReferences[(i+1)%len(ofReferences)]},
			}},
			&peer.RefusedError{Refusals: []peer.Refusal{{Reason: peer.TargetMissing}, {Reason: reason}}})
	}
	samples = append(samples, &peer.RefusedError{Refusals: []peer.Refusal{{Reason: "OF_A_NEWER_VERSION"}}})
	seen := map[string]bool{}
	for _, err := range samples {
		got := status.Convert(Status(zap.NewNop(), err))
		reason := ""
		for _, d := range got.Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				reason = info.GetReason()
			}
		}
		seen[reason] = true
		require.Equal(t, peer.Definite(err), definite(got.Code()), "%s %v: %v", reason, got.Code(), err)
		if code, known := codeOf[reason]; known {
			require.Equal(t, code, got.Code(), reason)
		}
	}
	for _, a := range reasons {
		require.True(t, seen[a.reason], "no sample has the reason %s", a.reason)
	}
}
