package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Exit codes of the commands (docs/operations.md).
const (
	done        = 0
	failed      = 1
	wrongUsage  = 2
	refused     = 4
	unavailable = 5
)

// badInput is a call of a command with a wrong name, a wrong value, in the wrong order, or for the second
// time; {dir} is an empty folder, {file} an empty file.
type badInput struct {
	args string
	code int
	says string // a part of the output
}

const (
	unknown = "is not registered; known deployments: a.example.com/eastus2, a.example.com/us-west2, b.example.com/eastus2, b.example.com/us-west2"
	noKind  = "fits no kind of a.example.com@v1: its patterns are targets/{target}"
)

// ofInstallation are calls of commands that ask an installation, in this order.
var ofInstallation = []badInput{
	{"get //a.example.com/us-west2/targets/none", refused, "targets/none: not found"},
	{"get //a.example.com/nowhere/targets/t", refused, unknown},
	{"get //a.example.com/us-west2/targetz/t", refused, noKind},
	{"get targets/t", wrongUsage, "want //service/region/name"},
	{"get //a.example.com/us-west2/targets/t -o xml", wrongUsage, "want table, json, yaml or name"},
	{"list a.example.com/us-west2 --page-token x", refused, "page"},
	{"list a.example.com/us-west2 --total --limit 5", wrongUsage, "--total and --limit: want one of them"},
	{
		"removals --root //a.example.com/us-west2/targets/t --since x", wrongUsage,
		"--root and --since: want one of them",
	},
	{"plan //a.example.com/us-west2/targets/t -o name", wrongUsage, "want table, json or yaml"},
	{"list a.example.com/nowhere", refused, unknown},
	{
		"list a.example.com/us-west2 --kind Targetz", refused,
		`unknown kind "Targetz": kinds of a.example.com@v1 are Target`,
	},
	{"list a.example.com/us-west2 --filter x=", refused, "is no filter"},
	{"watch a.example.com/nowhere", refused, unknown},
	{
		"watch a.example.com/us-west2 --from nonsense", refused,
		"--from takes a token of a watch with the same --kind and --filter",
	},
	{"list a.example.com/us-west2 -o names", wrongUsage, "want table, json, yaml or name"},
	{"watch a.example.com/us-west2 --kind Targetz", refused, `unknown kind "Targetz"`},
	{"put //a.example.com/us-west2/targetz/t", refused, noKind},
	{"put //a.example.com/us-west2/targets/t --set nonsense", wrongUsage, "want PATH=VALUE"},
	{
		"put //b.example.com/eastus2/holders/x --set block=//a.example.com/us-west2/targets/none", refused,
		"block: //a.example.com/us-west2/targets/none does not exist",
	},
	{"put -f {file}", wrongUsage, "there is no resource in it"},
	{"put -f {dir}/none", failed, "no such file"},
	{"patch //a.example.com/us-west2/targets/none --set x=1", refused, "targets/none: not found"},
	{"patch //a.example.com/us-west2/targets/t", wrongUsage, "nothing to change"},
	{"patch //a.example.com/us-west2/targets/t --unset x[0]", refused, "x"},
	{"delete //a.example.com/us-west2/targets/none", refused, "targets/none: not found"},
	{
		"delete //a.example.com/us-west2/targets/t", refused,
		"it is referred to by //b.example.com/eastus2/holders/h (block)",
	},
	{"delete //a.example.com/us-west2/targets/t --detach", wrongUsage, "1 change is listed; add --yes to go on"},
	{"delete //a.example.com/us-west2/targets/t --detach=all", wrongUsage, "--detach=all: want unset or delete"},
	{"delete //a.example.com/us-west2/targets/t --yes", wrongUsage, "--yes is for --detach, --orphan and --now"},
	{"delete //a.example.com/us-west2/targets/none --orphan", refused, "targets/none"},
	{
		"delete //a.example.com/us-west2/targets/t //b.example.com/eastus2/holders/h --atomic", wrongUsage,
		"--atomic: want at most 1000 names of one deployment",
	},
	{"delete //a.example.com/us-west2/targets/t --retention 1w", wrongUsage, "want a time such as 7d"},
	// a variable that is not set
	{"delete //a.example.com/us-west2/targets/t --retention=", wrongUsage, "want a time such as 7d"},
	{"delete //a.example.com/us-west2/targets/t --export=", wrongUsage, "--export: want the name of a new file"},
	{"delete //a.example.com/us-west2/targets/t --retention 1h --now", wrongUsage, "want one of them"},
	{
		"delete //a.example.com/us-west2/targets/t //b.example.com/eastus2/holders/h --retention 1d", wrongUsage,
		"--retention: want at most 1000 names of one deployment",
	},
	{"undelete //a.example.com/us-west2/targets/none", refused, "targets/none: not found"},
	{"undelete //a.example.com/us-west2/targets/t", refused, "targets/t is not deleted"},
	{
		"delete //a.example.com/us-west2/targets/t --max-removals -2", wrongUsage,
		"--max-removals -2: want a number of resources",
	},
	{"plan //a.example.com/us-west2/targets/none", refused, "targets/none: not found"},
	{"plan x", wrongUsage, "want //service/region/name"},
	{"explain //a.example.com/us-west2/targets/none", refused, "targets/none: not found"},
	{"explain //a.example.com/nowhere/targets/t", refused, unknown},
	{"referrers //a.example.com/us-west2/targets/none", refused, "targets/none: not found"},
	{"referrers //a.example.com/us-west2/targets/t --limit -1", wrongUsage, "--limit -1: want at least 1"},
	{"removals //a.example.com/us-west2/targets/none", done, "There is no record of a removal"},
	{"removals //a.example.com/us-west2/targets/t --uid x", wrongUsage, "--uid: invalid UUID"},
	{"removals --deletion x", wrongUsage, "--deletion: invalid UUID"},
	{
		"removals --deletion 01a226b2-9991-7465-a0a7-6dce752cb2da", done,
		"There is no record of deletion 01a226b2-9991-7465-a0a7-6dce752cb2da",
	},
	{"removals", wrongUsage, "accepts 1 arg(s)"},
	{"removals --root targets/t", wrongUsage, "--root: "},
	{"removals --root //a.example.com/us-west2/targets/none", refused, "there is no record that a deletion began with"},
	{"removals --request x", wrongUsage, "--request: invalid UUID"},
	{
		"removals --request 01a226b2-9991-7465-a0a7-6dce752cb2da", refused,
		"there is no record of a removal by the request",
	},
	{"removals a.example.com/us-west2 --since x", refused, "cannot be resumed"},
	{"removals //a.example.com/us-west2/targets/t --since x", wrongUsage, "want a domain name in lower case"},
	{"removals --verify {dir}/none", failed, "no such file"},
	{"removals --verify {file}", wrongUsage, "no receipt in JSON"},
	{"purge //a.example.com/us-west2/targets/t", refused, "//a.example.com/us-west2/targets/t exists: delete it"},
	{"purge //a.example.com/us-west2/targets/none", done, "0 changes purged"},
	{"purge targets/t", wrongUsage, "want //service/region/name"},
	{"block-deletion //a.example.com/us-west2/targets/none", refused, "targets/none: not found"},
	{"remove-finalizer //a.example.com/us-west2/targets/none f", refused, "targets/none: not found"},
	{"remove-finalizer //a.example.com/us-west2/targets/t f", refused, "is not being deleted"},
	{"set-status //a.example.com/us-west2/targets/none {}", refused, "targets/none: not found"},
	{"set-status //a.example.com/us-west2/targets/t x", wrongUsage, "the status is neither JSON nor YAML"},
	{"status a.example.com/nowhere", refused, unknown},
	{"status x", wrongUsage, "want service/region"},
	{"stuck a.example.com/nowhere", refused, "is no service and no deployment of the environment"},
	{"stuck --longer -1s", wrongUsage, "want more than 0s"},
	{"stuck --limit 0", wrongUsage, "want at least 1"},
	{"verify a.example.com/nowhere", refused, unknown},
	{"pause a.example.com/nowhere --reason r", refused, unknown},
	{"pause a.example.com/us-west2", wrongUsage, "--reason is missing"},
	{"pause a.example.com/us-west2 --of a.example.com/nowhere --reason r", refused, unknown},
	{"pause a.example.com/us-west2 --handler x --reason r", wrongUsage, "want one of owned-pending"},
	{"resume a.example.com/us-west2 --reason r", done, "nothing has changed: nothing was paused"},
	{"pause a.example.com/us-west2 --reason first", done, "deletes nothing until resume"},
	{"pause a.example.com/us-west2 --reason second", done, "nothing has changed: it was paused before"},
	{"resume a.example.com/us-west2 --handler owned-pending --reason r", done, "nothing has changed"},
	{"resume a.example.com/us-west2 --reason r", done, "deletes again"},
	{"retry a.example.com/us-west2 --of a.example.com/nowhere --reason r", refused, unknown},
	{"retry //a.example.com/us-west2/targets/none --reason r", refused, "targets/none: not found"},
	{"force-release a.example.com/us-west2", wrongUsage, "want //service/region/name"},
	{"force-release //a.example.com/us-west2/targets/none", refused, "targets/none: not found"},
	{"force-release //a.example.com/us-west2/targets/t --key x --reason r", wrongUsage, "--yes"},
	{"force-release //a.example.com/us-west2/targets/t --key x --reason r --yes", wrongUsage, "--key x is no key"},
	{"force-release //a.example.com/us-west2/targets/t --approve /nowhere --yes", wrongUsage, "no such file"},
	{
		"force-release a.example.com/us-west2 --unconfirmed-of b.example.com/eastus2 --reason r --propose /nowhere/file",
		refused, "nothing to sign",
	},
	{
		"force-release a.example.com/us-west2 --comparison-of b.example.com/eastus2 --reason r --approve /nowhere --yes",
		wrongUsage, "leave out --reason",
	},
	{
		"force-release a.example.com/us-west2 --comparison-of b.example.com/eastus2 --reason r --propose /nowhere/file",
		wrongUsage, "--propose wants a new file",
	},
	{"force-release a.example.com/nowhere --comparison-of a.example.com/us-west2 --reason r --yes", refused, unknown},
	{
		"force-release a.example.com/us-west2 --comparison-of a.example.com/nowhere --reason r --yes", refused,
		"a.example.com/nowhere is not registered, and a.example.com/us-west2 does not wait for it",
	},
	{
		"force-release a.example.com/us-west2 --comparison-of b.example.com/eastus2 --reason r --yes", done,
		"nothing has changed",
	},
	{"decommission a.example.com/nowhere --former-database --reason r --yes", refused, unknown},
	{"decommission a.example.com/us-west2 --former-database --reason r", wrongUsage, "--yes"},
	{
		"decommission a.example.com/us-west2 --former-database --blocking UNSET --reason r --yes", wrongUsage,
		"takes no --blocking",
	},
	{
		"force-release a.example.com/us-west2 --comparison-of b.example.com/eastus2 --key x --reason r --yes", wrongUsage,
		"stands alone",
	},
	{"force-release a.example.com/us-west2 --comparison-of= --reason r --yes", wrongUsage, "--comparison-of"},
	{"set-version a.example.com/nowhere v1", refused, unknown},
	{"set-version a.example.com/us-west2 v99", refused, "v99"},
	{"set-version a.example.com v1", wrongUsage, "want service/region"},
	{"set-version a.example.com/us-west2 v1", done, "nothing has changed"},
	{"decommission a.example.com/us-west2 --former-database --approve /nowhere --yes", wrongUsage, "no such file"},
	{"decommission b.example.com/us-west2 --approve /nowhere --yes", wrongUsage, "no such file"},
	{"decommission a.example.com/nowhere --reason r --yes", refused, unknown + "; add --unlisted"},
	{"decommission b.example.com/us-west2 --reason r", wrongUsage, "--yes"},
	{
		"decommission a.example.com/us-west2 --reason r", wrongUsage,
		"b.example.com/eastus2   0        1      0         0      0",
	},
	{"decommission b.example.com/us-west2 --reason r --yes --blocking x", wrongUsage, "want UNSET or CASCADE_DELETE"},
	{
		"remove a.example.com/nowhere", refused,
		"not registered: a.example.com/nowhere: did you mean a.example.com/eastus2?",
	},
	{"remove a.example.com", refused, "did you mean a.example.com@v1?"},
	{"remove a.example.com@v1", refused, "a.example.com/eastus2 runs a.example.com@v1; switch its version first"},
	{"apply {file}", failed, "there is no region, service, deployment or right in it"},
	{"apply {dir}/none", failed, "no such file"},
	{"get environment x", wrongUsage, "unknown command"},
	{"get services a.example.con", refused, "not registered: a.example.con: did you mean a.example.com?"},
	{"get deployments x", wrongUsage, "unknown command"},
	{"get regions x", wrongUsage, "unknown command"},
	{"get kinds a.example.con", refused, "not registered: a.example.con: did you mean a.example.com?"},
	{"get references a.example.con", refused, "not registered: a.example.con: did you mean a.example.com?"},
	{"graph a.example.con", refused, "not registered: a.example.con: did you mean a.example.com?"},
	{
		"doctor a.example.com/us-west9", refused,
		"unknown deployment a.example.com/us-west9: did you mean a.example.com/us-west2?",
	},
	{
		"doctor a.example.com/us-west2 --certificates-within 0s", wrongUsage,
		"--certificates-within 0s: want more than 0s",
	},
	{"graph -o json", wrongUsage, "--output json: want dot or svg"},
	{"get rights x", wrongUsage, "unknown command"},
	{"history --limit 0", wrongUsage, "--limit 0: want at least 1"},
	{"who-can eat //a.example.com/us-west2/targets/t", wrongUsage, "want one of read, write, delete, refer, operate"},
	{"who-can read //a.example.com/nowhere/targets/t", refused, unknown},
	{"console --listen 0.0.0.0:0", wrongUsage, "want a loopback address"},
	{"support-bundle --file {dir}/none/x", failed, "no such file"},
	{
		"decommission b.example.com/us-west2 --reason r --yes", done,
		"b.example.com/us-west2 is decommissioned in the registry",
	},
	{
		"decommission b.example.com/us-west2 --reason r --yes", done,
		"b.example.com/us-west2 is decommissioned in the registry",
	},
	{"set-version b.example.com/us-west2 v1", refused, "is not registered"},
	{"remove b.example.com/us-west2", refused, "not registered"},
}

