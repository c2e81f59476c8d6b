package serve

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	authorizationv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/authorization/v1"
	"github.com/db-controller/db-controller/schema/service/access"
)

// owners is an authorization service, as one in front of OPA or SpiceDB could be: it allows resources below
// the subject's own name.
type owners struct {
	authorizationv1.UnimplementedAuthorizationServiceServer
}

func (owners) Authorize(_ context.Context,
	req *authorizationv1.AuthorizeRequest,
) (*authorizationv1.AuthorizeResponse, error) {
	out := &authorizationv1.AuthorizeResponse{}
	_, own, _ := strings.Cut(req.GetSubject().GetIdentity(), "/")
	for _, n := range req.GetNames() {
		out.Allowed = append(out.Allowed, strings.Contains(n, "/projects/"+own+"/"))
	}
	return out, nil
}

// A deployment asks the authorization service at the other end of a TLS connection, if its certificate has
// the identity that was given.
func TestADeploymentAsksItsAuthorizationService(t *testing.T) {
	t.Parallel()
	authority, err := playground.NewAuthority()
	require.NoError(t, err)
	self := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	credentials := func(who identity.Identity) *identity.Credentials {
		dir := t.TempDir()
		require.NoError(t, authority.Issue(dir, who))
		c, err := identity.Load(identity.InDir(dir))
		require.NoError(t, err)
		return c
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(
		grpc.Creds(credentials(identity.Identity{Role: identity.RoleUser, Name: "authorizer"}).Server(
			identity.NewLimiter(identity.Limits{Connections: 10, Calls: 10}, nil))))
	authorizationv1.RegisterAuthorizationServiceServer(server, owners{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	ask := func(is string) ([]bool, error) {
		d := &deployment{cfg: *configured(func(c *deploymentConfig) {
			c.authorizer.address, c.authorizer.is = listener.Addr().String(), is
		}), credentials: credentials(identity.Deployment(self))}
		require.NoError(t, d.connectAuthorizer(t.Context()))
		defer func() { _ = d.authorizerConn.Close() }()
		return access.Outside(d.authorizerConn).Authorize(t.Context(), grant.Subject{Identity: "user/ann"}, schema.Read,
			[]schema.FullName{
				{Deployment: self, Name: "projects/ann/p"}, {Deployment: self, Name: "projects/bob/p"},
			})
	}
	allowed, err := ask("user/authorizer")
	require.NoError(t, err)
	require.Equal(t, []bool{true, false}, allowed)
	_, err = ask("user/another")
	require.ErrorContains(t, err, "user/authorizer", "somebody else answers at its address")
	d := &deployment{cfg: *configured(func(c *deploymentConfig) {
		c.authorizer.address, c.authorizer.is = "localhost:1", "?"
	})}
	require.ErrorContains(t, d.connectAuthorizer(t.Context()), "--authorizer-identity")
}
