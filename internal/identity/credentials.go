package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"

	"github.com/db-controller/db-controller/internal/address"
)

// Files are the paths of the certificate, its key, the trusted authorities and their revocation lists, all in
// PEM. The file of the revocation lists is optional.
type Files struct {
	Cert, Key, CA, CRL string
}

// InDir returns the paths of the files tls.crt, tls.key, ca.crt and ca.crl of a folder.
func InDir(dir string) Files {
	in := func(name string) string { return filepath.Join(dir, name) }
	return Files{Cert: in("tls.crt"), Key: in("tls.key"), CA: in("ca.crt"), CRL: in("ca.crl")}
}

// Source is where certificates come from: Files, or another one.
type Source interface {
	// PEM returns the certificate with intermediate ones after it, its key, the trusted authorities, and
	// revocation lists or nothing.
	PEM() ([4]string, error)
	// String names the certificate in messages.
	String() string
}

// String is the path of the certificate.
func (f Files) String() string { return f.Cert }

// PEM reads the files.
func (f Files) PEM() (pem [4]string, err error) {
	for i, path := range []string{f.Cert, f.Key, f.CA, f.CRL} {
		raw, err := os.ReadFile(path)
		if path == f.CRL && (path == "" || errors.Is(err, fs.ErrNotExist)) {
			continue
		}
		if err != nil {
			return pem, fmt.Errorf("load certificates: %w", err)
		}
		pem[i] = string(raw)
	}
	return pem, private(f.Key)
}

// Credentials are the certificate of a process and the authorities that it trusts. Both can be renewed while
// the process runs: connections that begin after Reload use the new ones.
type Credentials struct {
	Identity    Identity
	trustDomain spiffeid.TrustDomain
	source      Source
	current     atomic.Pointer[material]
	refusals    refusals

	mu       sync.Mutex
	limiters []*Limiter // guarded by mu; of the servers with these credentials
}

// material is the content of the files at one time.
type material struct {
	cert    tls.Certificate
	roots   *x509.CertPool
	revoked revoked
	pem     [4]string // the files' text, to detect changes
}

// Load reads the certificate, its key, the authorities and the revocation lists.
func Load(f Source) (*Credentials, error) {
	m, err := read(f)
	if err != nil {
		return nil, err
	}
	c := &Credentials{source: f}
	if c.Identity, c.trustDomain, err = whose(f, m.cert.Leaf); err != nil {
		return nil, err
	}
	c.current.Store(m)
	return c, nil
}

// LoadAuthorities reads the trusted authorities alone, and the revocation lists if there are any: for a
// client that proves its identity by a token.
func LoadAuthorities(f Files) (*Credentials, error) {
	m := &material{roots: x509.NewCertPool()}
	authorities, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("load authorities: %w", err)
	}
	if !m.roots.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("load authorities: %s has no certificate in PEM", f.CA)
	}
	lists, err := os.ReadFile(f.CRL)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load revocation lists: %w", err)
	}
	if m.revoked, err = readRevoked(lists, authorities); err != nil {
		return nil, fmt.Errorf("load revocation lists %s: %w", f.CRL, err)
	}
	c := &Credentials{source: f}
	c.current.Store(m)
	return c, nil
}

func read(from Source) (*material, error) {
	m := &material{roots: x509.NewCertPool()}
	var err error
	if m.pem, err = from.PEM(); err != nil {
		return nil, err
	}
	if m.cert, err = tls.X509KeyPair([]byte(m.pem[0]), []byte(m.pem[1])); err != nil {
		return nil, fmt.Errorf("load certificate %s: %w", from, err)
	}
	if !m.roots.AppendCertsFromPEM([]byte(m.pem[2])) {
		return nil, fmt.Errorf("load authorities: %s has no certificate in PEM", authorities(from))
	}
	if m.revoked, err = readRevoked([]byte(m.pem[3]), []byte(m.pem[2])); err != nil {
		return nil, fmt.Errorf("load revocation lists %s: %w", revocations(from), err)
	}
	return m, nil
}

// authorities and revocations name the parts of a source in messages.
func authorities(of Source) string {
	if f, ok := of.(Files); ok {
		return f.CA
	}
	return of.String()
}

func revocations(of Source) string {
	if f, ok := of.(Files); ok {
		return f.CRL
	}
	return of.String()
}

// private returns an error for a key that every user of the machine may read or change.
func private(key string) error {
	info, err := os.Stat(key)
	if err != nil {
		return fmt.Errorf("load certificates: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return fmt.Errorf(
			"load certificates: everybody may read or change %s (mode %04o): take that right away, such as by chmod 600, or defaultMode: 0440 of a Kubernetes volume", key, mode)
	}
	return nil
}

