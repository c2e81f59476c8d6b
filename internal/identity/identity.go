// Package identity says who is at the other end of a connection, and what it may do. Everybody carries a certificate
// with one URI, spiffe://<trust domain>/deployment/<service>/<region>, /user/<name>, /operator/<name> or /registry;
// a request is never believed about who sent it.
package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
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

// nameGrammar is that of people's names: they are written into logs and kept with what they remove.
var nameGrammar = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,126}$`)

// ParsePath reads the path of a URI, as Path gives it.
func ParsePath(path string) (Identity, error) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch {
	case len(parts) == 3 && parts[0] == string(RoleDeployment):
		d, err := schema.ParseDeploymentID(parts[1] + "/" + parts[2])
		return Deployment(d), err
	case len(parts) == 2 && (parts[0] == string(RoleUser) || parts[0] == string(RoleOperator)) && nameGrammar.MatchString(parts[1]):
		return Identity{Role: Role(parts[0]), Name: parts[1]}, nil
	case len(parts) == 1 && parts[0] == string(RoleRegistry):
		return Identity{Role: RoleRegistry}, nil
	}
	return Identity{}, fmt.Errorf("identity %.100q: want /deployment/SERVICE/REGION, /user/NAME, /operator/NAME or /registry", path)
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
	info, ok := p.AuthInfo.(Info)
	if !ok {
		return Identity{}, errors.New("the connection has no verified certificate")
	}
	// A connection may be older than its certificate is valid.
	if info.expired() {
		return Identity{}, fmt.Errorf("the certificate of %s has expired: connect again with a new one", info.Identity)
	}
	return info.Identity, nil
}
