package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
	"github.com/db-controller/db-controller/test/stub"
	"github.com/db-controller/db-controller/test/wait"
)

// ran is the outcome of a command.
type ran struct {
	code        int
	out, errOut string
}

// command runs a command with an empty standard input.
func command(t *testing.T, args ...string) ran { return commandWith(t, "", args...) }

func commandWith(t *testing.T, stdin string, args ...string) ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	var out, errOut bytes.Buffer
	code := run(ctx, args, strings.NewReader(stdin), &out, &errOut)
	checkDocuments(t, args, out.String())
	return ran{code, out.String(), errOut.String()}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	names := [][]string{
		{},
		{"certs", "revoke"},
		{"migrate", "up"},
		{"migrate", "down"},
		{"migrate", "status"},
		{"migrate", "rotate-keys"},
	}
	for _, c := range newRoot().Commands() {
		names = append(names, []string{c.Name()})
	}
	require.Greater(t, len(names), 25)
	for _, name := range names {
		got := command(t, append(name, "--help")...)
		require.Zero(t, got.code, "%v: %s", name, got.errOut)
		require.Empty(t, got.errOut, name)
		require.Contains(t, got.out, "Usage:\n  db-controller", name)
	}
}

func TestTheVersionIsPrinted(t *testing.T) {
	t.Parallel()
	got := command(t, "version")
	require.Zero(t, got.code)
	require.True(t, strings.HasPrefix(got.out, "db-controller "+cli.Version), got.out)
	require.Empty(t, got.errOut)
}

