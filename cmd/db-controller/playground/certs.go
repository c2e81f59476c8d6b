package playground

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/db-controller/db-controller/internal/identity"
)

// trustDomain is the SPIFFE trust domain of a playground's certificates.
const trustDomain = "playground.db-controller.dev"

// Authority makes certificates of one trust domain, for development and tests.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Validity of certificates and of a new authority; a playground does not live longer.
const (
	Validity          = 30 * 24 * time.Hour
	authorityValidity = 365 * 24 * time.Hour
)

// NewAuthority makes an authority for a playground. Its key is kept in memory only.
func NewAuthority() (*Authority, error) { return newAuthority(trustDomain) }

func newAuthority(trustDomain string) (*Authority, error) {
	if _, err := spiffeid.TrustDomainFromString(trustDomain); err != nil {
		return nil, fmt.Errorf("trust domain %q: %w", trustDomain, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	template, err := template("db-controller "+trustDomain, authorityValidity)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign|
		x509.KeyUsageCRLSign
	template.URIs = []*url.URL{{Scheme: "spiffe", Host: trustDomain}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the authority: %w", err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// OpenAuthority reads the authority in a folder, ca.crt and ca.key, or makes one with the trust domain.
func OpenAuthority(dir, trustDomain string) (*Authority, error) {
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	raw, err := os.ReadFile(certFile)
	if errors.Is(err, fs.ErrNotExist) {
		a, err := newAuthority(trustDomain)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		// The certificate last: it marks a complete authority.
		return a, errors.Join(writeKey(keyFile, a.key), writePEM(certFile, "CERTIFICATE", a.cert.Raw))
	}
	if err != nil {
		return nil, fmt.Errorf("open the authority: %w", err)
	}
	a := &Authority{}
	if a.cert, err = x509.ParseCertificate(blockOf(raw)); err != nil {
		return nil, fmt.Errorf("open the authority: %s: %w", certFile, err)
	}
	if raw, err = os.ReadFile(keyFile); err != nil {
		return nil, fmt.Errorf("open the authority: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(blockOf(raw))
	if err != nil {
		return nil, fmt.Errorf("open the authority: %s has no key that can be read", keyFile)
	}
	var ok bool
	if a.key, ok = key.(*ecdsa.PrivateKey); !ok || !a.key.PublicKey.Equal(a.cert.PublicKey) {
		return nil, fmt.Errorf("open the authority: %s is not the key of %s", keyFile, certFile)
	}
	if trustDomain != "" && a.TrustDomain() != trustDomain {
		return nil, fmt.Errorf("the authority in %s is of trust domain %s, not %s: use another folder", dir,
			a.TrustDomain(), trustDomain)
	}
	return a, nil
}

// TrustDomain returns the trust domain of its certificates.
func (a *Authority) TrustDomain() string {
	if len(a.cert.URIs) != 1 {
		return ""
	}
	return a.cert.URIs[0].Host
}

func blockOf(raw []byte) []byte {
	if block, _ := pem.Decode(raw); block != nil {
		return block.Bytes
	}
	return nil
}

func template(name string, validity time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(validity),
	}, nil
}

// Issue writes tls.crt, tls.key and ca.crt for an identity into a folder. It replaces existing files one by
// one: a running process loads the new ones. changes edit the certificate; servers have the host names of
// this machine unless ReachedAt sets others.
func (a *Authority) Issue(dir string, id identity.Identity, changes ...func(*x509.Certificate)) error {
	return a.issue(dir, id.String(), append([]func(*x509.Certificate){func(t *x509.Certificate) {
		t.URIs = []*url.URL{{Scheme: "spiffe", Host: a.TrustDomain(), Path: id.Path()}}
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		if Serves(id) {
			ReachedAt(LocalNames, LocalAddresses)(t)
		}
	}}, changes...))
}

// LocalNames and LocalAddresses are the host names and addresses of this machine.
var (
	LocalNames     = []string{"localhost"}
	LocalAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
)

// Serves reports whether an identity belongs to a server. Certificates of other identities have no host name:
// with one, a client that verifies host names only would accept their bearer as a server.
func Serves(id identity.Identity) bool {
	return id.Role == identity.RoleDeployment || id.Role == identity.RoleRegistry
}

// ReachedAt sets the names and addresses in a server's certificate, for clients that verify host names. The
// clients of this project verify the URI instead.
func ReachedAt(names []string, addresses []net.IP) func(*x509.Certificate) {
	return func(t *x509.Certificate) { t.DNSNames, t.IPAddresses = names, addresses }
}

// IssueHost is Issue for a server with a host name or address instead of an identity, such as PostgreSQL.
func (a *Authority) IssueHost(dir, host string) error {
	return a.issue(dir, host, []func(*x509.Certificate){func(t *x509.Certificate) {
		if ip := net.ParseIP(host); ip != nil {
			t.IPAddresses = []net.IP{ip}
		} else {
			t.DNSNames = []string{host}
		}
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}})
}

func (a *Authority) issue(dir, name string, changes []func(*x509.Certificate)) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	t, err := template(name, Validity)
	if err != nil {
		return err
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	for _, change := range changes {
		change(t)
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("issue a certificate for %s: %w", name, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	err = errors.Join(
		writePEM(filepath.Join(dir, "ca.crt"), "CERTIFICATE", a.cert.Raw),
		writeKey(filepath.Join(dir, "tls.key"), key),
		writePEM(filepath.Join(dir, "tls.crt"), "CERTIFICATE", der),
	)
	if err != nil {
		return fmt.Errorf("issue a certificate for %s: %w", name, err)
	}
	return nil
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "PRIVATE KEY", der)
}

// writePEM replaces a file atomically.
func writePEM(path, kind string, der []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(file.Name())
		return err
	}
	return os.Rename(file.Name(), path)
}
