package identity_test

import (
	"context"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/test/wait"
)

var open = identity.Policy{
	healthv1.Health_Check_FullMethodName: identity.Anybody,
	healthv1.Health_Watch_FullMethodName: identity.Anybody,
}

// connect makes a connection that is used again and again.
func connect(t *testing.T, address string, c *identity.Credentials, expected identity.Identity) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(c.Client(expected)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func check(t *testing.T, conn *grpc.ClientConn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, raw, 0o600))
}

// Certificates, keys and authorities are exchanged while everything runs: first both authorities are
// believed, then every process has a new certificate, then the old authority goes.
func TestAuthoritiesAreExchangedWithoutARestart(t *testing.T) {
	old, successor := authority(t), authority(t)
	server, client := identity.Deployment(west), identity.Identity{Role: identity.RoleOperator, Name: "eve"}
	load := func(id identity.Identity) (*identity.Credentials, string) {
		dir := t.TempDir()
		require.NoError(t, old.Issue(dir, id))
		c, err := identity.Load(identity.InDir(dir))
		require.NoError(t, err)
		return c, dir
	}
	serving, serverDir := load(server)
	calling, clientDir := load(client)
	leftBehind, _ := load(client)
	address := serve(t, serving, open)
	require.Equal(t, codes.OK, call(t, address, calling, server))

	next := t.TempDir()
	require.NoError(t, successor.Issue(next, client))
	both := func(dir string) {
		a, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(next, "ca.crt"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.crt"), append(a, b...), 0o600))
	}
	reload := func(all ...*identity.Credentials) {
		for _, c := range all {
			changed, err := c.Reload()
			require.NoError(t, err)
			require.True(t, changed)
			changed, err = c.Reload()
			require.NoError(t, err)
			require.False(t, changed)
		}
	}
	both(serverDir)
	both(clientDir)
	reload(serving, calling)
	require.Equal(t, codes.OK, call(t, address, calling, server))
	require.NoError(t, successor.Issue(serverDir, server))
	reload(serving)
	require.Equal(t, codes.Unavailable, call(t, address, calling, server),
		"the server believes the new authority alone")
	require.NoError(t, successor.Issue(clientDir, client))
	reload(calling)
	require.Equal(t, codes.OK, call(t, address, calling, server))
	require.Equal(t, codes.Unavailable, call(t, address, leftBehind, server))
}

func TestFilesThatAreNoneOrOfAnotherChangeNothing(t *testing.T) {
	a, dir := authority(t), t.TempDir()
	id := identity.Deployment(west)
	require.NoError(t, a.Issue(dir, id))
	c, err := identity.Load(identity.InDir(dir))
	require.NoError(t, err)
	address := serve(t, c, open)
	works := func() { require.Equal(t, codes.OK, call(t, address, c, id)) }

	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.key"), []byte("half of a k"), 0o600))
	_, err = c.Reload()
	require.ErrorContains(t, err, "load certificate")
	works()
	other := t.TempDir()
	require.NoError(t, a.Issue(other, identity.Identity{Role: identity.RoleOperator, Name: "eve"}))
	for _, f := range []string{"tls.crt", "tls.key"} {
		copyFile(t, filepath.Join(other, f), filepath.Join(dir, f))
	}
	_, err = c.Reload()
	require.ErrorContains(t, err, "now has the identity operator/eve")
	works()
	require.NoError(t, a.Issue(dir, id, func(t *x509.Certificate) { t.NotAfter = time.Now().Add(-time.Minute) }))
	_, err = c.Reload()
	require.ErrorContains(t, err, "expired")
	works()
	require.NoError(t, a.Issue(dir, id, func(t *x509.Certificate) { t.NotBefore = time.Now().Add(time.Hour) }))
	_, err = c.Reload()
	require.ErrorContains(t, err, "would be rejected")
	require.NoError(t, a.Issue(dir, id, func(t *x509.Certificate) {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}))
	_, err = c.Reload()
	require.ErrorContains(t, err, "would be rejected")
	require.NoError(t, a.Issue(dir, id))
	theirs := t.TempDir()
	require.NoError(t, authority(t).Issue(theirs, id))
	copyFile(t, filepath.Join(theirs, "ca.crt"), filepath.Join(dir, "ca.crt"))
	_, err = c.Reload()
	require.ErrorContains(t, err, "would be rejected", "authorities that have not issued it")
	works()
	require.NoError(t, a.Issue(dir, id))
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan error, 1)
	go func() { followed <- c.Follow(ctx, time.Millisecond, zap.NewNop()) }()
	require.Eventually(t, func() bool { return time.Until(c.NotAfter()) > 0 }, wait.Limit, time.Millisecond)
	works()
	cancel()
	require.NoError(t, <-followed)
}

