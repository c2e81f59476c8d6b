package workload_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	source "github.com/db-controller/db-controller/internal/identity/workload"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/wait"
)

var iam = identity.Deployment(schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"})

// agent is a Workload API: it sends the last given certificates to each stream.
type agent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer

	mu      sync.Mutex
	send    *workload.X509SVIDResponse // guarded by mu; nil: it refuses
	changed chan struct{}              // guarded by mu; closed with the next change
}

func (a *agent) give(send *workload.X509SVIDResponse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.changed)
	a.send, a.changed = send, make(chan struct{})
}

func (a *agent) FetchX509SVID(_ *workload.X509SVIDRequest,
	stream grpc.ServerStreamingServer[workload.X509SVIDResponse],
) error {
	if in, _ := metadata.FromIncomingContext(stream.Context()); len(in.Get("workload.spiffe.io")) == 0 {
		return status.Error(codes.InvalidArgument, "the security header is missing")
	}
	for {
		a.mu.Lock()
		send, changed := a.send, a.changed
		a.mu.Unlock()
		if send == nil {
			return status.Error(codes.PermissionDenied, "no identity issued")
		}
		if err := stream.Send(send); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-changed:
		}
	}
}

// listen serves the agent at a socket until the test, or stop, ends it.
func (a *agent) listen(t *testing.T, path string) (address string, stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	server := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(server, a)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return "unix://" + path, server.Stop
}

// authority signs certificates as a SPIRE server does.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	domain := &url.URL{Scheme: "spiffe", Host: "example.org"}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		URIs: []*url.URL{domain},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert, key}
}

// issue returns the message with the certificates of paths.
func (a *authority) issue(t *testing.T, serial int64, paths ...string) *workload.X509SVIDResponse {
	t.Helper()
	out := &workload.X509SVIDResponse{}
	for _, path := range paths {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		id := &url.URL{Scheme: "spiffe", Host: "example.org", Path: path}
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().
					Add(time.Hour), URIs: []*url.URL{id},
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{
				x509.ExtKeyUsageServerAuth,
				x509.ExtKeyUsageClientAuth,
			}, BasicConstraintsValid: true,
		}, a.cert, key.Public(), a.key)
		require.NoError(t, err)
		private, err := x509.MarshalPKCS8PrivateKey(key)
		require.NoError(t, err)
		out.Svids = append(out.Svids, &workload.X509SVID{
			SpiffeId: id.String(), X509Svid: der, X509SvidKey: private,
			Bundle: a.cert.Raw,
		})
	}
	return out
}

// talk makes a handshake between two processes, and returns the identities that each sees.
func talk(t *testing.T, server, client *identity.Credentials) error {
	t.Helper()
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, auth, err := server.Server(nil).ServerHandshake(a)
		if err == nil && auth.(identity.Info).Identity != client.Identity {
			err = errors.New("another client")
		}
		failed <- err
	}()
	_, _, err := client.Client(server.Identity).ClientHandshake(ctx, "any", b)
	if err != nil {
		_ = a.Close()
	}
	return errors.Join(err, <-failed)
}

// A process gets its certificate from the agent, of several the one of its identity, renews it while it runs,
// and goes on with it while the agent is away. Files and agents are one trust domain.
func TestCertificatesOfAWorkloadAPI(t *testing.T) {
	t.Parallel()
	ca, at := newAuthority(t), &agent{changed: make(chan struct{})}
	at.give(ca.issue(t, 2, "/node/1", "/deployment/iam.example.com/us-west2"))
	path := filepath.Join(t.TempDir(), "api.sock")
	address, stop := at.listen(t, path)
	require.True(t, source.IsAddress(address))
	require.False(t, source.IsAddress("/etc/db-controller"))

	s, err := source.Open(t.Context(), address, iam)
	require.NoError(t, err)
	defer s.Close()
	server, err := identity.Load(s)
	require.NoError(t, err)
	require.Equal(t, iam, server.Identity)
	changed, err := server.Reload()
	require.NoError(t, err)
	require.False(t, changed)

	at.give(ca.issue(t, 3, "/registry"))
	r, err := source.Open(t.Context(), address, identity.Identity{Role: identity.RoleRegistry})
	require.NoError(t, err)
	defer r.Close()
	client, err := identity.Load(r)
	require.NoError(t, err)
	require.NoError(t, talk(t, server, client))

	// A new authority: both ends get new certificates without a restart.
	second := newAuthority(t)
	at.give(second.issue(t, 4, "/deployment/iam.example.com/us-west2", "/registry"))
	for _, c := range []*identity.Credentials{server, client} {
		require.Eventually(t, func() bool {
			changed, err := c.Reload()
			return err == nil && changed
		}, wait.Limit, 10*time.Millisecond)
	}
	require.NoError(t, talk(t, server, client))

	stop() // the agent restarts
	changed, err = server.Reload()
	require.NoError(t, err)
	require.False(t, changed)
	require.NoError(t, talk(t, server, client))
	at.give(second.issue(t, 5, "/deployment/iam.example.com/us-west2", "/registry"))
	at.listen(t, path)
	require.Eventually(t, func() bool {
		changed, err := server.Reload()
		return err == nil && changed
	}, wait.Limit, 10*time.Millisecond, "the watch is opened again")
}

// Without a certificate of its identity a process does not start, and says why.
func TestAWorkloadAPIWithoutTheIdentity(t *testing.T) {
	t.Parallel()
	ca, at := newAuthority(t), &agent{changed: make(chan struct{})}
	address, _ := at.listen(t, filepath.Join(t.TempDir(), "api.sock"))
	for says, send := range map[string]*workload.X509SVIDResponse{
		"no identity issued": nil,
		"has certificates of spiffe://example.org/deployment/iam.example.com/eastus2, and none of deployment/iam.example.com/us-west2: register an entry": ca.issue(t, 2, "/deployment/iam.example.com/eastus2"),
	} {
		at.give(send)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := source.Open(ctx, address, iam)
		cancel()
		require.ErrorContains(t, err, says)
	}
	for address, says := range map[string]string{
		"unix:///nowhere/api.sock": "no certificate of", "unix:": "unix:",
		"tcp:example.org:1": "tcp:",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := source.Open(ctx, address, iam)
		cancel()
		require.ErrorContains(t, err, says)
	}
}