func whose(file Source, leaf *x509.Certificate) (id Identity, domain spiffeid.TrustDomain, err error) {
	if len(leaf.URIs) != 1 {
		return id, domain,
			fmt.Errorf(
				"certificate %s has %d URIs, want one such as spiffe://example.org/deployment/iam.example.com/us-west2",
				file, len(leaf.URIs))
	}
	uri, err := spiffeid.FromURI(leaf.URIs[0])
	if err != nil {
		return id, domain, fmt.Errorf("certificate %s: %w", file, err)
	}
	if id, err = ParsePath(uri.Path()); err != nil {
		return id, domain, fmt.Errorf("certificate %s: %w", file, err)
	}
	return id, uri.TrustDomain(), nil
}

// Reload reads the files again, and reports whether they changed. Files that cannot be read, a certificate
// that has expired, and a certificate of another identity are errors, and the former ones stay in use.
func (c *Credentials) Reload() (changed bool, err error) {
	m, err := read(c.source)
	if err != nil {
		return false, err
	}
	if m.pem == c.current.Load().pem {
		return false, nil
	}
	id, domain, err := whose(c.source, m.cert.Leaf)
	switch {
	case err != nil:
		return false, err
	case m.pem[3] == "" && c.current.Load().pem[3] != "":
		return false,
			fmt.Errorf("the revocation list %s no longer exists: write a list without entries if nothing is revoked",
				revocations(c.source))
	case id != c.Identity || domain != c.trustDomain:
		return false,
			fmt.Errorf(
				"certificate %s now has the identity %s in %s, not %s in %s: restart the process to change its identity", c.source, id, domain, c.Identity, c.trustDomain)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := m.verify(usage); err != nil && c.current.Load().verify(usage) == nil {
			return false, fmt.Errorf("certificate %s would be rejected: %w", c.source, err)
		}
	}
	c.current.Store(m)
	return true, nil
}

// verify returns an error when a process with the same authorities would reject the certificate now.
func (m *material) verify(usage x509.ExtKeyUsage) error {
	intermediates := x509.NewCertPool()
	for _, der := range m.cert.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(cert)
		}
	}
	_, err := m.cert.Leaf.Verify(x509.VerifyOptions{
		Roots: m.roots, Intermediates: intermediates,
		KeyUsages: []x509.ExtKeyUsage{usage},
	})
	return err
}

// NotAfter returns the end of the certificate's validity.
func (c *Credentials) NotAfter() time.Time { return c.current.Load().cert.Leaf.NotAfter }

// Follow reloads the files at an interval until ctx ends, and closes connections to its servers whose
// certificates have expired or were revoked; their calls and watches end with them. A file that is replaced
// during a read is read again at the next interval. Meanwhile the log has refused handshakes with their
// reasons, one of each address in a minute.
func (c *Credentials) Follow(ctx context.Context, interval time.Duration, log *zap.Logger) error {
	c.refusals.log.Store(log)
	said := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
		changed, err := c.Reload()
		switch {
		case err != nil && err.Error() != said:
			said = err.Error()
			log.Warn("the certificates could not be renewed, the old ones stay in use", zap.Error(err))
		case changed:
			said = ""
			log.Info("certificates renewed", zap.Time("valid_until", c.NotAfter()))
		}
		c.expel(log)
	}
}

// expel closes the connections that a new handshake would refuse.
func (c *Credentials) expel(log *zap.Logger) {
	c.mu.Lock()
	limiters := slices.Clone(c.limiters)
	c.mu.Unlock()
	list := c.current.Load().revoked
	for _, limiter := range limiters {
		for _, who := range limiter.closeIf(func(info Info) bool { return info.expired() || list.has(info.chain) }) {
			log.Info("connection closed: its certificate has expired or was revoked", zap.Stringer("identity", who))
		}
	}
}

// Info describes the other end of a connection.
type Info struct {
	credentials.TLSInfo
	Identity Identity
	// NotAfter is the earliest end of validity in its chain of certificates.
	NotAfter time.Time
	groups   []string
	chain    []*x509.Certificate
	conn     *counted // at a server that limits connections
}

// String returns the identity, for the log.
func (i Info) String() string { return i.Identity.String() }

// anonymous reports whether the other end has shown no certificate.
func (i Info) anonymous() bool { return i.Identity.Role == roleAnonymous }

func (i Info) expired() bool { return time.Now().After(i.NotAfter) }

// transport implements the credentials of one direction. Each handshake uses the current content of the
// files.
type transport struct {
	credentials.TransportCredentials
	c        *Credentials
	expected *Identity // of clients
	limiter  *Limiter  // of servers; nil for no limit
}

