package test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// away is a registry and one deployment over a PostgreSQL server that a test stops and starts.
type away struct {
	t      *testing.T
	server *harness.Cluster
	line   *harness.Proxy
	dir    string
	// Of the registry's process and the deployment's.
	registry, deployment     *playground.Process
	registryAt, deploymentAt string
	http                     map[*playground.Process]string // their --http
}

func newAway(t *testing.T, startTimeout string) *away {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	a := &away{t: t, server: harness.NewCluster(t), dir: t.TempDir()}
	a.server.CreateDatabase("registry")
	a.server.CreateDatabase("own")
	a.line = harness.NewProxy(t, a.server.Address())
	out, err := run(t, "certs", "--dir", a.dir, "registry", "deployment/a.example.com/us-west2", "operator/ann")
	require.NoError(t, err, out)
	addresses, err := playground.FreeAddresses(4)
	require.NoError(t, err)
	a.registryAt, a.deploymentAt = addresses[0], addresses[2]
	a.registry = a.process("registry", addresses[1], "registry", "--postgres", a.dsn("registry"), "--certs",
		a.certs("registry"),
		"--listen", a.registryAt, "--http", addresses[1], "--migrate", "--start-timeout", startTimeout)
	a.deployment = a.process("deployment", addresses[3], "serve", "--deployment", "a.example.com/us-west2",
		"--postgres", a.dsn("own"),
		"--registry", a.registryAt, "--certs", a.certs("deployment_a.example.com_us-west2"), "--lease", "1s",
		"--listen", a.deploymentAt, "--http", addresses[3], "--migrate", "--start-timeout", startTimeout)
	a.http = map[*playground.Process]string{a.registry: addresses[1], a.deployment: addresses[3]}
	return a
}

func (a *away) certs(name string) string { return filepath.Join(a.dir, name) }

func (a *away) dsn(database string) string {
	dsn, err := url.Parse(a.server.DSN(database))
	require.NoError(a.t, err)
	dsn.Host = a.line.Address()
	return dsn.String()
}

func (a *away) process(name, http string, args ...string) *playground.Process {
	p := playground.NewProcess(name, harness.Binary(a.t), args, filepath.Join(a.dir, name+".log"),
		"http://"+http+"/readyz")
	a.t.Cleanup(func() { _ = p.Kill() })
	return p
}

// back starts the server again.
func (a *away) back() {
	a.server.Start()
	a.line.Move(a.server.Address())
}

func (a *away) ready(p *playground.Process) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), wait.Limit)
	defer cancel()
	require.NoError(a.t, p.WaitReady(ctx), p.Tail())
}

// said returns the log lines of a process since a moment.
func (a *away) said(p *playground.Process, since int) []string {
	a.t.Helper()
	raw, err := os.ReadFile(p.Log())
	require.NoError(a.t, err)
	return strings.Split(strings.TrimSpace(string(raw)), "\n")[since:]
}

func (a *away) apply() {
	a.t.Helper()
	file := filepath.Join(a.dir, "a.yaml")
	require.NoError(a.t, os.WriteFile(file, []byte(`
service: a.example.com
version: v1
kinds: [{kind: Target, patterns: ["targets/{target}"]}]
---
regions: [us-west2]
deployments: [{deployment: a.example.com/us-west2, version: v1}]
`), 0o600))
	context := filepath.Join(a.dir, "client.yaml")
	require.NoError(a.t, os.WriteFile(context, []byte("registry: "+a.registryAt+"\ncerts: "+a.certs("operator_ann")+
		"\n"), 0o600))
	out, err := run(a.t, "apply", file, "--context", context)
	require.NoError(a.t, err, out)
}

