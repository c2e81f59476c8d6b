package schema_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func parse(t testing.TB, text string) ([]*schema.Descriptor, error) {
	t.Helper()
	file, err := schema.ParseFile("f.yaml", strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	return file.Services, schema.Check(file.Services)
}

const iam = `
service: iam.example.com
version: v1
kinds:
  - kind: Project
    patterns: ["projects/{project}"]
`

// Every problem names file, line, path and remedy.
func TestDescriptorProblemsNameFileLinePathAndRemedy(t *testing.T) {
	for name, c := range map[string]struct{ yaml, want string }{
		"broken YAML": {"service: [", "f.yaml: line"},
		"no mapping":  {"- a\n", `f.yaml:1: want a mapping, got a list; write key: value pairs`},
		"unknown key": {
			"service: a.example.com\nversion: v1\nkidns: []\n",
			`f.yaml:3: unknown key "kidns"; the keys here are acknowledge, defaults, imports, kinds, patterns_dropped, service, version`,
		},
		"key twice": {
			"service: a.example.com\nservice: b.example.com\nversion: v1\n",
			`f.yaml:2: key "service" is used twice; keep one of them`,
		},
		"missing version": {"service: a.example.com\n", `f.yaml:1: key "version" is missing; add version: ...`},
		"bad service": {
			"service: Iam\nversion: v1\n",
			`f.yaml:1: service "Iam": want a domain name in lower case, such as iam.example.com`,
		},
		"bad version": {
			"service: a.example.com\nversion: one\n",
			`version "one": want a version such as v1, v2 or v2beta1`,
		},
		"bad behaviour": {
			"service: a.example.com\nversion: v1\nkinds:\n  - kind: K\n    patterns: [\"ks/{k}\"]\n    references:\n      - {path: x, targets: [K], behaviour: DROP}\n", `f.yaml:7: kinds[K].references[x].behaviour: behaviour "DROP": want one of BLOCK, UNSET`,
		},
		"missing behaviour": {
			"service: a.example.com\nversion: v1\nkinds:\n  - kind: K\n    patterns: [\"ks/{k}\"]\n    references:\n      - {path: x, targets: [K]}\n", `f.yaml:7: kinds[K].references[x]: behaviour is missing; add the effect on the holder when the target is deleted, such as BLOCK`,
		},
		"unknown kind": {
			iam + "    references:\n      - {path: x, targets: [Robot], behaviour: BLOCK}\n",
			`f.yaml:8: kinds[Project].references[x]: unknown kind iam.example.com/Robot: iam.example.com@v1 has no such kind; its kinds are Project`,
		},
		"without import": {iam +
			"---\nservice: d.example.com\nversion: v1\nkinds:\n  - kind: D\n    patterns: [\"ds/{d}\"]\n    references:\n      - {path: x, targets: [iam.example.com/Project], behaviour: BLOCK}\n", `f.yaml:14: kinds[D].references[x]: d.example.com@v1 refers to iam.example.com/Project, which d.example.com@v1 does not import; add iam.example.com@<version> to imports`},
		"unknown import": {
			"service: a.example.com\nversion: v1\nimports: [b.example.com@v2]\n",
			`f.yaml:3: imports[0]: import b.example.com@v2: there is no descriptor of this version; add its descriptor, or correct the import`,
		},
		"import of itself": {
			"service: a.example.com\nversion: v1\nimports: [a.example.com@v1]\n",
			`a.example.com@v1 imports itself`,
		},
		"import cycle": {
			"service: a.example.com\nversion: v1\nimports: [b.example.com@v1]\n---\nservice: b.example.com\nversion: v1\nimports: [c.example.com@v1]\n---\nservice: c.example.com\nversion: v1\nimports: [a.example.com@v1]\n", `f.yaml:11: imports[0]: imports form a cycle: a.example.com@v1 -> b.example.com@v1 -> c.example.com@v1 -> a.example.com@v1; remove one of these imports`,
		},
		"bad path": {
			iam + "    references:\n      - {path: a..b, targets: [Project], behaviour: BLOCK}\n",
			`path "a..b": segment "": want fields joined by dots`,
		},
		"path twice": {iam +
			"    references:\n      - {path: a, targets: [Project], behaviour: BLOCK}\n      - {path: a, targets: [Project], behaviour: UNSET}\n", `f.yaml:9: kinds[Project].references[a]: path a is listed twice`},
		"bad pattern": {
			"service: a.example.com\nversion: v1\nkinds:\n  - kind: K\n    patterns: [ks]\n",
			`pattern "ks": want collections and {variables} in turn`,
		},
		"overlap": {
			iam + "  - kind: Other\n    patterns: [\"projects/{other}\"]\n",
			`pattern projects/{other} of Other and pattern projects/{project} of Project match the same names`,
		},
		"unset parent": {iam +
			"  - kind: C\n    patterns: [\"projects/{project}/cs/{c}\"]\n    parents: [{kind: Project, behaviour: UNSET}]\n", `UNSET cannot be a parent's behaviour: the parent's name is part of the child's name and cannot be removed from it; use CASCADE_DELETE or BLOCK`},
		"not below parent": {
			iam +
				"  - kind: C\n    patterns: [\"cs/{c}\"]\n    parents: [{kind: Project, behaviour: BLOCK}]\n",
			`no name of C lies below one of Project`,
		},
		"kind twice": {
			iam + "  - kind: Project\n    patterns: [\"ps/{p}\"]\n",
			`kind Project is described twice`,
		},
		"described twice": {iam + "---" + iam, `iam.example.com@v1 is described twice, first at f.yaml:2`},
		"string for list": {
			"service: a.example.com\nversion: v1\nkinds: K\n",
			`f.yaml:3: kinds: want a list, got "K"; write a list`,
		},
		"list for a string": {"service: [a]\nversion: v1\n", `f.yaml:1: service: want a string, got a list`},
		"bad deployment": {
			"regions: [us]\ndeployments: [{deployment: x, version: v1}]\n",
			`deployment "x": want service/region, such as iam.example.com/us-west2`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, c.yaml)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestAllProblemsAreReportedTogether(t *testing.T) {
	_, err := parse(t, "service: Bad\nversion: one\nkinds: [{kind: k, patterns: []}]\n")
	var problems schema.Problems
	require.ErrorAs(t, err, &problems)
	require.Len(t, problems, 4)
}

const devices = iam + `
---
service: devices.example.com
version: v1
imports: [iam.example.com@v1]
kinds:
  - kind: Device
    patterns: ["projects/{project}/devices/{device}"]
    parents: [{kind: iam.example.com/Project, behaviour: CASCADE_DELETE}]
    references:
      - {path: owner.project, targets: [iam.example.com/Project], behaviour: BLOCK}
      - {path: peers.*, targets: [Device], behaviour: UNSET}
      - {path: roles.*.who, targets: [Device, iam.example.com/Project], behaviour: UNSET}
`

func model(t testing.TB) *schema.Model {
	t.Helper()
	descriptors, err := parse(t, devices)
	require.NoError(t, err)
	m, err := schema.NewModel(schema.ServiceVersion{Service: "devices.example.com", Version: "v1"}, descriptors)
	require.NoError(t, err)
	return m
}

var self = schema.DeploymentID{Service: "devices.example.com", Region: "us-west2"}

func TestReferencesAreDerivedFromNestedMessagesListsAndMaps(t *testing.T) {
	kind, err := model(t).KindOf("projects/acme/devices/d1")
	require.NoError(t, err)
	var body map[string]any
	require.NoError(t, json.Unmarshal([]byte(`{
		"owner": {"project": "//iam.example.com/eastus2/projects/p"},
		"peers": ["projects/acme/devices/d2", "//devices.example.com/us-west2/projects/acme/devices/d2", ""],
		"roles": {"b": {"who": "projects/x"}, "a": {"who": "projects/acme/devices/d3"}, "c": null}
	}`), &body))
	found, err := kind.References(self, "projects/acme/devices/d1", body)
	require.NoError(t, err)
	var got []string
	for _, f := range found {
		got = append(got, f.Path+" "+f.Behaviour.String()+" "+f.TargetKind.Kind+" "+f.Target.String())
	}
	require.Equal(t, []string{
		"owner.project BLOCK Project //iam.example.com/eastus2/projects/p",
		// equal values are one reference
		"peers.* UNSET Device //devices.example.com/us-west2/projects/acme/devices/d2",
		"roles.*.who UNSET Device //devices.example.com/us-west2/projects/acme/devices/d3",
		"roles.*.who UNSET Project //iam.example.com/us-west2/projects/x", // relative: the region of the holder
		"@parent CASCADE_DELETE Project //iam.example.com/us-west2/projects/acme",
	}, got)
}

func TestUnsetRemovesExactlyTheGivenValues(t *testing.T) {
	for _, c := range []struct{ path, before, after string }{
		{"a", `{"a":"x","b":1}`, `{"b":1}`},
		{"a", `{"a":"y"}`, `{"a":"y"}`},
		{"a.b", `{"a":{"b":"x","c":2}}`, `{"a":{"c":2}}`},
		{"a.*", `{"a":["x","y","x"]}`, `{"a":["y"]}`},
		{"a.*", `{"a":{"k":"x","l":"y"}}`, `{"a":{"l":"y"}}`},
		{"a.*.b", `{"a":[{"b":"x","c":1},{"b":"y"}]}`, `{"a":[{"c":1},{"b":"y"}]}`},
		{"a.*.b.*", `{"a":{"k":{"b":["x"]}}}`, `{"a":{"k":{"b":[]}}}`},
		{"a.b", `{"a":[1]}`, `{"a":[1]}`},
		{"a.*", `{"a":null}`, `{"a":null}`},
	} {
		path, err := schema.ParsePath(c.path)
		require.NoError(t, err)
		var body map[string]any
		require.NoError(t, json.Unmarshal([]byte(c.before), &body))
		path.Unset(body, func(s string) bool { return s == "x" })
		raw, err := json.Marshal(body)
		require.NoError(t, err)
		require.JSONEq(t, c.after, string(raw), "%s in %s", c.path, c.before)
	}
}

func TestNamesFollowOneGrammar(t *testing.T) {
	for _, good := range []string{
		"projects/a", "projects/A.b_c~d-e", "projects/a/serviceAccounts/b", "projects/-a", "projects/...",
		"projects/.a", "projects/..a/xs/a..",
		"users/auth0%7C5f:1", "users/a@b.example", "keys/ab+c=%2Fd=", "things/!$&'()*+,;=:@", "things/%00%FF%20",
		"things/%25",
		"projects/" + strings.Repeat("a", 503),
	} {
		require.NoError(t, schema.CheckName(good), good)
	}
	for _, bad := range []string{
		"", "projects", "projects/", "/projects/a", "projects//a", "projects/a/", "Projects/a", "projects/a b",
		"projects/a/b", "projects/./xs/a",
		"projects/a\x00", "projects/../x/y", "projects/..", "projects/é", "projects/" + strings.Repeat("a", 504),
		"projects/%", "projects/%4", "projects/%zz", "projects/%2f", "projects/%41", "projects/%2D", "projects/a|b",
		"projects/a?b", "projects/a#b", `projects/a\b`,
	} {
		require.Error(t, schema.CheckName(bad), bad)
	}
	// The error of a wrong spelling has the right one.
	for bad, right := range map[string]string{
		"a b": "a%20b", "a|b": "a%7Cb", "%41b": "Ab", "%2f": "%2F", "50%": "50%25", "é": "%C3%A9", "%C3%a9": "%C3%A9",
		"a?b#c": "a%3Fb%23c",
	} {
		require.ErrorContains(t, schema.CheckName("projects/"+bad), "; write "+right)
		require.NoError(t, schema.CheckName("projects/"+right))
	}
	for _, bad := range []string{
		"//", "//x", "//iam.example.com/us-west2", "//iam.example.com/us-west2/projects",
		"iam.example.com/us-west2/projects/a", "//IAM.example.com/us-west2/projects/a",
	} {
		_, err := schema.ParseFullName(bad)
		require.Error(t, err, bad)
	}
	full := "//iam.example.com/us-west2/projects/a"
	name, err := schema.ParseFullName(full)
	require.NoError(t, err)
	require.Equal(t, full, name.String())
}

func TestInterestedDeploymentsAreThoseOfTheServiceAndItsImportsInAllRegions(t *testing.T) {
	env := &schema.Environment{}
	for _, s := range []string{
		"billing.example.com/us-west2", "devices.example.com/eastus2",
		"iam.example.com/us-west2", "devices.example.com/us-west2",
	} {
		id, err := schema.ParseDeploymentID(s)
		require.NoError(t, err)
		env.Deployments = append(env.Deployments, schema.Deployment{DeploymentID: id, Version: "v1"})
	}
	var got []string
	for _, id := range env.Interested(model(t), nil) {
		got = append(got, id.String())
	}
	require.Equal(t, []string{
		"devices.example.com/eastus2", "devices.example.com/us-west2",
		"iam.example.com/us-west2",
	}, got)
	billing := env.Deployments[0].DeploymentID
	require.Contains(t, env.Interested(model(t), []schema.DeploymentID{billing}), billing,
		"references still point to it")
}

func TestVersionsThatRenameAKindAgreeOnIt(t *testing.T) {
	services, err := parse(t, `
service: a.example.com
version: v1
kinds: [{ kind: One, patterns: ["ones/{x}"] }]
---
service: a.example.com
version: v2
kinds: [{ kind: Two, previous_name: One, patterns: ["ones/{x}"] }]
---
service: a.example.com
version: v3
kinds:
  - { kind: Three, patterns: ["ones/{x}"] } # v2beta1 says what it was
---
service: a.example.com
version: v2beta1
kinds: [{ kind: Three, previous_name: Two, patterns: ["ones/{x}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
`)
	require.NoError(t, err)
	canonical := func(service, version, kind string) string {
		m, err := schema.NewModel(schema.ServiceVersion{Service: service, Version: version}, services)
		require.NoError(t, err)
		return m.Canonical(schema.KindID{Service: "a.example.com", Kind: kind}).Kind
	}
	require.Equal(t, "One", canonical("a.example.com", "v1", "Two"))
	require.Equal(t, "One", canonical("a.example.com", "v1", "Three"))
	require.Equal(t, "Two", canonical("a.example.com", "v2", "One"))
	require.Equal(t, "Three", canonical("a.example.com", "v3", "One"))
	require.Equal(t, "One", canonical("b.example.com", "v1", "Two"), "as the imported version has it")
	require.Equal(t, "Robot", canonical("a.example.com", "v1", "Robot"))
	for text, says := range map[string]string{
		`kinds: [{ kind: A, patterns: ["as/{a}"] }, { kind: B, previous_name: A, patterns: ["bs/{b}"] }]`: "previous_name A is the name, or the previous name, of another kind of this version",
		`kinds: [{ kind: A, patterns: ["as/{a}"] }]
---
service: a.example.com
version: v2
kinds: [{ kind: B, previous_name: A, patterns: ["as/{a}"] }]
---
service: a.example.com
version: v3
kinds: [{ kind: B, patterns: ["as/{a}"] }, { kind: A, patterns: ["others/{a}"] }]`: "B and A of a.example.com@v3 are the same kind, by the previous names in versions of a.example.com; give one of them a name that no version used",
		`kinds: [{ kind: A, previous_name: x, patterns: ["as/{a}"] }]`:                                                                                                         `previous_name: kind "x": want upper camel case`,
		`kinds: [{ kind: A, hide_while_deleting: perhaps, patterns: ["as/{a}"] }]`:                                                                                             `hide_while_deleting: want true or false`,
		`kinds: [{ kind: A, constraints_disabled: true, patterns: ["as/{a}"] }, { kind: B, patterns: ["bs/{b}"], references: [{ path: a, targets: [A], behaviour: BLOCK }] }]`: "nothing can refer to a.example.com/A: its constraints are disabled",
	} {
		_, err := parse(t, "service: a.example.com\nversion: v1\n"+text+"\n")
		require.ErrorContains(t, err, says)
	}
}

// A name in an error is cut between characters.
func TestALongNameInAnErrorStaysReadable(t *testing.T) {
	t.Parallel()
	for n := range 4 {
		_, err := schema.ParseServiceVersion(strings.Repeat("x", n) + strings.Repeat("ß", 300))
		require.Error(t, err)
		require.NotContains(t, err.Error(), `\x`)
	}
}
