package test

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// run runs the program and returns its output.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	// ends a command that hangs; the demo takes minutes on a busy machine
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Binary(t), args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestDemo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts five processes")
	}
	out, err := run(t, "dev", "--scenario", "demo", "--postgres", harness.Postgres(t).DSN(""))
	require.NoError(t, err, out)
	require.True(t, strings.HasSuffix(out, "demo: ok\n"), out)
}

// A playground drops the databases of an earlier one on the same server; it leaves the databases of a running
// one alone.
func TestTwoPlaygroundsDoNotShareAServer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts two playgrounds")
	}
	server := harness.NewCluster(t)
	other, err := launcher.Start(t.Context(), launcher.Config{DSN: server.DSN("")})
	require.NoError(t, err)
	require.NoError(t, other.Claim(t.Context()))
	require.NoError(t, other.CreateDatabase(t.Context(), "dbc_registry"))
	out, err := run(t, "dev", "--postgres", server.DSN(""), "--dir", t.TempDir())
	require.Error(t, err)
	require.Contains(t, out, "another playground runs on PostgreSQL")
	require.Contains(t, out, "stop it, or use another server with --postgres")
	require.ErrorContains(t, other.CreateDatabase(t.Context(), "dbc_registry"), "already exists")
	require.NoError(t, other.Stop())
	require.NoError(t, other.Claim(t.Context()), "the claim ends with Stop")
	require.NoError(t, other.Stop())
}

func TestAScenarioThatFailsNamesWhatFailed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts five processes")
	}
	file := filepath.Join(t.TempDir(), "s.yaml")
	require.NoError(t,
		os.WriteFile(file,
			[]byte("- put: { name: //iam.example.com/us-west2/projects/a, body: {} }\n  refused: never\n"), 0o600))
	out, err := run(t, "dev", "--scenario", file)
	require.Error(t, err)
	require.Contains(t, out,
		file+
			": step 1 failed: put //iam.example.com/us-west2/projects/a: accepted, although the scenario expects a refusal (never)")
}

func examples(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../cmd/db-controller/dev/examples/services.yaml")
	require.NoError(t, err)
	return string(raw)
}