// A wrong command line exits with 2, prints no result, and names the wrong flag or argument with the valid
// values.
func TestWrongArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	server := []string{"--postgres", "postgres://localhost/x", "--certs", "x", "--listen", "127.0.0.1:0"}
	serve := append([]string{"serve", "--deployment", "iam.example.com/us-west2", "--registry", "localhost:1"},
		server...)
	with := func(args []string, more ...string) []string { return append(append([]string{}, args...), more...) }
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"destroy"}, `unknown command "destroy"`},
		{[]string{"get"}, "requires at least 1 arg(s), only received 0; usage: db-controller get NAME..."},
		{
			[]string{"certs", "revoke"},
			"requires at least 1 arg(s), only received 0; usage: db-controller certs revoke IDENTITY...",
		},
		{[]string{"migrate", "up", "now"}, "; usage: db-controller migrate up"},
		{[]string{"get", "a", "--context", "/nonexistent/client.yaml"}, `"a": want //`},
		{[]string{"put", "a", "{}", "--context", "/nonexistent/client.yaml"}, `"a": want //`},
		{[]string{"list", "iam", "--context", "/nonexistent/client.yaml"}, `deployment "iam": want service/region`},
		{[]string{"get", "--frobnicate"}, "unknown flag: --frobnicate"},
		{[]string{"migrate", "up", "--role"}, "unknown flag: --role: did you mean --roles?"},
		{
			[]string{"delete", acmeName, "--wait"},
			"flag needs an argument: --wait: want a duration with its unit, such as 30s or 5m",
		},
		{
			[]string{"migrate", "up", "--postgres", "postgres://127.0.0.1/x", "--role-prefix", "iam"},
			"--role-prefix is for --roles, which is missing",
		},
		{[]string{"get", "//a.example.com/r/ps/p", "-o", "xml"}, "--output xml: want table, json, yaml or name"},
		{
			[]string{"get", "//a.example.com/r/ps/p", "--context", "/nonexistent/client.yaml"},
			"/nonexistent/client.yaml does not exist: start `db-controller dev`",
		},
		{[]string{"validate"}, "requires at least 1 arg(s)"},
		{[]string{"validate", "x.yaml", "-o", "xml"}, "--output xml: want table, json or yaml"},
		{[]string{"destroy", "x"}, `unknown command "destroy"`},
		{[]string{"lst"}, `unknown command "lst" for "db-controller": did you mean list?`},
		{[]string{"migrate", "upp"}, `unknown command "upp" for "db-controller migrate": did you mean up?`},
		{[]string{"migrate", "sideways"}, `want down, rotate-keys, status, up`},
		{[]string{"put"}, "give the full name of a resource, or a file with resources by -f"},
		{[]string{"put", "-f", "x", "--set", "a=1"}, "--set needs the full name of a resource"},
		{[]string{"delete"}, "requires at least 1 arg(s)"},
		{[]string{"delete", "-f", "x", acmeName}, "; usage: "},
		{
			[]string{"delete", acmeName, "--timeout", "-1s", "--context", stub.New(t, stub.Services{}).Context},
			"--timeout -1s",
		},
		{[]string{"status"}, "accepts 1 arg(s), received 0"},
		{[]string{"status", "--all", "a.example.com/r"}, "; usage: "},
		{
			[]string{"serve"},
			"missing: --deployment (service/region), --postgres (DSN of the deployment's own database), --registry (host:port of the registry",
		},
		{[]string{"registry"}, "missing: --postgres (DSN of the registry's database), --certs"},
		{with(serve, "--deployment", "iam"), `deployment "iam": want service/region`},
		{with(serve, "--lease", "10ms"), "--lease 10ms: want at least 1s"},
		{with(serve, "--audit-rate", "0"), "--audit-rate 0: want at least 1; --audit-interval 0 turns audits off"},
		{with(serve, "--removals-kept", "1h"), "--removals-kept 1h0m0s: want at least 168h"},
		{with(serve, "--pprof", "0.0.0.0:6060"), "--pprof: 0.0.0.0:6060: want a loopback address"},
		{with(serve, "--log-level", "loud"), "--log-level: "},
		{
			with(serve, "--postgres", "postgres://db.example.org/x"),
			"--postgres: the connection to PostgreSQL at db.example.org would be unencrypted",
		},
		{with(serve, "--nodes", "many"), `invalid argument "many" for "--nodes" flag`},
		{with(serve, "--nodes", "-1"), "--nodes -1: want 1 to 64"},
		{with(serve, "--nodes", "65"), "--nodes 65: want 1 to 64"},
		{with(serve, "--owner-grace", "-5m"), "--owner-grace -5m0s: want more than 0s"},
		{with(serve, "--tentative-ttl", "-1s"), "--tentative-ttl -1s: want more than 0s"},
		{with(serve, "--max-blocking", "-1"), "--max-blocking -1: want more than 0"},
		{with(serve, "--audit-interval", "-1s"), "--audit-interval -1s: want more than 0s"},
		{with(serve, "--stop-timeout", "-1s"), "--stop-timeout -1s: want 0s to 1h"},
		{with(serve, "--start-timeout", "0s"), "--start-timeout 0s: want more than 0s"},
		{with(serve, "--connections", "1"), "--connections 1: want 4 to 1000"},
		{
			with(serve, "--listen", ":7101"),
			"--listen :7101 is no address at which other deployments reach this one: give --advertise host:port",
		},
		{with(serve, "--listen", "[::]:7101"), "--listen [::]:7101 is no address"},
		{with(serve, "--listen", "7101"), "--listen 7101: want host:port"},
		{with(serve, "--http", "localhost"), "--http localhost: want host:port"},
		{
			with([]string{"registry"}, with(server, "--pprof", "example.org:1")...),
			"--pprof: example.org:1: want a loopback address",
		},
		{[]string{"migrate", "up"}, "missing: --postgres (DSN of the database)"},
		{[]string{"migrate", "up", "--postgres", "x", "--set", "other"}, "--set other: want deployment or registry"},
		{[]string{"migrate", "down", "--postgres", "postgres://localhost/x"}, "--reason is missing"},
		{[]string{"migrate", "down", "--postgres", "postgres://localhost/x", "--reason", "r"}, "--yes"},
		{[]string{"decommission", "iam.example.com/us-west2"}, "--reason is missing"},
		{[]string{"decommission", "iam.example.com/us-west2", "--reason", "r"}, "--yes"},
		{[]string{"decommission", "iam.example.com/us-west2", "--former-database", "--reason", "r"}, "--yes"},
		{[]string{"certs", "--dir", t.TempDir(), "somebody"}, "somebody"},
		{[]string{"certs", "--dir", t.TempDir(), "host/a b"}, `identity "host/a b": want host/NAME`},
	} {
		got := command(t, c.args...)
		require.Equal(t, cli.WrongUsage, got.code, "%v: %s", c.args, got.errOut)
		require.Contains(t, got.errOut, "error: ", "%v", c.args)
		require.Contains(t, got.errOut, c.says, "%v", c.args)
		require.Empty(t, got.out, "%v", c.args)
	}
}

