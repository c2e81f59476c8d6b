// Package clusters runs db-controller beside the programs that operators run: Patroni with etcd, HAProxy,
// PgBouncer, pgBackRest and pg_repack.
package clusters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// services are a service that owns targets, and one whose holders block, and cascade. Targets of the east are
// for a second way to a cluster.
const services = `
service: a.example.com
version: v1
kinds:
  - { kind: Target, patterns: ["targets/{target}"] }
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
---
regions: [us-west2, eastus2]
deployments:
  - { deployment: a.example.com/us-west2, version: v1 }
  - { deployment: b.example.com/us-west2, version: v1 }
`

const (
	aWest = "//a.example.com/us-west2/"
	aEast = "//a.example.com/eastus2/"
	bWest = "//b.example.com/us-west2/"
)

type fields = map[string]any

// fixture is a registry and deployments as processes, with helpers for user actions.
type fixture struct {
	t *testing.T
	*harness.Processes
}

func chosen(t *testing.T) {
	t.Helper()
	if os.Getenv("DBCONTROLLER_TEST_CLUSTERS") == "" {
		t.Skip("needs Patroni, etcd, HAProxy, PgBouncer, pgBackRest and pg_repack, and minutes: run make clusters")
	}
}

func id(t *testing.T, deployment string) schema.DeploymentID {
	t.Helper()
	parsed, err := schema.ParseDeploymentID(strings.Trim(deployment, "/"))
	require.NoError(t, err)
	return parsed
}

// start runs the deployments; those in dsns have a database already.
func start(t *testing.T, services string, dsns map[string]string) *fixture {
	t.Helper()
	cfg := playground.Config{
		Databases: playground.Databases{DSNs: map[schema.DeploymentID]string{}},
		Args:      []string{"--tentative-ttl", "1s"},
	}
	for name, dsn := range dsns {
		cfg.Databases.DSNs[id(t, name)] = dsn
	}
	return &fixture{t: t, Processes: harness.NewProcessesWith(t, services, cfg)}
}

func (f *fixture) named(name string) (string, resourcev1.ResourceServiceClient) {
	f.t.Helper()
	full, resources, err := direct.Named(f.t.Context(), f.Client, name)
	require.NoError(f.t, err)
	return full.Name, resources
}

func (f *fixture) put(ctx context.Context, name string, content fields) error {
	f.t.Helper()
	relative, resources := f.named(name)
	body, err := structpb.NewStruct(content)
	require.NoError(f.t, err)
	_, err = resources.PutResource(ctx, &resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{
		Name: relative,
		Body: body,
	}})
	return err
}

func (f *fixture) mustPut(name string, content fields) {
	f.t.Helper()
	require.NoError(f.t, patiently(func() error { return f.put(f.t.Context(), name, content) }))
}

// delete repeats a delete until its answer is definite.
func (f *fixture) delete(name string) error {
	f.t.Helper()
	relative, resources := f.named(name)
	return patiently(func() error {
		_, err := resources.DeleteResource(f.t.Context(), &resourcev1.DeleteResourceRequest{Name: relative})
		return err
	})
}

func (f *fixture) exists(name string) (there bool) {
	f.t.Helper()
	relative, resources := f.named(name)
	require.NoError(f.t, patiently(func() error {
		_, err := resources.GetResource(f.t.Context(), &resourcev1.GetResourceRequest{Name: relative})
		there = err == nil
		if status.Code(err) == codes.NotFound {
			return nil
		}
		return err
	}))
	return there
}

// later reports whether an error is no definite answer.
func later(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Unknown:
		return true
	default:
		return false
	}
}

func patiently(call func() error) error {
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if err := call(); !later(err) || time.Since(began) > wait.Limit {
			return err
		}
	}
}

func (f *fixture) status(t require.TestingT, deployment string) *adminv1.StatusResponse {
	admin, err := f.Client.Admin(f.t.Context(), id(f.t, deployment))
	require.NoError(t, err)
	s, err := admin.Status(f.t.Context(), &adminv1.StatusRequest{})
	require.NoError(t, err)
	return s
}

