package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/inprocess"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	schemav1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/schema/v1"
	"github.com/db-controller/db-controller/schema/service/peers"
)

const (
	confirmMethod = schemav1.SchemaService_ConfirmBlockades_FullMethodName
	getMethod     = resourcev1.ResourceService_GetResource_FullMethodName
)

// transport is the server's side of a call, for the trailer.
type transport struct{ trailer metadata.MD }

func (t *transport) Method() string               { return "" }
func (t *transport) SetHeader(metadata.MD) error  { return nil }
func (t *transport) SendHeader(metadata.MD) error { return nil }
func (t *transport) SetTrailer(md metadata.MD) error {
	t.trailer = md
	return nil
}

func received(ctx context.Context, pairs ...string) (context.Context, *transport) {
	tr := &transport{}
	return grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(ctx, metadata.Pairs(pairs...)), tr), tr
}

// handled is a handler that counts its calls and keeps the last context.
type handled struct {
	calls int
	ctx   context.Context
}

func (h *handled) unary(ctx context.Context, _ any) (any, error) {
	h.calls++
	h.ctx = ctx
	return "answer", nil
}

func (h *handled) stream(_ any, ss grpc.ServerStream) error {
	h.calls++
	h.ctx = ss.Context()
	return nil
}

func TestADeploymentCallsFromItsKnownDatabaseOnly(t *testing.T) {
	t.Parallel()
	another := &peer.DatabaseError{Deployment: other, Known: uid(1), Spoken: uid(2)}
	stranger := &peer.UnavailableError{Deployments: []schema.DeploymentID{self}, Err: peer.StrangerError(other)}
	for name, c := range map[string]struct {
		who    identity.Identity
		method string
		header []string
		meet   error
		code   codes.Code
		met    []string
	}{
		"a known database": {
			identity.Deployment(other), confirmMethod,
			[]string{peers.DatabaseKey, uid(1).String()},
			nil, codes.OK,
			[]string{other.String() + " " + uid(1).String()},
		},
		"another database": {
			identity.Deployment(other), confirmMethod,
			[]string{peers.DatabaseKey, uid(2).String()},
			another, codes.Unavailable,
			[]string{other.String() + " " + uid(2).String()},
		},
		"an earlier version sends none": {identity.Deployment(other), confirmMethod, nil, another, codes.OK, nil},
		"a stranger": {
			identity.Deployment(other), confirmMethod,
			[]string{peers.DatabaseKey, uid(1).String()},
			stranger, codes.Unavailable,
			[]string{other.String() + " " + uid(1).String()},
		},
		"no UUID": {
			identity.Deployment(other), confirmMethod,
			[]string{peers.DatabaseKey, "mine"},
			nil, codes.InvalidArgument, nil,
		},
		"the deployment itself": {
			identity.Deployment(self), confirmMethod,
			[]string{peers.DatabaseKey, uid(2).String()},
			another, codes.OK, nil,
		},
		"a person": {
			ann, confirmMethod,
			[]string{peers.DatabaseKey, uid(2).String()},
			another,
			codes.OK, nil,
		},
		"a method for people": {
			identity.Deployment(other), getMethod,
			[]string{peers.DatabaseKey, uid(2).String()},
			another, codes.OK, nil,
		},
		"the store cannot compare just now": {
			identity.Deployment(other), confirmMethod,
			[]string{peers.DatabaseKey, uid(1).String()},
			peer.ErrAborted, codes.Aborted,
			[]string{other.String() + " " + uid(1).String()},
		},
	} {
		known := &databaseDouble{database: uid(9), meet: func(schema.DeploymentID, uuid.UUID) error { return c.meet }}
		check, h := databaseCheck{self, known}, &handled{}
		ctx, tr := received(as(t, c.who), c.header...)
		_, err := check.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: c.method}, h.unary)
		require.Equal(t, c.code, status.Code(err), name)
		require.Equal(t, c.met, known.met, name)
		require.Equal(t, []string{uid(9).String()}, tr.trailer.Get(peers.DatabaseKey),
			"every answer names the database, refusals too")
		require.Equal(t, c.code == codes.OK, h.calls == 1, name)

		err = check.Stream(nil, &streamDouble{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: c.method}, h.stream)
		require.Equal(t, c.code, status.Code(err), name)
	}
	ctx, _ := received(t.Context(), peers.DatabaseKey, uid(1).String())
	h := &handled{}
	_, err := databaseCheck{self, &databaseDouble{}}.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: confirmMethod},
		h.unary)
	require.NoError(t, err, "the policy refuses callers without an identity")
}

// A stranger is refused every call, also without the identity of a database; its watch of deletions goes on
// to the check of its stored position, with the identity of its database.
func TestAStrangerIsRefusedEverything_I13(t *testing.T) {
	t.Parallel()
	stranger := &peer.UnavailableError{Deployments: []schema.DeploymentID{self}, Err: peer.StrangerError(other)}
	check := databaseCheck{self, &databaseDouble{stranger: stranger, meet: func(schema.DeploymentID, uuid.UUID) error {
		return stranger
	}}}
	for _, header := range [][]string{nil, {peers.DatabaseKey, uid(1).String()}} {
		ctx, _ := received(as(t, identity.Deployment(other)), header...)
		h := &handled{}
		_, err := check.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: confirmMethod}, h.unary)
		require.Equal(t, codes.Unavailable, status.Code(err))
		err = check.Stream(nil, &streamDouble{ctx: ctx},
			&grpc.StreamServerInfo{FullMethod: schemav1.SchemaService_WatchResourceShadows_FullMethodName}, h.stream)
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Zero(t, h.calls)
		err = check.Stream(nil, &streamDouble{ctx: ctx},
			&grpc.StreamServerInfo{FullMethod: schemav1.SchemaService_WatchImportedServiceDeletions_FullMethodName},
			func(_ any, stream grpc.ServerStream) error {
				database, sent := stream.Context().Value(peer.CallerDatabase{}).(uuid.UUID)
				require.Equal(t, header != nil, sent)
				require.Equal(t, sent, database == uid(1))
				h.calls++
				return nil
			})
		require.NoError(t, err)
		require.Equal(t, 1, h.calls)
	}
}

