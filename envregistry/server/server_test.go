package server_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/envregistry"
	"github.com/db-controller/db-controller/envregistry/server"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
	"github.com/db-controller/db-controller/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const example = `
service: iam.example.com
version: v1
kinds: [{kind: Project, patterns: ["projects/{project}"]}]
---
service: iam.example.com
version: v2
kinds: [{kind: Project, patterns: ["projects/{project}"]}]
---
regions: [us-west2, eastus2]
deployments:
  - {deployment: iam.example.com/us-west2, version: v1}
  - {deployment: iam.example.com/eastus2, version: v1}
`

var west = schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"}

// serve runs a registry; all its callers have the identity.
func serve(t *testing.T, dsn string, who identity.Identity) registryv1.RegistryServiceClient {
	t.Helper()
	conn := connect(t, dsn, who)
	return registryv1.NewRegistryServiceClient(conn)
}

func connect(t *testing.T, dsn string, who identity.Identity) *grpc.ClientConn {
	t.Helper()
	pool, err := postgres.Connect(context.Background(), dsn, "test", 4)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	listener := bufconn.Listen(1 << 20)
	s := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
			h grpc.UnaryHandler,
		) (any, error) {
			return h(identity.NewContext(ctx, who), req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
			h grpc.StreamHandler,
		) error {
			return h(srv, identified{stream, who})
		}))
	registryv1.RegisterRegistryServiceServer(s, server.New(pool, nil, nil, zap.NewNop()))
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:registry", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

type identified struct {
	grpc.ServerStream
	who identity.Identity
}

func (i identified) Context() context.Context {
	return identity.NewContext(i.ServerStream.Context(), i.who)
}

func database(t *testing.T) string {
	t.Helper()
	s := harness.Postgres(t)
	return s.NewDatabase(t, s.Template(t, "registry", func(ctx context.Context, dsn string) error {
		_, err := migrations.Up(ctx, dsn, migrations.Registry)
		return err
	}))
}

func apply(t *testing.T, c registryv1.RegistryServiceClient, yaml string) []string {
	t.Helper()
	file, err := schema.ParseFile("f", strings.NewReader(yaml))
	require.NoError(t, err)
	env := wire.EnvironmentProto(&schema.Environment{
		Regions: file.Regions, Services: file.Services,
		Deployments: file.Deployments, Rights: file.Rights,
	})
	answer, err := c.Apply(context.Background(), &registryv1.ApplyRequest{
		Regions:  env.GetRegions(),
		Services: env.GetServices(), Deployments: env.GetDeployments(), Rights: env.GetRights(),
	})
	require.NoError(t, err)
	return answer.GetChanges()
}

func TestApplyReturnsTheChanges(t *testing.T) {
	t.Parallel()
	c := serve(t, database(t), identity.Identity{Role: identity.RoleOperator, Name: "o"})
	require.Equal(t, []string{
		"region eastus2: created", "region us-west2: created", "service iam.example.com@v1: created",
		"service iam.example.com@v2: created",
		"deployment iam.example.com/us-west2: created\n  version: v1",
		"deployment iam.example.com/eastus2: created\n  version: v1",
	}, apply(t, c, example))
	require.Empty(t, apply(t, c, example))
	require.Equal(t, []string{"deployment iam.example.com/us-west2: changed\n  version: v1 → v2"},
		apply(t, c, "regions: []\ndeployments: [{deployment: iam.example.com/us-west2, version: v2}]"))
}

func TestADeploymentRegistersOnlyItselfAndTheNewerProcessCounts(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	apply(t, serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"}), example)
	c, ctx := serve(t, dsn, identity.Deployment(west)), context.Background()
	register := func(region, address string, generation int64) error {
		_, err := c.RegisterDeployment(ctx, &registryv1.RegisterDeploymentRequest{
			Service: west.Service, Region: region,
			Address: address, Generation: generation,
		})
		return err
	}
	require.NoError(t, register("us-west2", "new:1", 1))
	require.Equal(t, codes.FailedPrecondition, status.Code(register("us-west2", "old:1", 0)))
	require.Equal(t, codes.PermissionDenied, status.Code(register("eastus2", "x:1", 2)))
	env, err := c.GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	d, ok := wire.Environment(env.GetEnvironment()).Deployment(west)
	require.True(t, ok)
	require.Equal(t, "new:1", d.Address)
}

// A repeated registration changes nothing, and a late one, after another process has registered, is refused.
func TestARepeatedOrLateRegistrationReplacesNoOther(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	apply(t, serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"}), example)
	c := serve(t, dsn, identity.Deployment(west))
	register := func(address string, generation int64) (*registryv1.Deployment, error) {
		return c.RegisterDeployment(t.Context(), &registryv1.RegisterDeploymentRequest{
			Service: west.Service,
			Region:  west.Region, Address: address, Generation: generation,
		})
	}
	first, err := register("first:1", 1)
	require.NoError(t, err)
	again, err := register("first:1", 1)
	require.NoError(t, err, "its answer was lost")
	require.True(t, proto.Equal(first, again))
	_, err = register("second:1", 1)
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "it has not seen the first one")
	_, err = register("second:1", first.GetGeneration()+1)
	require.NoError(t, err)
	_, err = register("first:1", 1)
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "late")
	_, err = register("third:1", 0)
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "without a generation")
}

// The registry's database refuses connections for a while, and closes the existing ones: calls fail with
// UNAVAILABLE, and one line is logged for all calls.
func TestARegistryWithoutItsDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	apply(t, serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"}), example)
	pool, err := postgres.Connect(t.Context(), dsn, "test", 4)
	require.NoError(t, err)
	defer pool.Close()
	core, said := observer.New(zap.InfoLevel)
	log := zap.New(core)
	c, ctx := server.New(pool, nil, nil, log), identity.NewContext(t.Context(), identity.Deployment(west))
	served := requestid.Unary(log) // logs the faults
	conn, err := pgx.Connect(t.Context(), harness.Postgres(t).DSN(""))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	cfg, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	name := pgx.Identifier{cfg.Database}.Sanitize()
	_, err = conn.Exec(t.Context(), "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
		cfg.Database)
	require.NoError(t, err)
	for range 20 {
		for _, call := range []grpc.UnaryHandler{
			func(ctx context.Context, _ any) (any, error) {
				return c.GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{})
			},
			func(ctx context.Context, _ any) (any, error) {
				return c.RegisterDeployment(ctx, &registryv1.RegisterDeploymentRequest{
					Service: west.Service,
					Region:  west.Region, Address: "x:1", Generation: 1,
				})
			},
			func(ctx context.Context, _ any) (any, error) { return c.Apply(ctx, &registryv1.ApplyRequest{}) },
		} {
			_, err := served(ctx, nil, &grpc.UnaryServerInfo{}, call)
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		}
	}
	require.Equal(t, 1, said.Len(), "%v", said.All())
	require.Equal(t, zap.WarnLevel, said.All()[0].Level)
	_, err = conn.Exec(t.Context(), "ALTER DATABASE "+name+" ALLOW_CONNECTIONS true")
	require.NoError(t, err)
	_, err = c.GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
}

func TestRemove(t *testing.T) {
	t.Parallel()
	c := serve(t, database(t), identity.Identity{Role: identity.RoleOperator, Name: "eve"})
	apply(t, c, example)
	remove := func(req *registryv1.RemoveRequest) ([]string, error) {
		answer, err := c.Remove(t.Context(), req)
		return answer.GetChanges(), err
	}
	before, err := c.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	_, err = remove(&registryv1.RemoveRequest{Regions: []string{"eastus2"}, Services: []string{"iam.example.com@v1"}})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "iam.example.com/eastus2 has a deployment there; remove it as well")
	require.ErrorContains(t, err,
		"iam.example.com/us-west2 runs iam.example.com@v1; switch its version first, or remove it as well")
	_, err = remove(&registryv1.RemoveRequest{Deployments: []string{"nothing"}})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	after, err := c.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	require.True(t, proto.Equal(before, after), "all or nothing")

	changes, err := remove(&registryv1.RemoveRequest{
		Deployments: []string{"iam.example.com/eastus2"},
		Regions:     []string{"eastus2"}, Services: []string{"iam.example.com@v2"},
	})
	require.NoError(t, err)
	require.Equal(t, []string{
		"deployment iam.example.com/eastus2: removed", "service iam.example.com@v2: removed",
		"region eastus2: removed",
	}, changes)
	changes, err = remove(&registryv1.RemoveRequest{Deployments: []string{"iam.example.com/eastus2"}})
	require.NoError(t, err)
	require.Empty(t, changes)
	require.Equal(t, []string{
		"region eastus2: created", "service iam.example.com@v2: created",
		"deployment iam.example.com/eastus2: created\n  version: v1",
	}, apply(t, c, example), "it can be applied again")
}

func TestADecommissionedDeploymentNeverComesBack(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	operator, selfClient := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "ann"}),
		serve(t, dsn, identity.Deployment(west))
	apply(t, operator, example)
	gone := func(region string) error {
		_, err := operator.DecommissionDeployment(t.Context(),
			&registryv1.DecommissionDeploymentRequest{Service: west.Service, Region: region, Reason: "fire"})
		return err
	}
	require.Equal(t, codes.NotFound, status.Code(gone("mars")))
	stranger := func(region string) error {
		_, err := operator.DecommissionDeployment(t.Context(),
			&registryv1.DecommissionDeploymentRequest{
				Service: "evil.example.com", Region: region, Reason: "stolen",
				Unlisted: true,
			})
		return err
	}
	require.NoError(t, stranger("mars"), "others may know one that the registry does not list")
	require.Equal(t, codes.InvalidArgument, status.Code(stranger("no region!")))
	require.NoError(t, gone("us-west2"))
	require.NoError(t, gone("us-west2"), "said again")
	env, err := selfClient.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	require.Len(t, env.GetEnvironment().GetDeployments(), 1)
	_, err = selfClient.RegisterDeployment(t.Context(), &registryv1.RegisterDeploymentRequest{
		Service: west.Service,
		Region:  west.Region, Address: "x:1", Generation: 9,
	})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "was decommissioned by operator/ann")
	_, err = operator.Apply(t.Context(),
		&registryv1.ApplyRequest{Deployments: []*registryv1.Deployment{{
			Service: west.Service, Region: west.Region,
			Version: "v1",
		}}})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "its name is not used again")
	apply(t, operator, "regions: [moon]\ndeployments: [{deployment: iam.example.com/moon, version: v2}]")
}

type memory struct{ kept chan *schema.Environment }

func (m memory) LoadEnvironment(context.Context) (*schema.Environment, error) { return nil, nil }
func (m memory) KeepEnvironment(_ context.Context, env *schema.Environment) error {
	select {
	case m.kept <- env:
	default:
	}
	return nil
}

func TestTheClientFollowsWhatIsAppliedThroughAnotherServer(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	operator := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	apply(t, operator, example)
	kept := make(chan *schema.Environment, 10)
	client, err := envregistry.New(envregistry.Config{
		Deployment: west, Address: "here:1", Registry: connect(t, dsn, identity.Deployment(west)),
		Keeper: memory{kept}, Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- client.Run(ctx) }()
	env := <-client.Environments()
	require.Len(t, env.Services, 2)
	require.Equal(t, env, <-kept)
	d, _ := env.Deployment(west)
	require.Empty(t, d.Address, "who does not speak for the deployment registers nothing")
	client.Lead(true)
	d, _ = (<-client.Environments()).Deployment(west)
	require.Equal(t, "here:1", d.Address)
	_, err = operator.SetDeploymentVersion(ctx, &registryv1.SetDeploymentVersionRequest{
		Service: west.Service,
		Region:  west.Region, Version: "v2",
	})
	require.NoError(t, err)
	d, _ = (<-client.Environments()).Deployment(west)
	require.Equal(t, "v2", d.Version)
	cancel()
	require.NoError(t, <-done)
}

// Deployments receive each declaration of rights, the empty one too, and files without rights leave them.
func TestRightsAreReplacedByDeclarationsAlone(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	operator := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	client, err := envregistry.New(envregistry.Config{
		Deployment: west, Address: "here:1", Registry: connect(t, dsn, identity.Deployment(west)),
		Keeper: memory{make(chan *schema.Environment, 10)}, Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	apply(t, operator, example)
	go func() { done <- client.Run(ctx) }()
	require.Nil(t, (<-client.Environments()).Rights)
	require.Equal(t,
		[]string{
			"rights: created\n  everybody loses refer where no grant allows it: the default is deny\n  group sre gains read on everything",
		}, apply(t, operator, "rights: {default: deny, grants: [{group: sre, verbs: [read]}]}"))
	rights := (<-client.Environments()).Rights
	require.True(t, rights.Deny)
	require.Len(t, rights.Grants, 1)
	apply(t, operator, "regions: [moon]")
	require.True(t, (<-client.Environments()).Rights.Deny)
	require.Equal(t,
		[]string{
			"rights: changed\n  every user gains read, write, delete: the default is allow\n  everybody gains refer: the default is not deny",
		}, apply(t, operator, "rights: {default: allow}"))
	rights = (<-client.Environments()).Rights
	require.NotNil(t, rights)
	require.False(t, rights.Deny)
	require.Empty(t, rights.Grants)
	require.Equal(t, []string{"rights: declared again\n  nobody gains or loses a right"},
		apply(t, operator, "rights: {default: allow}"))
	require.Greater(t, (<-client.Environments()).Rights.Declaration, rights.Declaration,
		"deployments that have another one take it")
	cancel()
	require.NoError(t, <-done)
	answer, err := operator.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	require.NotNil(t, answer.GetEnvironment().GetRights())
}

// A registry whose database was restored or failed over may lack deployments: its list counts as complete
// when an operator has applied each deployment in it since. An empty list never does (I15).
func TestARegistryThatMayLackDeploymentsSaysSo_I15(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	c := serve(t, dsn, identity.Identity{Role: identity.RoleOperator, Name: "o"})
	incomplete := func() bool {
		t.Helper()
		answer, err := c.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
		require.NoError(t, err)
		return answer.GetIncomplete()
	}
	require.True(t, incomplete(), "an empty one")
	apply(t, c, example)
	require.False(t, incomplete())

	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	// As after a failover: the stored server is another one.
	_, err = conn.Exec(t.Context(), `UPDATE dbcontroller_registry.deployment SET applied_in = applied_in || '-before'`)
	require.NoError(t, err)
	require.True(t, incomplete())
	apply(t, c, "regions: [us-west2]\ndeployments:\n  - {deployment: iam.example.com/us-west2, version: v1}\n")
	require.True(t, incomplete(), "of one that is listed nobody has said a word since")
	apply(t, c, example)
	require.False(t, incomplete())
}

// next returns the generation of the next registration of a deployment.
func next(t *testing.T, c registryv1.RegistryServiceClient, id schema.DeploymentID) int64 {
	t.Helper()
	env, err := c.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
	require.NoError(t, err)
	d, _ := wire.Environment(env.GetEnvironment()).Deployment(id)
	return d.Generation + 1
}