// agreed waits until a deployment has begun the epoch with this number, and all others have compared their
// references.
func (f *fixture) agreed(deployment string, epoch int64) {
	f.t.Helper()
	require.EventuallyWithT(f.t, func(c *assert.CollectT) {
		e := f.status(c, deployment).GetEpoch()
		require.True(c, e.GetOrdinal() == epoch && !e.GetAwaitingRegistry() && len(e.GetUnconfirmed()) == 0, "%v", e)
	}, wait.Limit, wait.Poll)
}

// settled waits until no deployment has outstanding work, and audits all databases.
func (f *fixture) settled() {
	f.t.Helper()
	pools := map[schema.DeploymentID]*pgxpool.Pool{}
	for deployment, d := range f.Deployments {
		require.EventuallyWithT(f.t, func(c *assert.CollectT) {
			require.Empty(c, f.status(c, deployment.String()).GetOutstanding(), "%s", deployment)
		}, wait.Limit, wait.Poll)
		pool, err := pgxpool.New(f.t.Context(), d.DSN)
		require.NoError(f.t, err)
		defer pool.Close()
		pools[deployment] = pool
	}
	require.EventuallyWithT(f.t, func(c *assert.CollectT) {
		require.Empty(c, harness.AuditDatabases(c, pools))
	}, wait.Limit, wait.Poll)
}

// run runs a command of the program; it returns its output and exit code.
func (f *fixture) run(args ...string) (out string, code int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), wait.Limit)
	defer cancel()
	raw, err := exec.CommandContext(ctx, harness.Binary(f.t), append(args, "--context", f.Context)...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return string(raw), exit.ExitCode()
	}
	require.NoError(f.t, err, "%s", raw)
	return string(raw), 0
}

// verified is when both sides agree.
func (f *fixture) verified() {
	f.t.Helper()
	out, code := f.run("verify")
	require.Zero(f.t, code, out)
	require.Contains(f.t, out, "No differences.")
}

// page returns a page of HTTP with its code: "503 text".
func page(url string) string {
	client := http.Client{Timeout: 2 * time.Second}
	res, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	text, _ := io.ReadAll(res.Body)
	return strconv.Itoa(res.StatusCode) + " " + string(text)
}

// Servers of PostgreSQL refuse root.
func asServer(program string, args ...string) []string {
	as := []string{"setpriv", "--pdeathsig=TERM"}
	if os.Getuid() == 0 {
		as = append(as, "--reuid=postgres", "--regid=postgres", "--init-groups")
	}
	return append(append(as, program), args...)
}

// folder is one that the server's user owns, in memory where there is room.
func folder(t *testing.T) string {
	t.Helper()
	parent := launcher.MemoryFolder()
	if parent == "" {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "dbc-clusters-") // short: sockets are in it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // a test reads logs in it
	if os.Getuid() == 0 {
		server, err := user.Lookup("postgres")
		require.NoError(t, err)
		uid, _ := strconv.Atoi(server.Uid)
		gid, _ := strconv.Atoi(server.Gid)
		require.NoError(t, os.Chown(dir, uid, gid))
	}
	return dir
}

// daemon starts a program as the server's user, until the end of the test.
func daemon(t *testing.T, dir, name, readyURL string, program string, args ...string) *playground.Process {
	t.Helper()
	command := asServer(program, args...)
	p := playground.NewProcess(name, command[0], command[1:], filepath.Join(dir, name+".log"), readyURL)
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = p.Stop()
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, p.Tail())
		}
	})
	return p
}

// execute runs a program as the server's user to its end.
func execute(t *testing.T, program string, args ...string) string {
	t.Helper()
	command := asServer(program, args...)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %v: %s", program, args, out)
	return string(out)
}

func write(t *testing.T, path, format string, args ...any) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o644)) //nolint:gosec // the server's user reads it
	return path
}

func port(address string) string { return address[strings.LastIndex(address, ":")+1:] }