func (a *away) dial(address string, expected identity.Identity) *grpc.ClientConn {
	a.t.Helper()
	credentials, err := identity.Load(identity.InDir(a.certs("operator_ann")))
	require.NoError(a.t, err)
	conn, err := grpc.NewClient(address, credentials.DialOptions(expected)...)
	require.NoError(a.t, err)
	a.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// PostgreSQL starts after the processes that need it: both wait, log the reason, and continue.
func TestAStartWaitsForPostgreSQL(t *testing.T) {
	t.Parallel()
	a := newAway(t, "2m")
	a.server.Stop()
	for _, p := range []*playground.Process{a.registry, a.deployment} {
		require.NoError(t, p.Start())
		require.Eventually(t, func() bool {
			return strings.Contains(strings.Join(a.said(p, 0), "\n"), "waiting to be ready")
		}, wait.Limit, poll, p.Tail())
		require.Contains(t, p.Tail(), "postgres: ")
	}
	a.back()
	a.ready(a.registry)
	a.apply()
	a.ready(a.deployment)
}

// A process that waits for its database is observed from its first moment on: it lives, it is not ready and
// says why, and a metric says that it has not started.
func TestAProcessIsObservedWhileItStarts(t *testing.T) {
	t.Parallel()
	a := newAway(t, "2m")
	a.server.Stop()
	get := func(p *playground.Process, path string) (int, string) {
		res, err := http.Get("http://" + a.http[p] + path) //nolint:noctx // a test
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, string(text)
	}
	for _, p := range []*playground.Process{a.registry, a.deployment} {
		require.NoError(t, p.Start())
		require.Eventually(t, func() bool {
			code, text := get(p, "/readyz")
			return code == http.StatusServiceUnavailable &&
				text == "[-]start: waiting for postgres\nreadyz check failed\n"
		}, wait.Limit, poll, p.Tail())
		code, text := get(p, "/livez")
		require.Equal(t, http.StatusOK, code, text)
		_, metrics := get(p, "/metrics")
		require.Contains(t, metrics, "\ndbcontroller_started 0\n")
		require.Contains(t, metrics, "\ndbcontroller_build_info{")
	}
	a.back()
	a.ready(a.registry)
	require.Eventually(t, func() bool {
		code, text := get(a.deployment, "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(text, "[+]postgres ok\n") &&
			strings.Contains(text, "[-]registered failed\n")
	}, wait.Limit, poll, "the registry has no environment: %s", a.deployment.Tail())
	_, metrics := get(a.deployment, "/metrics")
	require.Contains(t, metrics, "\ndbcontroller_started 0\n")
	a.apply()
	a.ready(a.deployment)
	for _, p := range []*playground.Process{a.registry, a.deployment} {
		require.Eventually(t, func() bool {
			_, metrics := get(p, "/metrics")
			return strings.Contains(metrics, "\ndbcontroller_started 1\n")
		}, wait.Limit, poll)
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, metrics := get(a.registry, "/metrics")
		for _, series := range []string{
			`deployments{state="registered"} 1`, `deployments{state="awaited"} 0`,
			"complete 1", "followers 1", "revision ",
		} {
			require.Contains(c, metrics, "\ndbcontroller_registry_"+series)
		}
	}, wait.Limit, poll)
}

// A start that waits too long ends with the reason; one with a wrong password ends at once.
func TestAStartWithoutPostgreSQLEndsAndSaysWhy(t *testing.T) {
	t.Parallel()
	a := newAway(t, "1s")
	wrong, err := url.Parse(a.dsn("registry"))
	require.NoError(t, err)
	wrong.User = url.UserPassword(wrong.User.Username(), "no-such-password")
	out, err := run(t, "registry", "--postgres", wrong.String(), "--certs", a.certs("registry"), "--listen",
		"127.0.0.1:0", "--start-timeout", "1000h")
	require.Error(t, err)
	require.Contains(t, out, "password authentication failed")
	require.NotContains(t, out, "no-such-password")
	a.server.Stop()
	for _, args := range [][]string{
		{"registry", "--certs", a.certs("registry")},
		{
			"serve", "--certs", a.certs("deployment_a.example.com_us-west2"), "--deployment", "a.example.com/us-west2",
			"--registry", a.registryAt,
		},
	} {
		out, err := run(t, append(args, "--postgres", a.dsn("own"), "--listen", "127.0.0.1:0",
			"--start-timeout", "1s")...)
		require.Error(t, err)
		require.Contains(t, out, "not ready after 1s (--start-timeout): postgres: ")
	}
}

// While PostgreSQL cannot be reached every call returns UNAVAILABLE, and the log has one line for the outage
// and one for its end.
func TestADatabaseOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	a := newAway(t, "1m")
	require.NoError(t, a.registry.Start())
	a.ready(a.registry)
	a.apply()
	require.NoError(t, a.deployment.Start())
	a.ready(a.deployment)
	registry := registryv1.NewRegistryServiceClient(a.dial(a.registryAt,
		identity.Identity{Role: identity.RoleRegistry}))
	selfClient := resourcev1.NewResourceServiceClient(a.dial(a.deploymentAt,
		identity.Deployment(schema.DeploymentID{Service: "a.example.com", Region: "us-west2"})))
	before := map[*playground.Process]int{}
	for _, p := range []*playground.Process{a.registry, a.deployment} {
		before[p] = len(a.said(p, 0))
	}
	a.server.Stop()
	for range 200 {
		_, err := registry.GetEnvironment(t.Context(), &registryv1.GetEnvironmentRequest{})
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		_, err = selfClient.GetResource(t.Context(), &resourcev1.GetResourceRequest{Name: "targets/t"})
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	}
	tick := time.NewTicker(3 * time.Second) // in which leases are renewed and work is tried again
	defer tick.Stop()
	<-tick.C
	a.back()
	for p, since := range before {
		a.ready(p)
		require.Eventually(t, func() bool {
			return strings.Contains(strings.Join(a.said(p, since), "\n"), "the database is available again")
		}, wait.Limit, 50*time.Millisecond, p.Tail())
		lines := a.said(p, since)
		text := strings.Join(lines, "\n")
		require.Equal(t, 1, strings.Count(text, "the database is unavailable"), text)
		require.NotContains(t, text, `"level":"error"`)
		// which may end after the first readiness
		ofStart := func(line string) bool { return strings.Contains(line, `"msg":"open to"`) }
		require.Less(t, len(slices.DeleteFunc(lines, ofStart)), 12, text)
	}
	for _, p := range []*playground.Process{a.deployment, a.registry} {
		require.NoError(t, p.Stop())
		a.hasOneStory(p)
	}
}