// A file that cannot be read is no wrong command line.
func TestMissingFilesExitWithOne(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"validate", "/nonexistent.yaml"},
		{"put", "-f", "/nonexistent.yaml", "--context", stub.New(t, stub.Services{}).Context},
		{
			"serve", "--deployment", "iam.example.com/us-west2", "--registry", "localhost:1", "--postgres",
			"postgres://localhost/x", "--certs", "/nonexistent", "--listen", "127.0.0.1:0",
		},
	} {
		got := command(t, args...)
		require.Equal(t, cli.Failed, got.code, "%v", args)
		require.Contains(t, got.errOut, "no such file or directory")
	}
}

// All wrong flags of a server are reported together.
func TestAServerReportsAllWrongFlags(t *testing.T) {
	t.Parallel()
	got := command(t, "serve", "--deployment", "a.example.com/r", "--postgres", "postgres://db.example.org/x",
		"--registry", "x", "--certs", "x", "--listen", "x",
		"--lease", "1ms", "--audit-rate", "-1")
	require.Equal(t, cli.WrongUsage, got.code)
	for _, flag := range []string{"--postgres: ", "--lease 1ms: ", "--audit-rate -1: "} {
		require.Contains(t, got.errOut, flag)
	}
}

func TestFlagsAreReadFromTheFileAndTheEnvironment(t *testing.T) {
	file := write(t, "url: http://127.0.0.1:1/file\n")
	got := command(t, "healthcheck", "--config", file)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errOut, "http://127.0.0.1:1/file")
	t.Setenv("DBCONTROLLER_URL", "http://127.0.0.1:1/environment")
	require.Contains(t, command(t, "healthcheck", "--config", file).errOut, "http://127.0.0.1:1/environment")
	require.Contains(t, command(t, "healthcheck", "--config", file, "--url", "http://127.0.0.1:1/flag").errOut,
		"http://127.0.0.1:1/flag")
	got = command(t, "healthcheck", "--config", write(t, "ulr: x\n"))
	require.Equal(t, cli.WrongUsage, got.code)
	require.Contains(t, got.errOut, `unknown key "ulr": did you mean url?`)
}

func TestHealthcheckExitsWithOneUntilTheProcessIsReady(t *testing.T) {
	t.Parallel()
	var code int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.True(t, r.URL.Query().Has("verbose"))
		w.WriteHeader(code)
		_, _ = fmt.Fprintln(w, "[-]version: switching")
	}))
	defer server.Close()
	code = http.StatusServiceUnavailable
	require.Equal(t, ran{1, "[-]version: switching\n", "error: not ready: 503 service unavailable\n"},
		command(t, "healthcheck", "--url", server.URL))
	code = http.StatusOK
	require.Equal(t, ran{0, "[-]version: switching\n", ""}, command(t, "healthcheck", "--url", server.URL))
}

const twoKinds = `service: iam.example.com
version: v1
kinds:
  - { kind: Project, patterns: ["projects/{project}"] }
  - { kind: Account, patterns: ["accounts/{account}"], references: [{ path: project, targets: [iam.example.com/Project], behaviour: BLOCK }] }
`

func TestValidateSummarisesServices(t *testing.T) {
	t.Parallel()
	got := command(t, "validate", write(t, twoKinds))
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "iam.example.com@v1: 2 kinds, 1 reference, ok\n")
	got = command(t, "validate", "-o", "json", write(t, twoKinds))
	require.Zero(t, got.code, got.errOut)
	var answer struct {
		Services []struct {
			Service           string
			Kinds, References int
		}
		Findings []map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(got.out), &answer))
	require.Equal(t, "iam.example.com", answer.Services[0].Service)
	require.Equal(t, 2, answer.Services[0].Kinds)
	require.NotNil(t, answer.Findings)
}