func TestADecommissionedDeploymentIsRefusedEverything(t *testing.T) {
	t.Parallel()
	gone := decommissionedDouble{other: true}
	check := decommissionCheck{gone}
	for who, want := range map[identity.Identity]codes.Code{
		identity.Deployment(other): codes.PermissionDenied, identity.Deployment(sibling): codes.OK, ann: codes.OK,
		operator: codes.OK,
	} {
		h := &handled{}
		_, err := check.Unary(as(t, who), nil, nil, h.unary)
		require.Equal(t, want, status.Code(err), who)
		err = check.Stream(nil, &streamDouble{ctx: as(t, who)}, nil, h.stream)
		require.Equal(t, want, status.Code(err), who)
		require.Equal(t, want == codes.OK, h.calls == 2)
		if want != codes.OK {
			require.ErrorContains(t, err, "b.example.com/us-west2 is decommissioned")
		}
	}
	h := &handled{}
	_, err := check.Unary(t.Context(), nil, nil, h.unary)
	require.NoError(t, err, "the policy refuses callers without an identity")
}

// A watch that is open when its deployment is decommissioned ends with the next message.
func TestAWatchOfADecommissionedDeploymentEnds(t *testing.T) {
	t.Parallel()
	gone, inner := decommissionedDouble{}, &streamDouble{ctx: asDeployment(t, other)}
	err := decommissionCheck{gone}.Stream(nil, inner, nil, func(_ any, ss grpc.ServerStream) error {
		require.NoError(t, ss.SendMsg("first"))
		gone[other] = true
		return ss.SendMsg("second")
	})
	require.Equal(t, codes.PermissionDenied, status.Code(err))
	require.Equal(t, []any{"first"}, inner.sent)
}

func TestEveryCallHasADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			method string
			given  time.Duration // 0: none
			want   time.Duration // 0: none
		}{
			{getMethod, 0, callTimeout},
			{getMethod, time.Second, time.Second},
			{getMethod, time.Hour, callTimeout},
			{confirmMethod, 0, callTimeout},
			{resourcev1.ResourceService_DeleteResource_FullMethodName, 0, 0}, // the store has a default of its own
			{resourcev1.ResourceService_PutResource_FullMethodName, 0, 0},
			{resourcev1.ResourceService_PutResource_FullMethodName, time.Hour, callTimeout},
		} {
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if c.given > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.given)
			}
			h := &handled{}
			_, err := withDeadline(ctx, nil, &grpc.UnaryServerInfo{FullMethod: c.method}, h.unary)
			require.NoError(t, err)
			deadline, ok := h.ctx.Deadline()
			require.Equal(t, c.want > 0, ok, c.method)
			if ok {
				require.Equal(t, c.want, time.Until(deadline), c.method)
			}
			cancel()
		}
	})
}

// Interceptors run from the first to the last, and the last one calls the handler.
func TestInterceptorsOfChannelsAreNested(t *testing.T) {
	t.Parallel()
	var order []string
	unary := func(name string) grpc.UnaryServerInterceptor {
		return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			order = append(order, name)
			defer func() { order = append(order, "after "+name) }()
			return handler(ctx, req)
		}
	}
	h := &handled{}
	out, err := inprocess.ChainUnary([]grpc.UnaryServerInterceptor{unary("a"), unary("b")})(t.Context(), nil,
		nil, h.unary)
	require.NoError(t, err)
	require.Equal(t, "answer", out)
	require.Equal(t, []string{"a", "b", "after b", "after a"}, order)
	order = nil
	stream := func(name string) grpc.StreamServerInterceptor {
		return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			order = append(order, name)
			return handler(srv, ss)
		}
	}
	require.NoError(t, inprocess.ChainStream([]grpc.StreamServerInterceptor{stream("a"), stream("b")})(nil,
		&streamDouble{ctx: t.Context()}, nil, h.stream))
	require.Equal(t, []string{"a", "b"}, order)
	require.Equal(t, 2, h.calls)
}

// The policy decides who may call a method; a method without an entry may not be served.
func TestThePolicyCoversAllServices(t *testing.T) {
	t.Parallel()
	server := grpc.NewServer()
	resourcev1.RegisterResourceServiceServer(server, &resources{})
	adminv1.RegisterAdminServiceServer(server, &admin{})
	schemav1.RegisterSchemaServiceServer(server, &schemas{})
	healthv1.RegisterHealthServer(server, health.NewServer())
	require.NoError(t, policy.Covers(server))
	served := 0
	for _, info := range server.GetServiceInfo() {
		served += len(info.Methods)
	}
	require.Len(t, policy, served+2, "with the two versions of reflection, and no method that is not served")
	for method := range policy {
		if peers.BetweenDeployments(method) {
			require.NotContains(t, policy[method], identity.RoleUser, method)
		}
	}
}