// hasOneStory checks the log of a process that has ended: each line is an object in which no key is repeated,
// the first one has the build and the settings without passwords, and the last ones the end.
func (a *away) hasOneStory(p *playground.Process) {
	a.t.Helper()
	lines := a.said(p, 0)
	for _, line := range lines {
		keys, in := map[string]bool{}, json.NewDecoder(strings.NewReader(line))
		_, err := in.Token() // {
		require.NoError(a.t, err, line)
		for in.More() {
			key, err := in.Token()
			require.NoError(a.t, err, line)
			require.False(a.t, keys[key.(string)], "%v is repeated: %s", key, line)
			keys[key.(string)] = true
			require.NoError(a.t, in.Decode(new(any)), line)
		}
	}
	first := lines[0]
	require.Contains(a.t, first, `"msg":"starting"`)
	require.Contains(a.t, first, `"build":"db-controller `)
	require.Contains(a.t, first, `"start-timeout":"1m0s"`)
	if secret := a.password(); secret != "" {
		require.NotContains(a.t, first, secret)
	}
	end := strings.Join(lines[len(lines)-min(8, len(lines)):], "\n")
	require.Contains(a.t, end, `"msg":"stopping"`)
	require.Contains(a.t, lines[len(lines)-1], `"msg":"stopped"`)
}