// A descriptor that cannot be applied is exit code 1, with the place of each problem.
func TestValidateNamesProblemsWithTheirLines(t *testing.T) {
	t.Parallel()
	file := write(t, strings.Replace(twoKinds, "behaviour: BLOCK", "behaviour: BLOK", 1))
	got := command(t, "validate", file)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errOut, file+":5: ")
	require.Contains(t, got.errOut, "error: 1 problem\n")
	got = command(t, "validate", "-o", "json", file)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.out, `"level": "problem"`)
}

// With --strict, warnings that the descriptor does not acknowledge are exit code 3.
func TestValidateStrictExitsWithThreeOnWarnings(t *testing.T) {
	t.Parallel()
	file := write(t, `service: iam.example.com
version: v1
kinds:
  - { kind: Project, patterns: ["projects/{project}"] }
  - { kind: Account, patterns: ["accounts/{account}"], references: [{ path: project, targets: [iam.example.com/Project], behaviour: CASCADE_DELETE }] }
  - { kind: Device, patterns: ["devices/{device}"], references: [{ path: account, targets: [iam.example.com/Account], behaviour: BLOCK }] }
`)
	require.Zero(t, command(t, "validate", file).code)
	got := command(t, "validate", "--strict", file)
	require.Equal(t, cli.Findings, got.code, got.out+got.errOut)
	require.Contains(t, got.errOut, "1 warning not acknowledged")
}

// The descriptor in README.md is valid as it stands there.
func TestTheDescriptorOfTheReadmeIsValid(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(raw), "\n## How a reference is declared\n")
	require.True(t, found)
	var lines []string
	for line := range strings.Lines(section) {
		code, ok := strings.CutPrefix(line, "    ")
		if !ok && strings.TrimSpace(line) != "" {
			break
		}
		lines = append(lines, code)
	}
	got := command(t, "validate", "--strict", write(t, strings.Join(lines, "")))
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "devices.example.com@v1: 1 kind, 1 reference, ok\n")
	require.Contains(t, got.out, "iam.example.com@v1: 1 kind, ")
}

func TestCertsWritesAFolderForEachIdentity(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "certs")
	got := command(t, "certs", "--dir", dir, "deployment/iam.example.com/us-west2", "operator/alice", "registry",
		"host/db.example.org")
	require.Zero(t, got.code, got.errOut)
	require.Contains(t, got.out, "trust domain example.org, valid for 30 days\n")
	for _, folder := range []string{
		"deployment_iam.example.com_us-west2", "operator_alice", "registry",
		"host_db.example.org",
	} {
		for _, file := range []string{"tls.crt", "tls.key", "ca.crt"} {
			require.FileExists(t, filepath.Join(dir, folder, file))
		}
	}
	got = command(t, "certs", "revoke", "--dir", dir, "operator/alice")
	require.Zero(t, got.code, got.errOut)
	require.FileExists(t, filepath.Join(dir, "registry", "ca.crl"))
	got = command(t, "certs", "--dir", dir, "--trust-domain", "other.org", "operator/bob")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errOut, "is of trust domain example.org, not other.org: use another folder")
}

// project serves projects/acme, blocks its deletion, and stores resources that are put.
type project struct {
	resourcev1.UnimplementedResourceServiceServer
	put chan *resourcev1.Resource
}

func acme() *resourcev1.Resource {
	body, _ := structpb.NewStruct(map[string]any{"title": "Acme"})
	return &resourcev1.Resource{
		Name: "projects/acme", Deployment: "iam.example.com/us-west2", Kind: "Project", Uid: "u1", Revision: 7,
		State: resourcev1.Resource_STATE_ACTIVE, Body: body,
		CreateTime: timestamppb.New(time.Now().Add(-72 * time.Hour)),
	}
}

