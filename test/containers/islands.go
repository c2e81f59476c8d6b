package containers

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"
	"github.com/testcontainers/testcontainers-go"
	tcnetwork "github.com/testcontainers/testcontainers-go/network"
	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// Islands are deployments in containers, each with its PostgreSQL on a network of its own. A further network,
// the sea, connects all of them; each can be disconnected from it. The test reaches them by their own
// networks.
type Islands struct {
	t       testing.TB
	engine  client.APIClient
	sea     *testcontainers.DockerNetwork
	image   string // of PostgreSQL
	program string // the image of the program
	dir     string
	auth    *playground.Authority
	islands map[string]*island
	// Pools go to the deployments' databases.
	Pools map[schema.DeploymentID]*pgxpool.Pool
}

type island struct {
	name      string // also its host name on the sea
	own       *testcontainers.DockerNetwork
	container *testcontainers.DockerContainer
	address   string // host of gRPC, for the test
}

const (
	islandGRPC = "7001"
	islandHTTP = "7002"
)

// NewIslands starts a registry and the deployments that a YAML document describes. Without a container
// engine, or an image of PostgreSQL, the test is skipped.
func NewIslands(t testing.TB, services string, args ...string) *Islands {
	t.Helper()
	ctx := t.Context()
	engine, err := connectEngine(ctx)
	if err != nil {
		t.Skipf("no container engine: %v", err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	i := &Islands{
		t: t, engine: engine, dir: t.TempDir(), islands: map[string]*island{},
		Pools: map[schema.DeploymentID]*pgxpool.Pool{},
	}
	require.NoError(t, removeLeftovers(ctx, engine))
	if i.image, err = postgresImage(ctx, engine); err != nil {
		t.Skipf("no image of PostgreSQL: %v", err)
	}
	i.auth, err = playground.NewAuthority()
	require.NoError(t, err)
	i.build()
	i.sea = i.network()
	files, err := schema.ParseFile("services.yaml", strings.NewReader(services))
	require.NoError(t, err)

	registry := i.settle("registry", identity.Identity{Role: identity.RoleRegistry}, "registry")
	require.NoError(t, i.auth.Issue(i.certs("operator"), identity.Identity{Role: identity.RoleOperator, Name: "test"}))
	conn := i.Dial(registry.name, identity.Identity{Role: identity.RoleRegistry})
	env := wire.EnvironmentProto(&schema.Environment{
		Regions: files.Regions, Services: files.Services,
		Deployments: files.Deployments, Rights: &schema.Rights{Allow: true},
	})
	_, err = registryv1.NewRegistryServiceClient(conn).Apply(ctx, &registryv1.ApplyRequest{
		Regions:  env.GetRegions(),
		Services: env.GetServices(), Deployments: env.GetDeployments(), Rights: env.GetRights(),
	})
	require.NoError(t, err)
	for _, d := range files.Deployments {
		name := islandName(d.DeploymentID)
		i.settle(name, identity.Deployment(d.DeploymentID), append([]string{
			"serve", "--deployment", d.String(), "--registry", "registry:" + islandGRPC, "--advertise",
			name + ":" + islandGRPC,
		}, args...)...)
	}
	return i
}

func islandName(d schema.DeploymentID) string {
	return strings.NewReplacer(".", "-", "/", "-").Replace(d.String())
}

func (i *Islands) certs(name string) string { return filepath.Join(i.dir, name) }

// build makes an image with the program alone.
func (i *Islands) build() {
	root, err := exec.CommandContext(i.t.Context(), "go", "list", "-m", "-f", "{{.Dir}}").Output()
	require.NoError(i.t, err)
	folder := filepath.Join(i.dir, "image")
	require.NoError(i.t, os.Mkdir(folder, 0o700))
	build := harness.GoBuild(i.t.Context(), "-o", filepath.Join(folder, "db-controller"), "./cmd/db-controller")
	build.Dir = strings.TrimSpace(string(root))
	out, err := build.CombinedOutput()
	require.NoError(i.t, err, "%s", out)
	dockerfile := "FROM scratch\nCOPY db-controller /db-controller\nENTRYPOINT [\"/db-controller\"]\n"
	require.NoError(i.t, os.WriteFile(filepath.Join(folder, "Dockerfile"), []byte(dockerfile), 0o600))
	i.program = folder
}

func (i *Islands) network() *testcontainers.DockerNetwork {
	n, err := tcnetwork.New(i.t.Context())
	if err != nil {
		i.t.Skipf("the engine makes no networks: %v", err)
	}
	i.t.Cleanup(func() { _ = n.Remove(context.Background()) })
	return n
}

// settle starts a database and the program on a network of their own, and joins the program to the sea.
func (i *Islands) settle(name string, id identity.Identity, args ...string) *island {
	i.t.Helper()
	ctx := i.t.Context()
	land := &island{name: name, own: i.network()}
	database, password, err := runPostgres(ctx, i.image, tcnetwork.WithNetwork([]string{"db"}, land.own))
	if database != nil {
		i.t.Cleanup(func() { _ = terminate(database) })
	}
	require.NoError(i.t, err)
	if at := net.JoinHostPort(i.addressOn(database, land.own), "5432"); !answers(ctx, at) {
		i.t.Skipf("containers on networks of their own cannot be reached from here: %s", at)
	}
	dsn := url.URL{
		Scheme: "postgres", User: url.UserPassword("postgres", password), Host: "db:5432", Path: "/postgres",
		RawQuery: "sslmode=disable",
	}
	require.NoError(i.t, i.auth.Issue(i.certs(name), id))
	var files []testcontainers.ContainerFile
	for _, f := range []string{"tls.crt", "tls.key", "ca.crt"} {
		files = append(files, testcontainers.ContainerFile{
			HostFilePath:      filepath.Join(i.certs(name), f),
			ContainerFilePath: "/certs/" + f, FileMode: 0o600,
		})
	}
	tail := &logTail{}
	land.container, err = testcontainers.Run(ctx, "",
		testcontainers.WithDockerfile(testcontainers.FromDockerfile{
			Context: i.program,
			Repo:    "localhost/db-controller-islands", Tag: "test",
		}),
		testcontainers.WithCmd(append(args, "--postgres", dsn.String(), "--postgres-plaintext", "--certs", "/certs",
			"--listen", ":"+islandGRPC, "--http", ":"+islandHTTP, "--migrate")...),
		testcontainers.WithFiles(files...), testcontainers.WithLogConsumers(tail),
		testcontainers.WithLabels(map[string]string{label: "true"}),
		tcnetwork.WithNetwork([]string{name}, land.own), tcnetwork.WithNetwork([]string{name}, i.sea),
	)
	if land.container != nil {
		i.t.Cleanup(func() { _ = terminate(land.container) })
	}
	require.NoError(i.t, err, "%s", tail)
	land.address = i.addressOn(land.container, land.own)
	i.islands[name] = land
	require.Eventually(i.t, func() bool {
		res, err := http.Get("http://" + net.JoinHostPort(land.address, islandHTTP) + "/readyz") //nolint:noctx // a test's
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	}, wait.Limit, wait.Poll, "%s is not ready", name)
	if id.Role == identity.RoleDeployment {
		dsn.Host = net.JoinHostPort(i.addressOn(database, land.own), "5432")
		pool, err := pgxpool.New(ctx, dsn.String())
		require.NoError(i.t, err)
		i.t.Cleanup(pool.Close)
		i.Pools[id.Deployment] = pool
	}
	return land
}

func (i *Islands) addressOn(c *testcontainers.DockerContainer, n *testcontainers.DockerNetwork) string {
	i.t.Helper()
	inspected, err := i.engine.ContainerInspect(i.t.Context(), c.ID, client.ContainerInspectOptions{})
	require.NoError(i.t, err)
	return inspected.Container.NetworkSettings.Networks[n.Name].IPAddress.String()
}

// Dial connects to an island as an operator, by its own network.
func (i *Islands) Dial(name string, id identity.Identity) *grpc.ClientConn {
	i.t.Helper()
	operator, err := identity.Load(identity.InDir(i.certs("operator")))
	require.NoError(i.t, err)
	conn, err := grpc.NewClient(net.JoinHostPort(i.islands[name].address, islandGRPC), operator.DialOptions(id)...)
	require.NoError(i.t, err)
	i.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Deployment connects to a deployment as an operator.
func (i *Islands) Deployment(id schema.DeploymentID) *grpc.ClientConn {
	i.t.Helper()
	return i.Dial(islandName(id), identity.Deployment(id))
}

// Leave disconnects a deployment from the sea.
func (i *Islands) Leave(id schema.DeploymentID) {
	i.t.Helper()
	_, err := i.engine.NetworkDisconnect(i.t.Context(), i.sea.ID,
		client.NetworkDisconnectOptions{Container: i.islands[islandName(id)].container.ID})
	require.NoError(i.t, err)
}

// Join connects it again, with another address.
func (i *Islands) Join(id schema.DeploymentID) {
	i.t.Helper()
	name := islandName(id)
	_, err := i.engine.NetworkConnect(i.t.Context(), i.sea.ID, client.NetworkConnectOptions{
		Container: i.islands[name].container.ID, EndpointConfig: &network.EndpointSettings{Aliases: []string{name}},
	})
	require.NoError(i.t, err)
}
