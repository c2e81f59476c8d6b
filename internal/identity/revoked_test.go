package identity_test

import (
	"context"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/test/wait"
)

// serveFollowing is a server that follows its files, as processes do.
func serveFollowing(t *testing.T, dir string) string {
	t.Helper()
	c, err := identity.Load(identity.InDir(dir))
	require.NoError(t, err)
	limiter := identity.NewLimiter(identity.Limits{Connections: 10, Calls: 10}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.Creds(c.Server(limiter)), grpc.InTapHandle(limiter.Tap))
	healthv1.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	ctx, cancel := context.WithCancel(context.Background())
	followed := make(chan error, 1)
	go func() { followed <- c.Follow(ctx, 10*time.Millisecond, zap.NewNop()) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-followed)
		s.Stop()
	})
	return l.Addr().String()
}

// watching opens a watch, and returns a function that ends it.
func watching(t *testing.T, address string, c *identity.Credentials, server identity.Identity) <-chan error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	t.Cleanup(cancel)
	stream, err := healthv1.NewHealthClient(connect(t, address, c, server)).Watch(ctx, &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		ended <- err
	}()
	return ended
}

func TestAWatchEndsWithItsCertificate(t *testing.T) {
	a, server, dir := authority(t), identity.Deployment(west), t.TempDir()
	require.NoError(t, a.Issue(dir, server))
	address := serveFollowing(t, dir)
	short := t.TempDir()
	require.NoError(t, a.Issue(short, identity.Identity{Role: identity.RoleUser, Name: "u"}, func(c *x509.Certificate) {
		c.NotAfter = time.Now().Add(2 * time.Second)
	}))
	c, err := identity.Load(identity.InDir(short))
	require.NoError(t, err)
	other := watching(t, address, issue(t, a, identity.Identity{Role: identity.RoleUser, Name: "other"}), server)
	require.ErrorContains(t, <-watching(t, address, c, server), "Unavailable")
	select {
	case err := <-other:
		require.NoError(t, err, "others go on")
	default:
	}
}

func TestARevokedCertificateIsBelievedByNobody(t *testing.T) {
	root := t.TempDir()
	authorityDir, serverDir, userDir := filepath.Join(root, "authority"), filepath.Join(root, "server"),
		filepath.Join(root, "user")
	a, err := playground.OpenAuthority(authorityDir, "example.org")
	require.NoError(t, err)
	server, user := identity.Deployment(west), identity.Identity{Role: identity.RoleUser, Name: "mallory"}
	require.NoError(t, a.Issue(serverDir, server))
	require.NoError(t, a.Issue(userDir, user))
	address := serveFollowing(t, serverDir)
	mallory, err := identity.Load(identity.InDir(userDir))
	require.NoError(t, err)
	ended := watching(t, address, mallory, server)

	require.NoError(t, a.Revoke(authorityDir, []string{filepath.Join(userDir, "tls.crt")}, []string{serverDir}))
	require.ErrorContains(t, <-ended, "Unavailable", "calls in progress end")
	require.Equal(t, codes.Unavailable, call(t, address, mallory, server))
	// A new certificate of the same name is another one, also after a second list, which has the entry of the
	// first.
	require.NoError(t, a.Issue(userDir, user))
	again, err := identity.Load(identity.InDir(userDir))
	require.NoError(t, err)
	require.Equal(t, codes.OK, call(t, address, again, server))
	require.NoError(t, a.Revoke(authorityDir, []string{filepath.Join(userDir, "tls.crt")}, []string{serverDir}))
	require.Eventually(t, func() bool {
		return call(t, address, again, server) == codes.Unavailable
	}, wait.Limit, 10*time.Millisecond)
	require.Equal(t, codes.Unavailable, call(t, address, mallory, server))

	// Clients look as well; a folder that is made later gets the list.
	require.NoError(t, a.Share(authorityDir, userDir))
	_, err = identity.Load(identity.InDir(userDir))
	require.NoError(t, err)
	clientDir := t.TempDir()
	require.NoError(t, a.Issue(clientDir, identity.Identity{Role: identity.RoleUser, Name: "ann"}))
	ann, err := identity.Load(identity.InDir(clientDir))
	require.NoError(t, err)
	require.Equal(t, codes.OK, call(t, address, ann, server))
	require.NoError(t, a.Revoke(authorityDir, []string{filepath.Join(serverDir, "tls.crt")}, []string{clientDir}))
	_, err = ann.Reload()
	require.NoError(t, err)
	require.Equal(t, codes.Unavailable, call(t, address, ann, server))
}

func TestARevocationListOfSomebodyElseChangesNothing(t *testing.T) {
	dir, theirs := t.TempDir(), t.TempDir()
	require.NoError(t, authority(t).Issue(dir, identity.Deployment(west)))
	c, err := identity.Load(identity.InDir(dir))
	require.NoError(t, err)
	stranger, err := playground.OpenAuthority(theirs, "example.org")
	require.NoError(t, err)
	require.NoError(t, stranger.Revoke(theirs, []string{filepath.Join(dir, "tls.crt")}, []string{dir}))
	_, err = c.Reload()
	require.ErrorContains(t, err, "not signed by any of the authorities")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.crl"), []byte("nothing"), 0o600))
	_, err = c.Reload()
	require.ErrorContains(t, err, "no list in PEM")
	_, err = identity.Load(identity.InDir(dir))
	require.ErrorContains(t, err, "no list in PEM", "a start without the list would trust revoked certificates")
}

func TestAKeyThatEverybodyMayReadIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, authority(t).Issue(dir, identity.Deployment(west)))
	require.NoError(t, os.Chmod(filepath.Join(dir, "tls.key"), 0o604))
	_, err := identity.Load(identity.InDir(dir))
	require.ErrorContains(t, err, "chmod 600")
	require.NoError(t, os.Chmod(filepath.Join(dir, "tls.key"), 0o640))
	_, err = identity.Load(identity.InDir(dir))
	require.NoError(t, err, "a group may")
}