// A client without the wanted certificate gets no answer: the connection ends.
func TestCertificatesThatAreNotBelieved(t *testing.T) {
	a := authority(t)
	server := identity.Deployment(west)
	address := serve(t, issue(t, a, server), open)
	uri := func(s string) *url.URL { u, err := url.Parse(s); require.NoError(t, err); return u }
	good := "spiffe://playground.db-controller.dev/user/u"
	for name, change := range map[string]func(*x509.Certificate){
		"expired":       func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) },
		"not valid yet": func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) },
		"of servers only": func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		},
		"another trust domain": func(c *x509.Certificate) {
			c.URIs = []*url.URL{uri("spiffe://elsewhere.example.org/user/u")}
		},
		"no URI": func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"user.example.org"} },
		"two URIs": func(c *x509.Certificate) {
			c.URIs = []*url.URL{uri(good), uri("spiffe://playground.db-controller.dev/operator/o")}
		},
		"not SPIFFE": func(c *x509.Certificate) {
			c.URIs = []*url.URL{uri("https://playground.db-controller.dev/user/u")}
		},
		"an unknown role": func(c *x509.Certificate) {
			c.URIs = []*url.URL{uri("spiffe://playground.db-controller.dev/root/u")}
		},
		"a role and no name": func(c *x509.Certificate) {
			c.URIs = []*url.URL{uri("spiffe://playground.db-controller.dev/operator")}
		},
		"a path in a name": func(c *x509.Certificate) { c.URIs = []*url.URL{uri(good + "/operator")} },
		"no deployment": func(c *x509.Certificate) {
			c.URIs = []*url.URL{uri("spiffe://playground.db-controller.dev/deployment/iam.example.com")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, a.Issue(dir, identity.Identity{Role: identity.RoleUser, Name: "u"}))
			good, err := identity.Load(identity.InDir(dir))
			require.NoError(t, err)
			require.Equal(t, codes.OK, call(t, address, good, server))
			require.NoError(t, a.Issue(dir, identity.Identity{Role: identity.RoleUser, Name: "u"}, change))
			bad, err := identity.LoadUnchecked(identity.InDir(dir))
			require.NoError(t, err)
			require.Equal(t, codes.Unavailable, call(t, address, bad, server))
		})
	}
	t.Run("none", func(t *testing.T) {
		require.Equal(t, codes.Unavailable, call(t, address, identity.Anonymous(issue(t, a, server)), server))
	})
}

// A client of another authority learns little by design; the log of the server has the reason, each once a
// minute for each address: many callers can have one address, and one caller's wrong certificate does not
// hide another's.
func TestRefusedHandshakesAreInTheLog(t *testing.T) {
	a, other, server := authority(t), authority(t), identity.Deployment(west)
	mine := issue(t, a, server)
	core, logs := observer.New(zap.WarnLevel)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- mine.Follow(ctx, time.Hour, zap.New(core)) }()
	address := serve(t, mine, open)
	require.Eventually(t, func() bool {
		require.Equal(t, codes.Unavailable,
			call(t, address, issue(t, other, identity.Identity{Role: identity.RoleUser, Name: "u"}), server))
		return logs.Len() > 0
	}, wait.Limit, 10*time.Millisecond)
	require.Equal(t, codes.Unavailable,
		call(t, address, issue(t, other, identity.Identity{Role: identity.RoleUser, Name: "u"}), server))
	require.Equal(t, 1, logs.Len())
	require.Equal(t, codes.Unavailable, call(t, address, identity.Anonymous(mine), server))
	require.Equal(t, codes.Unavailable, call(t, address, identity.Anonymous(mine), server))
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, 2, logs.Len())
	require.Contains(t, logs.All()[1].ContextMap()["reason"], "client didn't provide a certificate")
	line := logs.All()[0]
	require.Equal(t, "a connection was refused", line.Message)
	require.Equal(t, "127.0.0.1", line.ContextMap()["from"])
	require.Contains(t, line.ContextMap()["reason"], "certificate")
}

