package harness

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
)

// A call with a pending replay is on its way until the replay has ended, also when its misfortune has ended.
func TestACallThatComesOnceMoreIsOnItsWay(t *testing.T) {
	t.Parallel()
	certs := t.TempDir()
	authority, err := playground.NewAuthority()
	require.NoError(t, err)
	id, user := identity.Deployment(schema.DeploymentID{Service: "a.example.com", Region: "west"}),
		identity.Identity{Role: identity.RoleUser, Name: "ann"}
	own, of := filepath.Join(certs, "a"), filepath.Join(certs, "ann")
	require.NoError(t, authority.Issue(own, id))
	require.NoError(t, authority.Issue(of, user))

	var calls atomic.Int32
	credentials, err := identity.Load(identity.InDir(own))
	require.NoError(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.Server(nil)), grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			calls.Add(1)
			return handle(ctx, req)
		}))
	healthv1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	proxy := NewRPCProxy(t, certs, own, listener.Addr().String())
	credentials, err = identity.Load(identity.InDir(of))
	require.NoError(t, err)
	conn, err := grpc.NewClient(proxy.Address(), credentials.DialOptions(id)...)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	mend := proxy.Suffer(func(identity.Identity, string) Mishap { return Mishap{Replay: 300 * time.Millisecond} })
	_, err = healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	mend()
	require.EqualValues(t, 1, calls.Load())
	require.NoError(t, proxy.Landed(t.Context()))
	require.EqualValues(t, 2, calls.Load())

	var executed atomic.Int32 // and an answer is sent when Executed has returned
	mend = proxy.Suffer(func(identity.Identity, string) Mishap {
		return Mishap{Executed: func() { executed.Store(calls.Load()) }}
	})
	_, err = healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	mend()
	require.EqualValues(t, 3, executed.Load())
}