// As a new user would, by hand: right input works; errors name the mistake, and nothing changes.
func TestTheCommandLine(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts five processes")
	}
	p := harness.NewProcesses(t, examples(t), "--tentative-ttl", "2s")
	ctl := func(args ...string) (string, error) { return run(t, append(args, "--context", p.Context)...) }
	const project, robot = "//iam.example.com/us-west2/projects/acme",
		"//iam.example.com/us-west2/projects/acme/serviceAccounts/robot"
	const fleet, device = "//devices.example.com/eastus2/fleets/north",
		"//devices.example.com/eastus2/fleets/north/devices/d1"

	for _, c := range []struct {
		args []string
		says string // of the error
	}{
		{[]string{"put", project, `{"title": "Acme"}`}, ""},
		{[]string{"put", robot}, ""},
		{[]string{"put", fleet, `{"project": "` + project + `"}`}, ""},
		{[]string{"put", device, `account: ` + robot}, ""},
		{[]string{"get", device, "-o", "yaml"}, ""},
		// Without a body an existing one is not emptied; the fleet is still deleted with its project below.
		{
			[]string{"put", fleet},
			fleet + ` exists, and a put without a body would empty it: give its whole body, or '{}' for none`,
		},
		{[]string{"put", fleet, ""}, `a put without a body would empty it`},
		{[]string{"put", fleet, "# nothing"}, `a put without a body would empty it`},
		{[]string{"put", fleet, "--owner", "Project=" + project}, `a put without a body would empty it`},
		// A typo does not store a resource without its reference.
		{[]string{"put", device, `acount: ` + robot}, `field acount: "` + robot +
			`" is the name of a resource, and Device has no reference there; did you mean account?`},
		{[]string{"list", "devices.example.com/eastus2", "--kind", "Device"}, ""},
		{[]string{"put", "projects/acme"}, `name "projects/acme": want //service/region/name`},
		{
			[]string{"put", "//iam.example.com/us-west2/robots/r"},
			`name "robots/r" fits no kind of iam.example.com@v1: its patterns are projects/{project}, projects/{project}/serviceAccounts/{account} (InvalidArgument)`,
		},
		{[]string{"put", "//iam.example.com/us-west2/projects/a b"}, `id "a b": want letters, digits`},
		{
			[]string{"put", "//iam.example.com/mars/projects/a"},
			`deployment iam.example.com/mars is not registered; known deployments: devices.example.com/eastus2`,
		},
		{
			[]string{"put", fleet, `{"project": "//iam.example.com/us-west2/projects/none"}`},
			`fleets/north: project: //iam.example.com/us-west2/projects/none does not exist (FailedPrecondition)`,
		},
		{
			[]string{"put", fleet, `{"project": 5}`},
			`field project: want the name of a resource as a string, got a number`,
		},
		{[]string{"put", fleet, `{"project": `}, `the body is neither JSON nor YAML with fields`},
		{
			[]string{"list", "iam.example.com/us-west2", "--kind", "Robot"},
			`unknown kind "Robot": kinds of iam.example.com@v1 are Project, ServiceAccount`,
		},
		{[]string{"delete", robot}, `projects/acme/serviceAccounts/robot cannot be deleted: it is referred to by ` +
			device + ` (account) (FailedPrecondition)`},
		{[]string{"get", "//iam.example.com/us-west2/projects/none"}, `projects/none: not found (NotFound)`},
		{[]string{"delete", project, "--wait", "10s"}, ""}, // its accounts are blocked: see below
	} {
		if c.args[0] == "delete" && c.args[1] == project {
			out, err := ctl("delete", device)
			require.NoError(t, err, out)
		}
		out, err := ctl(c.args...)
		if c.says == "" {
			require.NoError(t, err, "%v: %s", c.args, out)
		} else {
			require.Error(t, err, "%v: %s", c.args, out)
			require.Contains(t, out, c.says, "%v", c.args)
		}
	}
	for _, name := range []string{project, robot, fleet} {
		out, err := ctl("get", name)
		require.Error(t, err, out)
		require.Contains(t, out, "not found")
	}
	// Every command accepts every valid name.
	const odd, owned = `//iam.example.com/us-west2/projects/it's,a@b=c*d;$(e)%2F..%2Ff`,
		"//devices.example.com/eastus2/fleets/100%25"
	for _, c := range [][]string{
		{"put", odd, "title: odd"},
		{"put", owned, "--owner", "Project=" + odd},
		{"get", odd},
		{"get", odd, "-o", "yaml"},
		{"explain", odd},
		{"plan", odd},
		{
			"list", "iam.example.com/us-west2", "--filter",
			`name = "` + strings.ReplaceAll(strings.TrimPrefix(odd, "//iam.example.com/us-west2/"), "*", `\\*`) + `"`,
		},
		{"delete", odd, "--wait", "30s"},
		{"removals", odd},
	} {
		out, err := ctl(c...)
		require.NoError(t, err, "%v: %s", c, out)
		if !slices.Contains(c, owned) {
			require.Contains(t, out, strings.TrimPrefix(odd, "//iam.example.com/us-west2/"), "%v", c)
		}
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		out, err := ctl("get", owned)
		require.Error(c, err, out)
		require.Contains(c, out, "not found")
	}, wait.Limit, 100*time.Millisecond)
	audit(t, p)
}

func audit(t *testing.T, p *harness.Processes) {
	t.Helper()
	pools := map[schema.DeploymentID]*pgxpool.Pool{}
	for id, d := range p.Deployments {
		pool, err := pgxpool.New(context.Background(), d.DSN)
		require.NoError(t, err)
		defer pool.Close()
		pools[id] = pool
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.Empty(c, harness.AuditDatabases(t, pools))
	}, wait.Limit, 50*time.Millisecond)
}