func (a *away) password() string {
	dsn, err := url.Parse(a.dsn("own"))
	require.NoError(a.t, err)
	secret, _ := dsn.User.Password()
	return secret
}

// The database was migrated and the grants of the roles were not: the process is not ready, and reports the
// remedy. Its tables cannot be removed while it uses them.
func TestReadyNeedsTheSchemaAndTheRights(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d := f.Deployments[f.id(aWest+"targets/t")]
	conn, err := pgx.Connect(t.Context(), d.DSN)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	health := func() string {
		res, err := http.Get(d.HTTP + "/readyz?verbose")
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return string(text)
	}
	for _, c := range []struct{ take, give, says string }{
		{
			"REVOKE INSERT ON dbcontroller.cause FROM dbcontroller_box_api, dbcontroller_box_controller",
			"GRANT INSERT ON dbcontroller.cause TO dbcontroller_box_api, dbcontroller_box_controller",
			"[-]schema: the database is not ready: its user lacks INSERT on dbcontroller.cause: run `db-controller migrate up --set deployment --roles`",
		},
		{
			"UPDATE dbcontroller_migrations.deployment SET is_applied = false WHERE version_id > 0",
			"UPDATE dbcontroller_migrations.deployment SET is_applied = true",
			"[-]schema: the database is not ready: it lacks migration 0",
		},
	} {
		_, err = conn.Exec(t.Context(), c.take)
		require.NoError(t, err)
		f.eventually("it says so", func() bool { return strings.Contains(health(), c.says) })
		require.Equal(t, 0.0, f.metric(aWest+"targets/t", `dbcontroller_ready{reason="schema"}`))
		if told := f.statusFor(t, f.id(aWest+"targets/t").String()).GetNotReady(); assert.Len(t, told, 1,
			"status says what readyz says") {
			require.Contains(t, "[-]"+told[0].GetCheck()+": "+told[0].GetReason(), c.says)
		}
		_, err = conn.Exec(t.Context(), c.give)
		require.NoError(t, err)
		f.eventually("it is ready again", func() bool { return strings.Contains(health(), "readyz check passed") })
	}
	down := append([]string{"migrate", "down", "--postgres", d.DSN}, harness.DatabaseArgs(t)...)
	out, err := run(t, down...)
	require.Error(t, err)
	require.Contains(t, out, "--reason is missing")
	out, err = run(t, append(down, "--reason", "to see")...)
	require.Error(t, err)
	require.Contains(t, out, "add --yes to continue")
	code, out := exitCode(t, append(down, "--reason", "to see", "--yes")...)
	require.Equal(t, 4, code)
	require.Contains(t, out, "processes of this database are running")
	out, err = run(t, append([]string{"migrate", "rotate-keys", "--postgres", d.DSN}, harness.DatabaseArgs(t)...)...)
	require.NoError(t, err, out)
	require.Equal(t, "resume tokens have a new key; the one before is accepted until the next rotation\n", out)
	f.mustPut(aWest+"targets/t", nil)
	f.mustDelete(aWest + "targets/t")

	require.NoError(t, d.Stop())
	out, err = run(t, append(down, "--reason", "to see", "--yes")...)
	require.NoError(t, err, out)
	require.Contains(t, out, "undid 0")
	out, err = run(t, append([]string{"migrate", "status", "--postgres", d.DSN}, harness.DatabaseArgs(t)...)...)
	require.NoError(t, err, out)
	require.Contains(t, out, ": to see\n")

	code, out = exitCode(t, append([]string{
		"serve", "--deployment", "a.example.com/us-west2", "--postgres", d.DSN, "--registry", f.RegistryAddress,
		"--certs", d.Certs, "--listen", "127.0.0.1:0",
	}, harness.DatabaseArgs(t)...)...)
	require.Equal(t, 4, code, "a database that lacks a migration: the same start is refused again")
	require.Contains(t, out, "the database is not ready: it lacks migration 0")
}
