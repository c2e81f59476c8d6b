package harness

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

var binary = sync.OnceValues(func() (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "db-controller-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "db-controller")
	build := exec.Command("go", "build", "-o", path, "./cmd/db-controller")
	build.Dir = strings.TrimSpace(string(root))
	build.Stderr = os.Stderr
	return path, build.Run()
})

// Binary builds the program, once a test process.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	return path
}

// RemoveBinary is for TestMain.
func RemoveBinary() {
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
}

// Processes are a registry and deployments as processes of their own, each deployment with a database and a
// certificate of its own.
type Processes struct {
	*playground.Playground
	Client *client.Client
	// Context is the client file, for the command line.
	Context string
}

// NewProcesses starts the deployments that YAML describes; further arguments are flags of their serve.
func NewProcesses(t testing.TB, services string, args ...string) *Processes {
	t.Helper()
	return NewProcessesWith(t, services, playground.Config{Args: args})
}

// NewProcessesWith is NewProcesses with what a configuration says; folder, program and deployments are not its affair.
func NewProcessesWith(t testing.TB, services string, cfg playground.Config) *Processes {
	t.Helper()
	ctx := context.Background()
	files, err := schema.ParseFile("services.yaml", strings.NewReader(services))
	require.NoError(t, err)
	server := Postgres(t)
	dir := t.TempDir()
	cfg.Dir, cfg.Binary = dir, Binary(t)
	cfg.Database = func(context.Context, string) (string, error) { return server.NewDatabase(t, ""), nil }
	for _, d := range files.Deployments {
		cfg.Deployments = append(cfg.Deployments, d.DeploymentID)
	}
	p, err := playground.New(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Stop() })
	c, err := client.New(client.File{Registry: p.RegistryAddress, Certs: p.ClientCerts()}, "")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	env := wire.EnvironmentProto(&schema.Environment{Regions: files.Regions, Services: files.Services, Deployments: files.Deployments})
	require.NoError(t, p.Start(ctx, func(ctx context.Context) error {
		_, err := c.Registry.Apply(ctx, &registryv1.ApplyRequest{Regions: env.GetRegions(), Services: env.GetServices(), Deployments: env.GetDeployments()})
		return err
	}))
	return &Processes{Playground: p, Client: c, Context: filepath.Join(dir, playground.ClientFile)}
}
