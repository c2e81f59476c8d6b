// Package identity authenticates and authorises callers. Every server has a certificate with one URI,
// spiffe://<trust domain>/deployment/<service>/<region>, /application/<service>/<name>, /user/<name>,
// /operator/<name> or /registry, and so have clients, but for users that come with a token. The identity of a
// caller comes from its certificate or its token, never from the request.
package identity

import (
	"crypto/x509"
	"fmt"
	"regexp"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/db-controller/db-controller/schema"
)

// Role is the kind of an identity.
type Role string

// The roles. A deployment has RoleDeployment on its in-process channel, too.
const (
	RoleDeployment Role = "deployment"
	RoleUser       Role = "user"
	RoleOperator   Role = "operator"
	RoleRegistry   Role = "registry"
	// RoleApplication is a program that shares the database of a deployment, and writes resources in its own
	// transactions.
	RoleApplication Role = "application"
)

// Identity is an authenticated caller or server.
type Identity struct {
	Role       Role
	Deployment schema.DeploymentID // of RoleDeployment
	// of RoleUser and RoleOperator; of RoleApplication its service and its name, joined by a slash
	Name string
}

// Path returns the path of the identity's URI.
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

// Deployment returns the identity of a deployment.
func Deployment(d schema.DeploymentID) Identity {
	return Identity{Role: RoleDeployment, Deployment: d}
}

// ServiceOf returns the service of an application.
func (i Identity) ServiceOf() string {
	service, _, _ := strings.Cut(i.Name, "/")
	return service
}

// nameGrammar restricts the names of people, which are written into logs and into the record of removals.
var nameGrammar = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,126}$`)

// ParsePath parses the result of Path.
func ParsePath(path string) (Identity, error) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch {
	case len(parts) == 3 && parts[0] == string(RoleDeployment):
		d, err := schema.ParseDeploymentID(parts[1] + "/" + parts[2])
		return Deployment(d), err
	case len(parts) == 2 && (parts[0] == string(RoleUser) || parts[0] == string(RoleOperator)) &&
		nameGrammar.MatchString(parts[1]):
		return Identity{Role: Role(parts[0]), Name: parts[1]}, nil
	case len(parts) == 3 && parts[0] == string(RoleApplication) && schema.CheckService(parts[1]) == nil &&
		nameGrammar.MatchString(parts[2]):
		return Identity{Role: RoleApplication, Name: parts[1] + "/" + parts[2]}, nil
	case len(parts) == 1 && parts[0] == string(RoleRegistry):
		return Identity{Role: RoleRegistry}, nil
	}
	return Identity{},
		fmt.Errorf(
			"identity %.100q: want deployment/SERVICE/REGION, application/SERVICE/NAME, user/NAME, operator/NAME or registry", strings.TrimPrefix(path, "/"))
}

// ofCertificate returns the identity in a verified certificate. A client without a certificate has no trust
// domain.
func ofCertificate(cert *x509.Certificate, trustDomain spiffeid.TrustDomain) (Identity, error) {
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("the certificate has %d URIs, want one", len(cert.URIs))
	}
	id, err := spiffeid.FromURI(cert.URIs[0])
	if err != nil {
		return Identity{}, fmt.Errorf("the certificate's URI: %w", err)
	}
	if !trustDomain.IsZero() && id.TrustDomain() != trustDomain {
		return Identity{}, fmt.Errorf("the certificate is of trust domain %s, not %s", id.TrustDomain(), trustDomain)
	}
	return ParsePath(id.Path())
}
