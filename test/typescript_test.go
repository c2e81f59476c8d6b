package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

// typescript is a folder with the client of docs/examples, in which programs are compiled and run.
type typescript struct {
	*httpAPI
	dir     string
	compile string // the commands of docs/other-languages.md
}

// iam is the deployment of accounts.
const iam = "//iam.example.com/us-west2/"

func newTypescript(t *testing.T) *typescript {
	t.Helper()
	harness.NeedsTypescript(t)
	ts := &typescript{httpAPI: newHTTPAPI(t, iam, accounts), dir: t.TempDir(), compile: documented(t, "shell")}
	client, err := os.ReadFile("../docs/examples/dbcontroller_client.ts")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(ts.dir, "dbcontroller_client.ts"), client, 0o600))
	return ts
}

// documented returns the only block in a language of docs/other-languages.md.
func documented(t *testing.T, language string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/other-languages.md")
	require.NoError(t, err)
	found := regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllSubmatch(text, -1)
	require.Len(t, found, 1, language)
	return string(found[0][1])
}

// runUntil compiles and runs a program, calls then when it has printed a text, and returns its output.
func (ts *typescript) runUntil(program, text string, then func()) string {
	ts.t.Helper()
	require.NoError(ts.t, os.WriteFile(filepath.Join(ts.dir, "example.ts"), []byte(program), 0o600))
	cmd := exec.CommandContext(ts.t.Context(), "sh", "-eu", "-c", ts.compile)
	cmd.Dir = ts.dir
	cmd.Env = append(os.Environ(), "API="+ts.url, "TOKEN="+ts.token, "NAME=projects/acme",
		"CA="+filepath.Join(ts.ClientCerts(), "ca.crt"))
	return harness.RunUntil(ts.t, cmd, text, then)
}

func TestTheExampleInTypeScript(t *testing.T) {
	t.Parallel()
	ts := newTypescript(t)
	said := ts.runUntil(documented(t, "ts"), "", func() {})
	require.Equal(t,
		"stored projects/acme in iam.example.com/us-west2 with the title Acme\nrefused: NOT_FOUND\ndeleted projects/acme\n", said)
}

// The program prints "writing" when the process may be killed.
const usesTypeScriptClient = `
import { AlreadyExists, Blocked, Client, Invalid, NotFound, Refused, type Resource } from "./dbcontroller_client.js";
declare const process: { argv: string[] };

const [api, token] = process.argv.slice(2);
const client = new Client(api, () => token, 300_000);
const known = new Map<string, string>();
let begun = 0;
let isComplete = () => {};
const complete = new Promise<void>((done) => (isComplete = done));
const last = (async () => {
  for await (const event of client.watch("Account")) {
    if (event.type === "begin") begun++;
    else if (event.type === "end") isComplete();
    else {
      if (event.type === "delete") known.delete(event.resource.name);
      else known.set(event.resource.name, event.resource.revision ?? "");
      if (event.resource.name === "accounts/last") return;
    }
  }
})();
await complete;
const refusal = async (call: Promise<unknown>) => {
  try {
    await call;
  } catch (error) {
    if (error instanceof Refused) console.log(error.name, error.code, error.reason);
    else console.log("not definite", error);
  }
};
await client.put("projects/p", { title: "P" }, { labels: { team: "a" } });
for (let n = 0; n < 40; n++) {
  await client.put("accounts/a" + n, { project: "projects/p" });
  if (n === 5) console.log("writing");
}
await refusal(client.get("accounts/none"));
await refusal(client.put("no name", {}));
await refusal(client.put("projects/p", {}, { revision: "7" }));
await refusal(client.call("POST", "/v1/resources", {}, { name: "projects/p" }));
await refusal(client.delete("projects/p"));
await refusal(client.list("Account", "body.project = ").next());
for (let n = 1; n < 40; n++) await client.delete("accounts/a" + n);
await client.put("accounts/last", {});
await last;
const listed: Resource[] = [];
for await (const r of client.list("Account")) listed.push(r);
console.log(listed.map((r) => r.name).sort().join() === [...known.keys()].sort().join(), known.size, "begun", begun);
console.log([Invalid, NotFound, AlreadyExists, Blocked].every((kind) => kind.prototype instanceof Refused));
`

// A client that shares no code with ours writes while the process of its deployment is killed: each write
// takes effect once, the watch goes on from its token, and refusals have their classes.
func TestTheTypeScriptClientGoesOnOverARestart_I29(t *testing.T) {
	t.Parallel()
	ts := newTypescript(t)
	said := ts.runUntil(usesTypeScriptClient, "writing\n", func() {
		d := ts.Deployments[ts.id(iam+"x/y")]
		require.NoError(t, d.Kill())
		require.NoError(t, d.Start())
	})
	require.Equal(t,
		"writing\nNotFound 5 NOT_FOUND\nInvalid 3 INVALID\nRefused 9 MOVED\nAlreadyExists 6 ALREADY_EXISTS\nBlocked 9 BLOCKED\nInvalid 3 INVALID\ntrue 2 begun 1\ntrue\n", said)
}

// The types of the client are those of the API.
func TestTheTypesOfTheTypeScriptClient(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../internal/gateway/openapi.swagger.json")
	require.NoError(t, err)
	var api struct {
		Definitions map[string]struct{ Properties map[string]any }
	}
	require.NoError(t, json.Unmarshal(raw, &api))
	client, err := os.ReadFile("../docs/examples/dbcontroller_client.ts")
	require.NoError(t, err)
	body := regexp.MustCompile(`(?s)export interface Resource<[^{]*\{\n(.*?)\n\}`).FindSubmatch(client)
	require.NotNil(t, body)
	for _, field := range regexp.MustCompile(`(?m)^  (\w+)\??:`).FindAllSubmatch(body[1], -1) {
		require.Contains(t, api.Definitions["v1.Resource"].Properties, string(field[1]))
	}
}
