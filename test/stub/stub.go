// Package stub serves gRPC services that a test implements, over TLS with real certificates, so that tests of
// the client and of the commands need neither PostgreSQL nor processes.
package stub

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// Deployment is the only deployment of an Installation.
var Deployment = schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}

// Services of an installation. A nil service is not registered.
type Services struct {
	Resources resourcev1.ResourceServiceServer
	Admin     adminv1.AdminServiceServer
	// Registry serves the calls, GetEnvironment only if it does not answer UNIMPLEMENTED.
	Registry registryv1.RegistryServiceServer
	// Described is the region of a further deployment of the service, which has never run; empty for none.
	Described string
	// Beside has further regions of the service, with the resources that their deployments serve.
	Beside map[string]resourcev1.ResourceServiceServer
	// Descriptors are the descriptors of the environment.
	Descriptors []*schema.Descriptor
}

// Installation is a registry and one deployment.
type Installation struct {
	// Context is the path of a client.yaml of an operator, Certs the folder with the operator's certificate.
	Context, Certs string
	// RegistryAddress and Address are host:port of the two servers.
	RegistryAddress, Address string
	registry                 *grpc.Server
	authority                *playground.Authority
}

// As returns the path of a client.yaml of another operator.
func (i *Installation) As(t testing.TB, operator string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, i.authority.Issue(dir, identity.Identity{Role: identity.RoleOperator, Name: operator}))
	path := filepath.Join(dir, "client.yaml")
	require.NoError(t, os.WriteFile(path, []byte(fmt.Sprintf("registry: %s\ncerts: .\n", i.RegistryAddress)), 0o600))
	return path
}

// StopRegistry stops the registry: connections to it are refused from then on.
func (i *Installation) StopRegistry() { i.registry.Stop() }

// New starts an installation, which ends with the test.
func New(t testing.TB, s Services) *Installation {
	t.Helper()
	dir := t.TempDir()
	authority, err := playground.NewAuthority()
	require.NoError(t, err)
	i := &Installation{
		Context: filepath.Join(dir, "client.yaml"), Certs: filepath.Join(dir, "operator"),
		authority: authority,
	}
	require.NoError(t, authority.Issue(i.Certs, identity.Identity{Role: identity.RoleOperator, Name: "tester"}))
	_, i.Address = serve(t, authority, identity.Deployment(Deployment), func(server *grpc.Server) {
		if s.Resources != nil {
			resourcev1.RegisterResourceServiceServer(server, s.Resources)
		}
		if s.Admin != nil {
			adminv1.RegisterAdminServiceServer(server, s.Admin)
		}
	})
	if s.Registry == nil {
		s.Registry = registryv1.UnimplementedRegistryServiceServer{}
	}
	env := environment(i.Address, s)
	for region, resources := range s.Beside {
		id := schema.DeploymentID{Service: Deployment.Service, Region: region}
		_, address := serve(t, authority, identity.Deployment(id), func(server *grpc.Server) {
			resourcev1.RegisterResourceServiceServer(server, resources)
			if s.Admin != nil {
				adminv1.RegisterAdminServiceServer(server, s.Admin)
			}
		})
		env.Regions = append(env.Regions, &registryv1.Region{Name: region})
		env.Deployments = append(env.Deployments, &registryv1.Deployment{
			Service: id.Service, Region: region,
			Version: "v1", Address: address,
		})
	}
	i.registry, i.RegistryAddress = serve(t, authority, identity.Identity{Role: identity.RoleRegistry},
		func(server *grpc.Server) {
			registryv1.RegisterRegistryServiceServer(server, registry{s.Registry, env})
		})
	file := fmt.Sprintf("registry: %s\ncerts: %s\n", i.RegistryAddress, i.Certs)
	require.NoError(t, os.WriteFile(i.Context, []byte(file), 0o600))
	return i
}

func serve(t testing.TB, authority *playground.Authority, id identity.Identity,
	register func(*grpc.Server),
) (*grpc.Server, string) {
	t.Helper()
	certs := t.TempDir()
	require.NoError(t, authority.Issue(certs, id))
	credentials, err := identity.Load(identity.InDir(certs))
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.Server(nil)))
	register(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return server, listener.Addr().String()
}

// environment returns an environment with the installation's deployment.
func environment(address string, s Services) *registryv1.Environment {
	env := &registryv1.Environment{
		Regions: []*registryv1.Region{{Name: Deployment.Region}},
		Deployments: []*registryv1.Deployment{{
			Service: Deployment.Service, Region: Deployment.Region, Version: "v1", Address: address,
		}},
		Revision: 1,
		Rights:   &registryv1.Rights{Allow: true},
	}
	for _, d := range s.Descriptors {
		env.Services = append(env.Services, wire.DescriptorProto(d))
	}
	if s.Described != "" {
		env.Deployments = append(env.Deployments, &registryv1.Deployment{
			Service: Deployment.Service,
			Region:  s.Described, Version: "v1",
		})
	}
	return env
}

// registry returns one environment.
type registry struct {
	registryv1.RegistryServiceServer
	env *registryv1.Environment
}

func (r registry) GetEnvironment(ctx context.Context,
	req *registryv1.GetEnvironmentRequest,
) (*registryv1.GetEnvironmentResponse, error) {
	if answer, err := r.RegistryServiceServer.GetEnvironment(ctx, req); status.Code(err) != codes.Unimplemented {
		return answer, err
	}
	return &registryv1.GetEnvironmentResponse{Environment: r.env}, nil
}