func TestHealthAndMetrics(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts five processes")
	}
	p := harness.NewProcesses(t, examples(t))
	id, err := schema.ParseDeploymentID("devices.example.com/eastus2")
	require.NoError(t, err)
	get := func(path string) (int, string) {
		res, err := http.Get(p.Deployments[id].HTTP + path)
		require.NoError(t, err)
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, string(body)
	}
	code, body := get("/livez")
	require.Equal(t, http.StatusOK, code, body)
	// Readiness does not depend on other deployments.
	for other, d := range p.Deployments {
		if other != id {
			require.NoError(t, d.Kill())
		}
	}
	require.NoError(t, p.Registry.Kill())
	code, body = get("/readyz?verbose")
	require.Equal(t, http.StatusOK, code, body)
	require.Equal(t,
		"[+]postgres ok\n[+]schema ok\n[+]version ok\n[+]registered ok\n[+]writes ok\n[+]certificate ok\nreadyz check passed\n", body)
	out, err := run(t, "healthcheck", "--url", p.Deployments[id].HTTP+"/readyz")
	require.NoError(t, err, out)
	want := []string{
		"dbcontroller_outstanding_work_up 1",
		`dbcontroller_watch_lag_seconds{deployment="devices.example.com/eastus2",watch="shadows-0"}`,
		"dbcontroller_watch_primed", "dbcontroller_watch_snapshot_seconds", "dbcontroller_watch_snapshot_objects",
		"grpc_server_handled_total", "go_goroutines",
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) { // the watches are opened while the process is ready already
		_, body := get("/metrics")
		for _, metric := range want {
			require.Contains(c, body, metric)
		}
	}, wait.Limit, 50*time.Millisecond)

	// Without the registry, a process starts from the environment in its database.
	require.NoError(t, p.Deployments[id].Kill())
	require.NoError(t, p.Deployments[id].Start())
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	require.NoError(t, p.Deployments[id].WaitReady(ctx))
}

func TestValidateAndApplyReportMistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := write("good.yaml", examples(t))
	out, err := run(t, "validate", good)
	require.NoError(t, err, out)
	require.Contains(t, out, "devices.example.com@v1: 2 kinds, 5 references, ok")
	bad := write("bad.yaml",
		"service: a.example.com\nversion: v1\nimports: [b.example.com@v1]\n---\nservice: b.example.com\nversion: v1\nimports: [a.example.com@v1]\n")
	out, err = run(t, "validate", bad, write("worse.yaml", "service: c.example.com\nversion: v1\n"))
	require.Error(t, err)
	require.Contains(t, out,
		bad+":7: imports[0]: imports form a cycle: a.example.com@v1 -> b.example.com@v1 -> a.example.com@v1; remove one of these imports")
	require.Contains(t, out, "error: 1 problem")
	if testing.Short() {
		return
	}
	p := harness.NewProcesses(t, examples(t))
	out, err = run(t, "apply", good, "--context", p.Context)
	require.NoError(t, err, out)
	require.Equal(t, "nothing changed\n", out)
	for text, says := range map[string]string{
		"regions: [us-west2]\ndeployments: [{deployment: iam.example.com/us-west2, version: v9}]\n":                                                     "there is no descriptor of iam.example.com@v9; apply its descriptor as well",
		"regions: [us-west2]\ndeployments: [{deployment: iam.example.com/mars, version: v1}]\n":                                                         "unknown region mars; list it under regions",
		"service: iam.example.com\nversion: v1\nkinds: [{kind: P, patterns: [\"ps/{p}\"]}]\n":                                                           "iam.example.com@v1 runs on iam.example.com/eastus2 and cannot change; describe the change as a new version",
		"service: iam.example.com\nversion: v2\nimports: [x.example.com@v1]\n---\nservice: x.example.com\nversion: v1\nimports: [iam.example.com@v2]\n": "imports form a cycle",
	} {
		out, err := run(t, "apply", write("x.yaml", text), "--context", p.Context)
		require.Error(t, err, out)
		require.Contains(t, out, says)
	}
	out, err = run(t, "apply", good, "--context", p.Context)
	require.NoError(t, err, out)
	require.Equal(t, "nothing changed\n", out, "what was refused changed nothing")
}

func TestFlagsComeFromTheEnvironmentAndAFileToo(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte("deploiment: x\n"), 0o600))
	out, err := run(t, "serve", "--config", file)
	require.Error(t, err)
	require.Contains(t, out, `unknown key "deploiment": did you mean deployment?`)
	out, err = run(t, "serve")
	require.Error(t, err)
	require.Contains(t, out,
		"missing: --deployment (service/region), --postgres (DSN of the deployment's own database)")
	require.NoError(t,
		os.WriteFile(file, []byte("deployment: nonsense\npostgres: x\nregistry: x\ncerts: x\nlisten: x\n"), 0o600))
	out, err = run(t, "serve", "--config", file)
	require.Error(t, err)
	require.Contains(t, out, `deployment "nonsense": want service/region`)
	out, err = run(t, "version")
	require.NoError(t, err)
	require.Contains(t, out, "db-controller 0.")
}
