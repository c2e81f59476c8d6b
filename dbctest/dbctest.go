package dbctest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/cmd/db-controller/serve"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/wire"
)

// Config of an Installation.
type Config struct {
	// Services has YAML documents, as db-controller apply takes them: services with their kinds, regions,
	// deployments, and rights.
	Services string
	// Postgres is the connection string of a server, as a user who may create databases and roles. Default:
	// the environment variable DBCONTROLLER_TEST_DSN; without it, a server that the tests of this process
	// share is started from the binaries, or the container engine, of this machine.
	Postgres string
	// Args are further flags of each deployment's process (db-controller serve), such as --tentative-ttl=1s.
	Args []string
}

// Installation is a registry with its deployments. It ends with its test.
type Installation struct {
	// Client calls the deployments as an operator.
	Client *client.Client

	t           testing.TB
	dir         string
	authority   *playground.Authority
	server      *server
	registry    *process
	registryAt  string
	deployments map[schema.DeploymentID]*deployment
}

// deployment is a process with the lines to it and to its database.
type deployment struct {
	*process
	dsn          string // with all rights
	calls, store *line
}

// patience bounds a start, and each wait without a deadline of the caller: a machine that does much else is
// slow, and not broken.
const patience = 5 * time.Minute

// New starts an installation, and waits until its deployments run their versions. It fails the test when one
// does not start.
func New(t testing.TB, cfg Config) *Installation {
	t.Helper()
	in, err := newInstallation(t, cfg)
	if err != nil {
		t.Fatalf("dbctest: %v%s", err, in.logs())
	}
	return in
}

// logs are the warnings of all processes, for the message of a failure.
func (in *Installation) logs() (text string) {
	if in == nil {
		return ""
	}
	if in.registry != nil {
		text = "\nthe registry:\n" + in.registry.output()
	}
	for id, d := range in.deployments {
		text += fmt.Sprintf("\n%s:\n%s", id, d.output())
	}
	return text
}

func newInstallation(t testing.TB, cfg Config) (*Installation, error) {
	files, err := schema.ParseFile("services", strings.NewReader(cfg.Services))
	if err != nil {
		return nil, err
	}
	in := &Installation{t: t, dir: t.TempDir(), deployments: map[schema.DeploymentID]*deployment{}}
	if in.authority, err = playground.NewAuthority(); err != nil {
		return nil, err
	}
	if in.server, err = serverOf(t.Context(), cfg.Postgres); err != nil {
		return in, err
	}
	if err := in.startRegistry(files); err != nil {
		return in, err
	}
	for _, d := range files.Deployments {
		if err := in.describe(d.DeploymentID, cfg.Args); err != nil {
			return in, err
		}
	}
	return in, in.ready()
}

// startRegistry starts the registry, and applies the documents.
func (in *Installation) startRegistry(files *schema.File) error {
	dsn, err := in.database(emptyTemplate)
	if err != nil {
		return err
	}
	certs := in.Certs("registry")
	address, err := playground.FreeAddresses(1)
	if err != nil {
		return err
	}
	in.registry = newProcess(serve.NewRegistry, "--postgres", dsn, "--postgres-plaintext", "--certs", certs, "--listen",
		address[0], "--migrate")
	in.t.Cleanup(in.registry.end)
	in.registry.start()
	in.registryAt = address[0]
	in.Client = in.As("operator/dbctest")
	rights := cmp.Or(files.Rights, &schema.Rights{Allow: true})
	env := wire.EnvironmentProto(&schema.Environment{
		Regions: files.Regions, Services: files.Services,
		Deployments: files.Deployments, Rights: rights,
	})
	return in.eventually(func(ctx context.Context) error {
		_, err := in.Client.Registry().Apply(ctx, &registryv1.ApplyRequest{
			Regions: env.GetRegions(), Services: env.GetServices(), Deployments: env.GetDeployments(),
			Rights: env.GetRights(),
		})
		return errors.Join(err, in.registry.problem())
	})
}