// info describes the other end of a connection; raw is the connection of a server, whose clients may have no
// certificate.
func (c *Credentials) info(state tls.ConnectionState, raw net.Conn) (Info, error) {
	if len(state.PeerCertificates) == 0 && raw != nil {
		return anonymousInfo(raw), nil
	}
	leaf := state.PeerCertificates[0]
	intermediates := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		intermediates.AddCert(cert)
	}
	usage := x509.ExtKeyUsageServerAuth
	if state.VerifiedChains != nil { // at a server, the handshake has verified the client
		usage = x509.ExtKeyUsageClientAuth
	}
	m := c.current.Load()
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: m.roots, Intermediates: intermediates,
		KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return Info{}, err
	}
	if m.revoked.has(chains[0]) {
		return Info{}, errors.New("the certificate was revoked")
	}
	info := Info{NotAfter: leaf.NotAfter, chain: chains[0]}
	for _, cert := range chains[0] {
		if cert.NotAfter.Before(info.NotAfter) {
			info.NotAfter = cert.NotAfter
		}
	}
	info.groups = groupsOf(leaf)
	info.Identity, err = ofCertificate(leaf, c.trustDomain)
	return info, err
}

// roleAnonymous is the role under which connections without a certificate are counted, by the address that
// they come from. No policy has it.
const roleAnonymous Role = "anonymous"

func anonymousInfo(raw net.Conn) Info {
	return Info{
		Identity: Identity{Role: roleAnonymous, Name: address.Network(raw.RemoteAddr()).String()},
		NotAfter: time.Now().AddDate(100, 0, 0),
	}
}

// Server is for listeners: every client must show a certificate of the same trust domain. The limiter bounds
// how many connections each identity has; nil for no bound.
func (c *Credentials) Server(limiter *Limiter) credentials.TransportCredentials {
	return c.server(limiter, tls.RequireAndVerifyClientCert)
}

// ServerForTokens is Server for a listener that accepts tokens: clients may connect without a certificate.
func (c *Credentials) ServerForTokens(limiter *Limiter) credentials.TransportCredentials {
	return c.server(limiter, tls.VerifyClientCertIfGiven)
}

func (c *Credentials) server(limiter *Limiter, clients tls.ClientAuthType) credentials.TransportCredentials {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// No session resumption: it would skip the check of the certificate.
		SessionTicketsDisabled: true,
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		m := c.current.Load()
		return &tls.Config{
			MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, NextProtos: []string{"h2"},
			Certificates: []tls.Certificate{m.cert}, ClientAuth: clients, ClientCAs: m.roots,
			VerifyConnection: func(state tls.ConnectionState) error {
				if len(state.PeerCertificates) == 0 {
					return nil // allowed by ClientAuth
				}
				_, err := ofCertificate(state.PeerCertificates[0], c.trustDomain)
				return err
			},
		}, nil
	}
	if limiter != nil {
		c.mu.Lock()
		c.limiters = append(c.limiters, limiter)
		c.mu.Unlock()
	}
	return &transport{TransportCredentials: credentials.NewTLS(config), c: c, limiter: limiter}
}

// Client returns the credentials of a connection to a server with the expected identity, at any address.
func (c *Credentials) Client(expected Identity) credentials.TransportCredentials {
	return c.client(expected, func() *tls.Certificate { return &c.current.Load().cert })
}

// ClientForTokens is Client for connections that show no certificate: each call has a token of its own.
func (c *Credentials) ClientForTokens(expected Identity) credentials.TransportCredentials {
	return c.client(expected, func() *tls.Certificate { return &tls.Certificate{} })
}

func (c *Credentials) client(expected Identity, own func() *tls.Certificate) credentials.TransportCredentials {
	return &transport{c: c, expected: &expected, TransportCredentials: credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return own(), nil
		},
		// The host name is not verified: VerifyConnection verifies the chain and the identity.
		InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
		VerifyConnection: func(state tls.ConnectionState) error {
			info, err := c.info(state, nil)
			if err == nil && info.Identity != expected {
				err = fmt.Errorf("the other end is %s, not %s", info.Identity, expected)
			}
			return err
		},
	})}
}

// ServerTLS is for an HTTPS listener, whose clients show no certificate.
func (c *Credentials) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c.current.Load().cert, nil },
	}
}

// Unproven is a connection that counts as one of an unknown client until Proved is called.
type Unproven interface{ Proved() }

// ServerHandshake adds the client's identity to the connection.
func (t *transport) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := t.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		t.c.refusals.handshake(raw, err)
		return nil, nil, err
	}
	info, err := t.c.info(auth.(credentials.TLSInfo).State, raw)
	if err == nil && t.limiter != nil {
		info.conn, err = t.limiter.enter(info, conn)
		conn = info.conn
	}
	if err != nil {
		t.c.refusals.handshake(raw, err)
		_ = raw.Close()
		return nil, nil, err
	}
	if unproven, ok := raw.(Unproven); ok {
		unproven.Proved()
	}
	info.TLSInfo = auth.(credentials.TLSInfo)
	return conn, info, nil
}

// Clone is credentials.TransportCredentials.
func (t *transport) Clone() credentials.TransportCredentials {
	out := *t
	out.TransportCredentials = t.TransportCredentials.Clone()
	return &out
}