// alone are calls of commands that ask no installation.
var alone = []badInput{
	{
		"attach {file} --postgres postgres://127.0.0.1:1/x", failed,
		"there is no region, service, deployment or right in it",
	},
	{"attach ../deploy/compose/services.yaml --postgres x", wrongUsage, "not a PostgreSQL connection string"},
	{"attach ../deploy/compose/services.yaml --postgres postgres://127.0.0.1:1/x", unavailable, "connection refused"},
	{"detach --postgres postgres://127.0.0.1:1/x", unavailable, "connection refused"},
	{"scan", wrongUsage, "missing: --dsn NAME=DSN"},
	{"scan --dsn a=x", wrongUsage, "not a PostgreSQL connection string"},
	{"migrate", wrongUsage, "missing: a subcommand: down, rotate-keys, status, up"},
	{"migrate status --postgres postgres://127.0.0.1:1/x", unavailable, "connection refused"},
	{"migrate rotate-keys --postgres postgres://127.0.0.1:1/x", unavailable, "connection refused"},
	{"migrate up --postgres postgres://127.0.0.1:1/x", unavailable, "connection refused"},
	{"migrate down --postgres postgres://127.0.0.1:1/x --reason r --yes", unavailable, "connection refused"},
	{"healthcheck --url x", wrongUsage, "want a URL such as"},
	{"healthcheck --url http://127.0.0.1:1/readyz", failed, "connection refused"},
	{"certs x --dir {dir}/none", wrongUsage, "want deployment/SERVICE/REGION"},
	{"certs revoke x --dir {dir}/none", wrongUsage, "want deployment/SERVICE/REGION"},
	{"certs revoke user/x --dir {dir}/none", wrongUsage, "there is no authority in "},
	{"config", wrongUsage, "missing: a subcommand"},
	{"config schema x", wrongUsage, "there is no output"},
	{"audit-log", wrongUsage, "missing: a subcommand"},
	{"audit-log verify {file}.none", failed, "no such file"},
	{"audit-log verify ../README.md", refused, "line 1: it is not a line of an audit log"},
	{"config print x", wrongUsage, `unknown command "x"`},
	{"validate {file}", failed, "there is no region, service, deployment or right in it"},
	{"dev --scenario {dir}/x", failed, "no such file"},
	{"registry", wrongUsage, "missing: --postgres"},
	{"serve", wrongUsage, "missing: --deployment"},
	{"get //a.example.com/r/targets/t --context {dir}/none", wrongUsage, "does not exist"},
}