func (r *project) GetResource(_ context.Context, req *resourcev1.GetResourceRequest) (*resourcev1.Resource, error) {
	if req.GetName() != "projects/acme" {
		return nil, status.Errorf(codes.NotFound, "%s: not found", req.GetName())
	}
	return acme(), nil
}

// ListResources has three resources, in pages of two at most; the token is the number of those before.
func (r *project) ListResources(_ context.Context,
	req *resourcev1.ListResourcesRequest,
) (*resourcev1.ListResourcesResponse, error) {
	out, before := &resourcev1.ListResourcesResponse{}, len(req.GetPageToken())
	for len(out.GetResources()) < min(2, int(req.GetPageSize())) && before < 3 {
		out.Resources = append(out.Resources, acme())
		before++
	}
	if full := len(out.GetResources()) == int(req.GetPageSize()); before < 3 || full && before == 3 {
		out.NextPageToken = strings.Repeat("x", before)
	}
	return out, nil
}

func (r *project) CreateResource(context.Context, *resourcev1.CreateResourceRequest) (*resourcev1.Resource, error) {
	return nil, status.Error(codes.AlreadyExists, "exists")
}

func (r *project) PutResource(_ context.Context, req *resourcev1.PutResourceRequest) (*resourcev1.Resource, error) {
	r.put <- req.GetResource()
	return acme(), nil
}

func (r *project) UpdateResourceStatus(_ context.Context,
	req *resourcev1.UpdateResourceStatusRequest,
) (*resourcev1.Resource, error) {
	stored := acme()
	stored.Status, stored.StatusGeneration = req.GetStatus(), 4
	r.put <- stored
	return stored, nil
}

func (r *project) DeleteResource(context.Context,
	*resourcev1.DeleteResourceRequest,
) (*resourcev1.DeleteResourceResponse, error) {
	return nil, status.Error(codes.FailedPrecondition,
		"projects/acme cannot be deleted: it is referred to by //d/r/devices/d1 (account)")
}

func (r *project) PlanDeletion(context.Context,
	*resourcev1.PlanDeletionRequest,
) (*resourcev1.PlanDeletionResponse, error) {
	return &resourcev1.PlanDeletionResponse{Accepted: true, Groups: []*resourcev1.PlanDeletionResponse_Group{
		{
			Deployment: "iam.example.com/us-west2", Kind: "Project", Count: 1,
			Samples: []string{"//iam.example.com/us-west2/projects/acme"}, Parent: -1,
		},
		{
			Deployment: "iam.example.com/us-west2", Kind: "Account", Count: 3, Path: "@parent",
			Samples: []string{"//iam.example.com/us-west2/projects/acme/accounts/a"},
		},
	}}, nil
}

// registry accepts every file.
type registry struct {
	registryv1.UnimplementedRegistryServiceServer
}

func (registry) Apply(_ context.Context, req *registryv1.ApplyRequest) (*registryv1.ApplyResponse, error) {
	if len(req.GetServices()) == 0 {
		return &registryv1.ApplyResponse{}, nil
	}
	return &registryv1.ApplyResponse{Changes: []string{"service iam.example.com@v1: created"}}, nil
}

const acmeName = "//iam.example.com/us-west2/projects/acme"

func TestResourcesAreShownAsTableJSONAndYAML(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Resources: &project{}}).Context}
	got := command(t, append(at, "get", acmeName)...)
	require.Equal(t, 0, got.code, got.errOut)
	require.Equal(t, "NAME                                      KIND     STATE   REVISION  AGE\n"+acmeName+
		"  Project  ACTIVE  7         3d\n", got.out)
	got = command(t, append(at, "get", acmeName, "-o", "json")...)
	require.Zero(t, got.code, got.errOut)
	var object map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.out), &object))
	require.Equal(t, []any{acmeName, "ACTIVE"}, []any{object["name"], object["state"]})
	got = command(t, append(at, "get", acmeName, "-o", "yaml")...)
	require.Zero(t, got.code, got.errOut)
	require.NoError(t, yaml.Unmarshal([]byte(got.out), &object))
	require.Equal(t, map[string]any{"title": "Acme"}, object["body"])
}

