package identity_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
)

var west = schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}

func issue(t *testing.T, a *playground.Authority, id identity.Identity) *identity.Credentials {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, a.Issue(dir, id))
	c, err := identity.Load(identity.InDir(dir))
	require.NoError(t, err)
	require.Equal(t, id, c.Identity)
	return c
}

func authority(t *testing.T) *playground.Authority {
	t.Helper()
	a, err := playground.NewAuthority()
	require.NoError(t, err)
	return a
}

// serve runs a health server whose policy decides about callers.
func serve(t *testing.T, c *identity.Credentials, p identity.Policy) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.Creds(c.Server(nil)), grpc.UnaryInterceptor(p.Unary), grpc.StreamInterceptor(p.Stream))
	healthv1.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func call(t *testing.T, address string, c *identity.Credentials, expected identity.Identity) codes.Code {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c.Client(expected)))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return status.Code(err)
}

func TestAPeerIsWhoItsCertificateSays(t *testing.T) {
	a, server := authority(t), identity.Deployment(west)
	address := serve(t, issue(t, a, server),
		identity.Policy{healthv1.Health_Check_FullMethodName: {identity.RoleDeployment}})
	other := identity.Deployment(schema.DeploymentID{Service: "iam.example.com", Region: "eastus2"})
	require.Equal(t, codes.OK, call(t, address, issue(t, a, other), server))
	require.Equal(t, codes.PermissionDenied,
		call(t, address, issue(t, a, identity.Identity{Role: identity.RoleUser, Name: "u"}), server), "default deny")
	require.Equal(t, codes.Unavailable, call(t, address, issue(t, authority(t), other), server), "another authority")
	require.Equal(t, codes.Unavailable, call(t, address, issue(t, a, other), other), "the server has another identity")
}

func TestAServerWithAMethodThatThePolicyLacksDoesNotStart(t *testing.T) {
	s := grpc.NewServer()
	healthv1.RegisterHealthServer(s, health.NewServer())
	err := identity.Policy{healthv1.Health_Check_FullMethodName: identity.Anybody}.Covers(s)
	require.ErrorContains(t, err, "has no entry in the policy")
}

// A listener that wants certificates ends a connection without one; a listener for tokens lets it in, and its
// calls need a token.
func TestAConnectionWithoutACertificateNeedsATokenForEachCall(t *testing.T) {
	t.Parallel()
	a, server := authority(t), identity.Deployment(west)
	credentials := issue(t, a, server)
	user := issue(t, a, identity.Identity{Role: identity.RoleUser, Name: "u"})
	policy := identity.Policy{healthv1.Health_Check_FullMethodName: identity.Anybody}
	check := func(address string) error {
		conn, err := grpc.NewClient(address, user.DialOptionsForTokens(server)...)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
		return err
	}
	require.Equal(t, codes.Unavailable, status.Code(check(serve(t, credentials, policy))))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.Creds(credentials.ServerForTokens(nil)), grpc.UnaryInterceptor(policy.Unary))
	healthv1.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	err = check(l.Addr().String())
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.ErrorContains(t, err, "no certificate and the call no token")
	require.Equal(t, codes.OK, call(t, l.Addr().String(), user, server), "a certificate is still enough")
}
