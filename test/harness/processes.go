package harness

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

var (
	binary = sync.OnceValues(func() (string, error) { return build("db-controller") })
	// crashing is the program with the crash points of package crash.
	crashing = sync.OnceValues(func() (string, error) {
		return build("db-controller-crashing", "-tags", "crashpoints")
	})
)

// build builds the program at a fixed place, where go build leaves a program alone that is up to date: test
// processes share it.
func build(name string, flags ...string) (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", err
	}
	dir := strings.TrimSpace(string(root))
	path := filepath.Join(dir, "bin", "test", name)
	build := GoBuild(context.Background(), append(flags, "-o", path, "./cmd/db-controller")...)
	build.Dir = dir
	build.Stderr = os.Stderr
	return path, build.Run()
}

// GoBuild runs go build with the flags of make build, so that both share the build cache, and collects
// garbage as late.
func GoBuild(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath"}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOGC=400")
	return cmd
}

// Binary builds the program.
func Binary(t testing.TB) string {
	t.Helper()
	return built(t, binary)
}

// CrashingBinary is Binary with crash points.
func CrashingBinary(t testing.TB) string {
	t.Helper()
	return built(t, crashing)
}

func built(t testing.TB, build func() (string, error)) string {
	t.Helper()
	path, err := build()
	require.NoError(t, err)
	return path
}

// Processes are a registry and deployments as processes of their own, each deployment with a database and a
// certificate of its own.
type Processes struct {
	*playground.Playground
	Client *client.Client
	// Context is the path of the client file for the command line.
	Context string
	files   *schema.File
}

// DatabaseArgs are flags of programs that connect to the tests' server, which may be in a container with an
// address of its own.
func DatabaseArgs(t testing.TB) []string {
	t.Helper()
	if postgres.CheckTLS(Postgres(t).DSN("")) != nil {
		return []string{"--postgres-plaintext"}
	}
	return nil
}

// NewProcesses starts the deployments that YAML describes; further arguments are flags of their serve.
func NewProcesses(t testing.TB, services string, args ...string) *Processes {
	t.Helper()
	return NewProcessesWith(t, services, playground.Config{Args: args})
}

// NewProcessesWith is NewProcesses with a configuration, of which folder, program and deployments are
// ignored.
func NewProcessesWith(t testing.TB, services string, cfg playground.Config) *Processes {
	t.Helper()
	p := DescribeProcesses(t, services, cfg)
	p.Begin(t)
	return p
}

// DescribeProcesses is NewProcessesWith without starting anything; Begin does.
func DescribeProcesses(t testing.TB, services string, cfg playground.Config) *Processes {
	t.Helper()
	files, err := schema.ParseFile("services.yaml", strings.NewReader(services))
	require.NoError(t, err)
	server := Postgres(t)
	dir := t.TempDir()
	if cfg.Dir = dir; cfg.Binary == "" {
		cfg.Binary = Binary(t)
	}
	if cfg.Databases.New == nil {
		template := deploymentTemplate(t, server)
		cfg.Databases.New = func(_ context.Context, name string) (string, error) {
			if name == "registry" {
				return server.NewDatabase(t, ""), nil
			}
			return server.NewDatabase(t, template), nil
		}
	}
	cfg.Databases.Serving, cfg.Databases.Controller, cfg.Databases.Args = AsAPI, AsController, DatabaseArgs(t)
	for _, d := range files.Deployments {
		cfg.Deployments = append(cfg.Deployments, d.DeploymentID)
	}
	p, err := playground.New(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Stop() })
	c, err := client.New(client.File{Registry: p.RegistryAddress, Certs: p.ClientCerts()}, "")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return &Processes{Playground: p, Client: c, Context: filepath.Join(dir, playground.ClientFile), files: files}
}

// Begin starts the described processes.
func (p *Processes) Begin(t testing.TB) {
	t.Helper()
	rights := cmp.Or(p.files.Rights, &schema.Rights{Allow: true})
	env := wire.EnvironmentProto(&schema.Environment{
		Regions: p.files.Regions, Services: p.files.Services,
		Deployments: p.files.Deployments, Rights: rights,
	})
	require.NoError(t, p.Start(context.Background(), func(ctx context.Context) error {
		_, err := p.Client.Registry().Apply(ctx, &registryv1.ApplyRequest{
			Regions:  env.GetRegions(),
			Services: env.GetServices(), Deployments: env.GetDeployments(), Rights: env.GetRights(),
		})
		return err
	}))
}

// MigratedBy returns a Database of a playground whose databases a program of another release migrates, with
// the roles of that release.
func MigratedBy(t testing.TB, binary string) func(ctx context.Context, name string) (string, error) {
	server := Postgres(t)
	return func(ctx context.Context, name string) (string, error) {
		dsn := server.NewDatabase(t, "")
		if name == "registry" { // it migrates itself
			return dsn, nil
		}
		if err := Migrate(ctx, t, binary, migrations.Deployment, dsn); err != nil {
			return "", err
		}
		return dsn, grantServing(ctx, dsn)
	}
}

// Migrate runs a program's migrate up, for a deployment with the roles of boxes.
func Migrate(ctx context.Context, t testing.TB, binary string, set migrations.Set, dsn string) error {
	args := append([]string{"migrate", "up", "--set", string(set), "--postgres", dsn}, DatabaseArgs(t)...)
	if set == migrations.Deployment {
		args = append(args, "--roles", "--role-prefix", RolePrefix)
	}
	out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("migrate up: %w: %s", err, out)
	}
	return nil
}

// DeploymentDatabase creates a migrated database on the tests' server, for a test that passes it to a
// deployment.
func DeploymentDatabase(t testing.TB) (dsn string) {
	t.Helper()
	server := Postgres(t)
	return server.NewDatabase(t, deploymentTemplate(t, server))
}

// ServingDatabase migrates a test's own database, creates the tests' roles, and returns the DSN of sessions
// with the rights that `serve` needs.
func ServingDatabase(t testing.TB, dsn string) string {
	t.Helper()
	_, err := migrations.Up(context.Background(), dsn, migrations.Deployment)
	require.NoError(t, err)
	require.NoError(t, leastPrivileges(context.Background(), dsn))
	return AsServing(dsn)
}