// describe makes the database, the certificate and the lines of a deployment, and starts its process.
func (in *Installation) describe(id schema.DeploymentID, args []string) error {
	dsn, err := in.database(deploymentTemplate)
	if err != nil {
		return err
	}
	d := &deployment{dsn: dsn}
	serving, err := d.throughLine(dsn)
	if err != nil {
		return err
	}
	address, err := playground.FreeAddresses(1)
	if err != nil {
		return err
	}
	if d.calls, err = newLine(address[0]); err != nil {
		return err
	}
	in.t.Cleanup(d.calls.close)
	in.t.Cleanup(d.store.close)
	d.process = newProcess(serve.NewServe, append([]string{
		"--deployment", id.String(), "--postgres", serving, "--postgres-plaintext", "--registry",
		in.registry.flag("--listen"),
		"--certs", in.Certs("deployment/" + id.String()), "--listen", address[0], "--advertise", d.calls.address(),
		"--connections", "8", "--stop-timeout", "100ms",
	}, args...)...)
	in.t.Cleanup(d.end)
	in.deployments[id] = d
	d.start()
	return nil
}

// ready waits until each deployment runs its version, knows all others, and takes part in the work.
func (in *Installation) ready() error {
	return in.eventually(func(ctx context.Context) error {
		for id, d := range in.deployments {
			if err := d.problem(); err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
		}
		if err := in.registered(ctx); err != nil { // before the client reads the environment, which it keeps
			return err
		}
		for id := range in.deployments {
			status, err := in.status(ctx, id)
			if err != nil {
				return fmt.Errorf("%s: %w", id, err)
			}
			if len(status.GetProcesses()) == 0 || status.GetVersion() == "" {
				return fmt.Errorf("%s has not joined yet", id)
			}
		}
		return nil
	})
}

// registered fails while the registry lacks the address of a deployment.
func (in *Installation) registered(ctx context.Context) error {
	answer, err := in.Client.Registry().GetEnvironment(ctx, &registryv1.GetEnvironmentRequest{})
	if err != nil {
		return err
	}
	for _, d := range wire.Environment(answer.GetEnvironment()).Deployments {
		if d.Address == "" {
			return fmt.Errorf("%s has not registered yet", d.DeploymentID)
		}
	}
	return nil
}

func (in *Installation) status(ctx context.Context, id schema.DeploymentID) (*adminv1.StatusResponse, error) {
	admin, err := in.Client.Admin(ctx, id)
	if err != nil {
		return nil, err
	}
	return admin.Status(ctx, &adminv1.StatusRequest{})
}

// Certs makes a certificate, and returns its folder. The identity is one of operator/NAME, user/NAME and
// application/SERVICE/NAME.
func (in *Installation) Certs(of string) (folder string) {
	in.t.Helper()
	folder = filepath.Join(in.dir, strings.ReplaceAll(of, "/", "_"))
	id, err := identity.ParsePath("/" + of)
	if err == nil {
		err = in.authority.Issue(folder, id)
	}
	if err != nil {
		in.t.Fatalf("dbctest: %v", err)
	}
	return folder
}

// ClientFile makes a certificate, and returns the path of a client.yaml with it, for programs that the test
// starts.
func (in *Installation) ClientFile(identity string) (path string) {
	in.t.Helper()
	certs := in.Certs(identity)
	path = filepath.Join(certs, "client.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, "registry: %s\ncerts: %s\n", in.registryAt, certs),
		0o600); err != nil {
		in.t.Fatalf("dbctest: %v", err)
	}
	return path
}

// As returns a client of another identity: operator/NAME or user/NAME.
func (in *Installation) As(identity string) *client.Client {
	in.t.Helper()
	c, err := client.Open(in.ClientFile(identity))
	if err != nil {
		in.t.Fatalf("dbctest: %v", err)
	}
	in.t.Cleanup(c.Close)
	return c
}

// DSN returns the connection string of a deployment's database, with all rights.
func (in *Installation) DSN(deployment string) string {
	in.t.Helper()
	return in.deployment(deployment).dsn
}

// ApplicationDSN returns the connection string of a deployment's database, with the rights of an application
// that writes in its own transactions. Grant rights on tables of its own to ApplicationRole.
func (in *Installation) ApplicationDSN(deployment string) string {
	in.t.Helper()
	return withRole(in.deployment(deployment).dsn, ApplicationRole)
}

func (in *Installation) deployment(name string) *deployment {
	in.t.Helper()
	id, err := schema.ParseDeploymentID(name)
	if err != nil {
		in.t.Fatalf("dbctest: %v", err)
	}
	d := in.deployments[id]
	if d == nil {
		in.t.Fatalf("dbctest: there is no deployment %s", name)
	}
	return d
}

// eventually repeats a call until it succeeds, or the time for a start has passed.
func (in *Installation) eventually(call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(in.t.Context(), patience)
	defer cancel()
	for {
		try, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := call(try)
		cancel()
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