// A connection serves no longer than the certificate that it began with.
func TestAConnectionEndsToServeWithItsCertificate(t *testing.T) {
	a, server := authority(t), identity.Deployment(west)
	address := serve(t, issue(t, a, server), open)
	dir, user := t.TempDir(), identity.Identity{Role: identity.RoleUser, Name: "u"}
	require.NoError(t, a.Issue(dir, user, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(2 * time.Second) }))
	c, err := identity.Load(identity.InDir(dir))
	require.NoError(t, err)
	conn := connect(t, address, c, server)
	require.NoError(t, check(t, conn))
	require.Eventually(t, func() bool {
		return status.Code(check(t, conn)) == codes.Unauthenticated
	}, wait.Limit, 100*time.Millisecond)
	require.ErrorContains(t, check(t, conn), "the certificate of user/u has expired")
}

// unproven is a connection that says on which listener it has proved an identity.
type unproven struct {
	net.Conn
	proved chan<- struct{}
}

func (u unproven) Proved() { u.proved <- struct{}{} }

type unprovenListener struct {
	net.Listener
	proved chan struct{}
}

func (l unprovenListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return unproven{conn, l.proved}, err
}

// The listener learns which connections have proved an identity: a connection without a certificate has not.
func TestAListenerLearnsOfProvedConnections(t *testing.T) {
	a, server := authority(t), identity.Deployment(west)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	proved := make(chan struct{}, 10)
	s := grpc.NewServer(grpc.Creds(issue(t, a, server).Server(nil)))
	healthv1.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(unprovenListener{l, proved}) }()
	t.Cleanup(s.Stop)
	user := identity.Identity{Role: identity.RoleUser, Name: "ann"}
	require.NotEqual(t, codes.OK, call(t, l.Addr().String(), identity.Anonymous(issue(t, a, server)), server))
	require.Empty(t, proved)
	require.Equal(t, codes.OK, call(t, l.Addr().String(), issue(t, a, user), server))
	require.Len(t, proved, 1)
}

// One identity may not take the place of others: neither connections nor calls, however it spreads them.
func TestOneIdentityTakesNobodysPlace(t *testing.T) {
	a, server := authority(t), identity.Deployment(west)
	var mu sync.Mutex
	var refused []string // guarded by mu
	limiter := identity.NewLimiter(identity.Limits{Connections: 3, Calls: 5}, func(what string, who identity.Identity) {
		mu.Lock()
		defer mu.Unlock()
		refused = append(refused, what+" of "+who.String())
	})
	c := issue(t, a, server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.Creds(c.Server(limiter)), grpc.InTapHandle(limiter.Tap))
	healthv1.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)

	hostile := issue(t, a, identity.Identity{Role: identity.RoleUser, Name: "hostile"})
	var conns []*grpc.ClientConn
	for range 3 {
		conns = append(conns, connect(t, l.Addr().String(), hostile, server))
		require.NoError(t, check(t, conns[len(conns)-1]))
	}
	require.Equal(t, codes.Unavailable, call(t, l.Addr().String(), hostile, server), "a fourth connection")
	watch := func(conn *grpc.ClientConn) (context.CancelFunc, error) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return cancel, err
	}
	var ends []context.CancelFunc
	for i := range 5 {
		end, err := watch(conns[i%3])
		require.NoError(t, err)
		ends = append(ends, end)
	}
	_, err = watch(conns[0])
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "user/hostile has the maximum number of calls in progress")
	require.Equal(t, codes.ResourceExhausted, status.Code(check(t, conns[1])))
	other := issue(t, a, identity.Identity{Role: identity.RoleUser, Name: "other"})
	require.Equal(t, codes.OK, call(t, l.Addr().String(), other, server))

	ends[0]()
	require.Eventually(t, func() bool { return check(t, conns[1]) == nil }, wait.Limit, time.Millisecond)
	require.NoError(t, conns[0].Close())
	require.Eventually(t, func() bool {
		return call(t, l.Addr().String(), hostile, server) == codes.OK
	}, wait.Limit, 10*time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	require.Contains(t, refused, "connections of user/hostile")
	require.Contains(t, refused, "calls of user/hostile")
}
