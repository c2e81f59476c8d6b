// Package identity says who is at the other end of a connection, and what it may do. Everybody carries a certificate
// with one URI, spiffe://<trust domain>/deployment/<service>/<region>, /user/<name>, /operator/<name> or /registry;
// a request is never believed about who sent it.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/db-controller/db-controller/schema"
)

// Role is what kind of party an identity is.
type Role string

// The roles. A deployment that speaks to itself, over its in-process channel, has RoleDeployment too.
const (
	RoleDeployment Role = "deployment"
	RoleUser       Role = "user"
	RoleOperator   Role = "operator"
	RoleRegistry   Role = "registry"
)

// Identity is who speaks.
type Identity struct {
	Role       Role
	Deployment schema.DeploymentID // of RoleDeployment
	Name       string              // of RoleUser and RoleOperator
}

// Path is the path of the identity's URI.
func (i Identity) Path() string {
	switch i.Role {
	case RoleDeployment:
		return "/deployment/" + i.Deployment.String()
	case RoleRegistry:
		return "/registry"
	default:
		return "/" + string(i.Role) + "/" + i.Name
	}
}

func (i Identity) String() string { return strings.TrimPrefix(i.Path(), "/") }

// Deployment is the identity of a deployment.
func Deployment(d schema.DeploymentID) Identity {
	return Identity{Role: RoleDeployment, Deployment: d}
}

// ParsePath reads the path of a URI, as Path gives it.
func ParsePath(path string) (Identity, error) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch {
	case len(parts) == 3 && parts[0] == string(RoleDeployment):
		d, err := schema.ParseDeploymentID(parts[1] + "/" + parts[2])
		return Deployment(d), err
	case len(parts) == 2 && (parts[0] == string(RoleUser) || parts[0] == string(RoleOperator)):
		return Identity{Role: Role(parts[0]), Name: parts[1]}, nil
	case len(parts) == 1 && parts[0] == string(RoleRegistry):
		return Identity{Role: RoleRegistry}, nil
	}
	return Identity{}, fmt.Errorf("identity %q is of no known kind", path)
}

// ofCertificate reads the one URI of a verified certificate.
func ofCertificate(cert *x509.Certificate, trustDomain spiffeid.TrustDomain) (Identity, error) {
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("the certificate has %d URIs, want one", len(cert.URIs))
	}
	id, err := spiffeid.FromURI(cert.URIs[0])
	if err != nil {
		return Identity{}, fmt.Errorf("the certificate's URI: %w", err)
	}
	if id.TrustDomain() != trustDomain {
		return Identity{}, fmt.Errorf("the certificate is of trust domain %s, not %s", id.TrustDomain(), trustDomain)
	}
	return ParsePath(id.Path())
}

type contextKey struct{}

// NewContext marks a call that this process makes to itself.
func NewContext(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, contextKey{}, id)
}

// FromContext tells who called: by the mark of an in-process call, or by the connection's certificate.
func FromContext(ctx context.Context) (Identity, error) {
	if id, ok := ctx.Value(contextKey{}).(Identity); ok {
		return id, nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Identity{}, errors.New("the call has no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return Identity{}, errors.New("the connection has no verified certificate")
	}
	cert := info.State.VerifiedChains[0][0]
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("the certificate has %d URIs, want one", len(cert.URIs))
	}
	id, err := spiffeid.FromURI(cert.URIs[0])
	if err != nil {
		return Identity{}, fmt.Errorf("the certificate's URI: %w", err)
	}
	return ParsePath(id.Path())
}

// Files are the certificate, its key, and the authorities to believe, in PEM.
type Files struct {
	Cert, Key, CA string
}

// InDir are the files tls.crt, tls.key and ca.crt of a folder.
func InDir(dir string) Files {
	return Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
}

// Credentials are what a process shows and whom it believes.
type Credentials struct {
	cert        tls.Certificate
	roots       *x509.CertPool
	trustDomain spiffeid.TrustDomain
	Identity    Identity
}

// Load reads the files.
func Load(f Files) (*Credentials, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s: %w", f.Cert, err)
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("load authorities: %w", err)
	}
	c := &Credentials{cert: cert, roots: x509.NewCertPool()}
	if !c.roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load authorities: %s has no certificate in PEM", f.CA)
	}
	if len(cert.Leaf.URIs) != 1 {
		return nil, fmt.Errorf("certificate %s has %d URIs, want one such as spiffe://example.org/deployment/iam.example.com/us-west2", f.Cert, len(cert.Leaf.URIs))
	}
	id, err := spiffeid.FromURI(cert.Leaf.URIs[0])
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", f.Cert, err)
	}
	c.trustDomain = id.TrustDomain()
	if c.Identity, err = ParsePath(id.Path()); err != nil {
		return nil, fmt.Errorf("certificate %s: %w", f.Cert, err)
	}
	return c, nil
}

// Server is for listeners: everybody must show a certificate of the same trust domain.
func (c *Credentials) Server() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c.cert},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: c.roots,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := ofCertificate(state.PeerCertificates[0], c.trustDomain)
			return err
		},
	})
}

// Client is for connections: the other end must be who it is expected to be. Its address does not matter.
func (c *Credentials) Client(expected Identity) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c.cert},
		// Names are not what is verified: VerifyConnection does the chain and the identity.
		InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
		VerifyConnection: func(state tls.ConnectionState) error {
			intermediates := x509.NewCertPool()
			for _, cert := range state.PeerCertificates[1:] {
				intermediates.AddCert(cert)
			}
			leaf := state.PeerCertificates[0]
			_, err := leaf.Verify(x509.VerifyOptions{
				Roots: c.roots, Intermediates: intermediates,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			})
			if err != nil {
				return err
			}
			id, err := ofCertificate(leaf, c.trustDomain)
			if err == nil && id != expected {
				err = fmt.Errorf("the other end is %s, not %s", id, expected)
			}
			return err
		},
	})
}