// Existing resources are shown, and a missing one is an error.
func TestGetShowsWhatExistsAndFailsForTheRest(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Resources: &project{}}).Context}
	got := command(t, append(at, "get", acmeName, "//iam.example.com/us-west2/projects/none")...)
	require.Equal(t, cli.Refused, got.code)
	require.Contains(t, got.out, "projects/acme  Project")
	require.Equal(t, "error: //iam.example.com/us-west2/projects/none: not found (NotFound)\n", got.errOut)
	const none, neither = "//iam.example.com/us-west2/projects/none", "//iam.example.com/us-west2/projects/neither"
	got = command(t, append(at, "get", none, neither)...)
	require.Equal(t,
		ran{
			cli.Refused, "",
			"error: //iam.example.com/us-west2/projects/none: not found (NotFound)\n//iam.example.com/us-west2/projects/neither: not found (NotFound)\n",
		}, got, "no table without rows")
}

func TestListSaysThatThereAreMore(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Resources: &project{}}).Context}
	got := command(t, append(at, "list", "iam.example.com/us-west2", "--limit", "2")...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, 3, strings.Count(got.out, "\n"), got.out)
	require.Equal(t, "there are more resources: use --limit 20, or --page-token xx\n", got.errOut)
	got = command(t, append(at, "list", "iam.example.com/us-west2", "--page-token", "xx", "-o", "name")...)
	require.Equal(t, ran{0, acmeName + "\n", ""}, got)
	got = command(t, append(at, "list", "iam.example.com/us-west2", "--limit", "3", "-o", "name")...)
	require.Equal(t, ran{0, strings.Repeat(acmeName+"\n", 3), ""}, got, "the last page is full: there are no more")
	require.Equal(t, ran{0, "3\n", ""}, command(t, append(at, "list", "iam.example.com/us-west2", "--total")...))
	require.JSONEq(t, `{"total": 3}`, command(t, append(at, "list", "iam.example.com/us-west2", "--total", "-o",
		"json")...).out)
	got = command(t, append(at, "list", "iam.example.com/us-west2", "-o", "name")...)
	require.Equal(t, ran{0, strings.Repeat(acmeName+"\n", 3), ""}, got)
	got = command(t, append(at, "list", "iam.example.com/us-west2", "--limit", "0")...)
	require.Equal(t, cli.WrongUsage, got.code)
	require.Contains(t, got.errOut, "--limit 0: want at least 1")
}

// A body is an argument, a file or standard input; a put without a body only creates.
func TestPutReadsTheBody(t *testing.T) {
	t.Parallel()
	served := &project{put: make(chan *resourcev1.Resource, 1)} // one: the test receives after each command
	at := []string{"--context", stub.New(t, stub.Services{Resources: served}).Context, "put", acmeName}
	for _, c := range []struct {
		stdin string
		args  []string
	}{
		{"", []string{"title: Acme"}},
		{"", []string{"-f", write(t, `{"title": "Acme"}`)}},
		{"title: Acme\n", []string{"-f", "-"}},
	} {
		got := commandWith(t, c.stdin, append(at, c.args...)...)
		require.Zero(t, got.code, got.errOut)
		require.Equal(t, "Acme", (<-served.put).GetBody().GetFields()["title"].GetStringValue())
	}
	got := command(t, at...)
	require.Equal(t, cli.Refused, got.code)
	require.Contains(t, got.errOut, "exists, and a put without a body would empty it")
	for says, args := range map[string][]string{
		"give the body as an argument or in a file, not both": {"a: 1", "-f", "x"},
		"the body is neither JSON nor YAML with fields":       {"[1]"},
		"the body has more than one YAML document":            {"a: 1\n---\nb: 2"},
		"field body.n: 12345678901234567890 has more digits":  {"n: 12345678901234567890"},
		"field body.d: YAML parses it as a date":              {"d: 2020-01-01"},
		"--owner Project: want KIND=NAME":                     {"a: 1", "--owner", "Project"},
	} {
		got := command(t, append(at, args...)...)
		require.Equal(t, cli.WrongUsage, got.code, says)
		require.Contains(t, got.errOut, says)
	}
}