// Every command answers a typo, a second call and a call too early as a person can use: with the right exit
// code, the name or the value that is wrong, and no fault of the program. A refused command has made nothing.
func TestEveryCommandAnswersBadInput(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.mustPut(aWest+"targets/t", nil)
	f.mustPut(bEast+"holders/h", fields{"block": aWest + "targets/t"})
	dir := t.TempDir()
	file := filepath.Join(dir, "empty.yaml")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	called := map[string]bool{}
	call := func(of badInput, more ...string) {
		t.Helper()
		args := strings.Fields(strings.NewReplacer("{dir}", dir, "{file}", file).Replace(of.args))
		for n := 1; n <= min(2, len(args)); n++ {
			called[strings.Join(args[:n], " ")] = true
		}
		code, out := exitCode(t, append(args, more...)...)
		require.Equal(t, of.code, code, "%s: %s", of.args, out)
		require.Contains(t, out, of.says, of.args)
		require.NotRegexp(t, `SQLSTATE|goroutine|Internal|internal error`, out, of.args)
		if code != done {
			require.Contains(t, out, "error: ", of.args)
		}
	}
	for _, of := range ofInstallation {
		call(of, "--context", f.Context)
	}
	for _, of := range alone {
		call(of)
	}
	require.NoDirExists(t, filepath.Join(dir, "none"))
	page, err := os.ReadFile("../docs/commands.md")
	require.NoError(t, err)
	headings := regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(headings), 40)
	for _, h := range headings {
		require.True(t, called[h[1]], "%s is called with no bad input", h[1])
	}
}