// A status is given as a body is: JSON or YAML, as an argument, a file or standard input.
func TestSetStatusReadsTheStatus(t *testing.T) {
	t.Parallel()
	served := &project{put: make(chan *resourcev1.Resource, 1)}
	at := []string{"--context", stub.New(t, stub.Services{Resources: served}).Context, "set-status", acmeName}
	for _, c := range []struct {
		stdin string
		args  []string
	}{
		{"", []string{"phase: ready"}},
		{"", []string{`{"phase": "ready"}`}},
		{"", []string{"-f", write(t, "phase: ready\n")}},
		{"phase: ready\n", []string{"-f", "-"}},
	} {
		got := commandWith(t, c.stdin, append(at, c.args...)...)
		require.Zero(t, got.code, got.errOut)
		require.Equal(t, "ready", (<-served.put).GetStatus().GetFields()["phase"].GetStringValue())
		require.Equal(t, acmeName+" has status generation 4\n", got.out)
	}
	for says, args := range map[string][]string{
		"give the status as an argument or in a file, not both": {"a: 1", "-f", "x"},
		"the status is neither JSON nor YAML with fields":       {"[1]"},
		"'{}' for one without fields":                           {},
		"field status.n: 12345678901234567890 has more digits":  {"n: 12345678901234567890"},
	} {
		got := command(t, append(at, args...)...)
		require.Equal(t, cli.WrongUsage, got.code, says)
		require.Contains(t, got.errOut, says)
	}
}

func TestARefusedDeleteSaysTheReason(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Resources: &project{}}).Context}
	got := command(t, append(at, "delete", acmeName)...)
	require.Equal(t, cli.Refused, got.code)
	require.Equal(t,
		"error: //iam.example.com/us-west2/projects/acme cannot be deleted: it is referred to by //d/r/devices/d1 (account) (FailedPrecondition)\n", got.errOut)
}

func TestAPlanIsATree(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Resources: &project{}}).Context}
	const want = `//iam.example.com/us-west2/projects/acme  Project
└─ 3 Account deleted in iam.example.com/us-west2 (parent): projects/acme/accounts/a, and 2 more

A delete would be accepted: 4 deleted, 0 unset.
`
	require.Equal(t, ran{0, want, ""}, command(t, append(at, "plan", acmeName)...))
	require.Equal(t, ran{0, want, ""}, command(t, append(at, "delete", "--dry-run", acmeName)...))
}

func TestApplyPrintsTheChanges(t *testing.T) {
	t.Parallel()
	at := []string{"--context", stub.New(t, stub.Services{Registry: registry{}}).Context}
	require.Equal(t, ran{0, "service iam.example.com@v1: created\n", ""},
		command(t, append(at, "apply", write(t, twoKinds))...))
	require.Equal(t, ran{0, "nothing changed\n", ""},
		command(t, append(at, "apply", write(t, "regions: [us-west2]\n"))...))
}

// A command ends with its context, without an error that the user has not caused.
func TestAServerThatWaitsForItsDatabaseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.Zero(t, command(t, "certs", "--dir", dir, "registry").code)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var out, errOut bytes.Buffer
	code := run(ctx, []string{
		"registry", "--postgres", "postgres://127.0.0.1:1/x", "--certs",
		filepath.Join(dir, "registry"), "--listen", "127.0.0.1:0",
	}, nil, &out, &errOut)
	require.Zero(t, code, errOut.String())
	require.Contains(t, errOut.String(), `"msg":"waiting to be ready"`)
}

// A registry with the certificate of another identity would serve, but no client would believe it.
func TestTheRegistryRefusesTheCertificateOfAnother(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.Zero(t, command(t, "certs", "--dir", dir, "operator/ann").code)
	got := command(t, "registry", "--postgres", "postgres://127.0.0.1:1/x", "--certs",
		filepath.Join(dir, "operator_ann"), "--listen", "127.0.0.1:0")
	require.Equal(t, cli.Failed, got.code)
	require.Contains(t, got.errOut, "has the identity operator/ann, not registry: nobody would believe this process")
}
