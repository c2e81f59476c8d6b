package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const aService = "service: a.example.com\nversion: v1\n"

// problems returns the problems of a file, one line each; empty for a valid one.
func problems(t testing.TB, text string) string {
	t.Helper()
	if _, err := parse(t, text); err != nil {
		return err.Error()
	}
	return ""
}

func TestEveryMistakeInADescriptorIsAProblem(t *testing.T) {
	t.Parallel()
	kind := func(fields string) string {
		return aService + "kinds:\n  - { kind: T, patterns: [\"ts/{t}\"] }\n  - { kind: K, patterns: [\"ks/{k}\"]" +
			fields + " }\n"
	}
	child := func(fields string) string {
		return aService +
			"kinds:\n  - { kind: T, patterns: [\"ts/{t}\"] }\n  - { kind: K, patterns: [\"ts/{t}/ks/{k}\"], parents: [{ kind: T" + fields + " }] }\n"
	}
	for text, says := range map[string]string{
		kind(
			", previous_name: T"): "previous_name T is the name, or the previous name, of another kind of this version; give the other kind another name, or remove previous_name",
		kind(
			", previous_name: t"): `previous_name: kind "t": want upper camel case`,
		kind(
			", referable_by: [a.example.com]"): "referable_by lists a.example.com itself; remove it: a service may refer to its own kinds",
		kind(
			", referable_by: [b]"): `referable_by: service "b": want a domain name in lower case`,
		kind(
			", references: [{ path: x, behaviour: BLOCK }]"): "reference x has no target kind; add targets, such as [iam.example.com/Project]",
		kind(
			", references: [{ path: x, targets: [], behaviour: BLOCK }]"): "reference x has no target kind",
		kind(
			", references: [{ path: x, targets: [t], behaviour: BLOCK }]"): `kind "t": want upper camel case`,
		kind(
			", references: [{ path: x, targets: [b/T], behaviour: BLOCK }]"): `service "b": want a domain name in lower case`,
		kind(
			", references: [{ path: x, targets: [U], behaviour: BLOCK }]"): "unknown kind a.example.com/U: a.example.com@v1 has no such kind; its kinds are K, T",
		kind(
			", references: [{ path: '*', targets: [T], behaviour: BLOCK }]"): `path "*": segment "*": want fields joined by dots`,
		kind(
			", references: [{ path: x, targets: [b.example.com/B], behaviour: BLOCK }]"): "a.example.com@v1 refers to b.example.com/B, which a.example.com@v1 does not import; add b.example.com@<version> to imports",
		strings.Replace(kind(""), "ks/{k}", "ts/{k}",
			1): "pattern ts/{k} of K and pattern ts/{t} of T match the same names; use different collections",
		strings.Replace(kind(""), `["ks/{k}"]`, "[]",
			1): "kind K has no name pattern; add patterns, such as projects/{project}",
		strings.Replace(kind(""), `["ks/{k}"]`, `["ks/{k}", "ks/{j}"]`,
			1): "pattern ks/{j} of K and pattern ks/{k} of K match the same names",
		child(
			", behaviour: UNSET"): "UNSET cannot be a parent's behaviour",
		child(
			", behaviour: ASYNC_UNSET"): "ASYNC_UNSET cannot be a parent's behaviour",
		child(
			", behaviour: BLOCK, until: removed }, { kind: T, behaviour: BLOCK"): "kind K has parents with BLOCK, of which some have until; write until: removed at all of them, or at none",
		child(
			", behaviour: CASCADE_DELETE, until: removed"): "with CASCADE_DELETE the target does not wait for the holder; use BLOCK, or remove until",
		kind(", references: [{ path: x, targets: [T], behaviour: BLOCK, until: gone }]"): `until: "gone"`,
		child(
			""): "behaviour is missing; add the effect on the child when the parent is deleted, such as CASCADE_DELETE",
		strings.Replace(child(", behaviour: BLOCK"), "kind: T, behaviour", "kind: K, behaviour",
			1): "no name of K lies below one of K; begin a pattern of K with a pattern of K",
		strings.Replace(child(", behaviour: BLOCK"), "kind: T, behaviour", "kind: Z, behaviour",
			1): "unknown kind a.example.com/Z",
		aService +
			"imports: [b.example.com@v1, b.example.com@v2]\n": "b.example.com is imported twice; import one version of it",
		aService +
			"imports: [b.example.com]\n": "want service@version, such as iam.example.com@v1",
		aService +
			"patterns_dropped: maybe\n": `patterns_dropped: "maybe"; write keep, or refuse`,
		aService +
			"kinds:\n  - { kind: k, patterns: [\"ks/{k}\"] }\n": `kind "k": want upper camel case, such as ServiceAccount`,
		aService +
			"kinds:\n  - { patterns: [\"ks/{k}\"] }\n": `kinds[0]: key "kind" is missing; add kind: ...`,
		aService +
			"kinds:\n  - K\n": `kinds[0]: want a mapping, got "K"; write key: value pairs`,
		aService +
			"kinds:\n": "kinds: want a list, got nothing; write a list: [a, b], or lines that begin with -",
		"regions: us\n":                                     `regions: want a list, got "us"`,
		"deployments: [{ version: v1 }]\n":                  `deployments[0]: key "deployment" is missing`,
		"deployments: [{ deployment: a.example.com/us }]\n": `deployments[a.example.com/us]: key "version" is missing`,
		"deployments: [{ deployment: a.example.com/us, version: v1, disabled: perhaps }]\n": `want true or false, got "perhaps"`,
		"version: v1\n": `key "service" is missing; add service: ...`,
	} {
		require.Contains(t, problems(t, text), says, text)
	}
	require.Empty(t, problems(t, kind(", references: [{ path: x, targets: [T], behaviour: ALLOW_DANGLING }]")))
	require.Empty(t, problems(t, child(", behaviour: CASCADE_DELETE")))
	require.Empty(t, problems(t, child(", behaviour: BLOCK, until: removed }, { kind: T, behaviour: CASCADE_DELETE")))
	require.Empty(t, problems(t, "# nothing\n---\n"))
}

// A reference to a kind of an imported version is checked against that version.
func TestReferencesAreCheckedAgainstTheImportedVersion(t *testing.T) {
	t.Parallel()
	imported := func(v, fields string) string {
		return "---\nservice: b.example.com\nversion: " + v + "\nkinds:\n  - { kind: B, patterns: [\"bs/{b}\"]" +
			fields + " }\n"
	}
	importer := func(v string) string {
		return aService + "imports: [b.example.com@" + v +
			"]\nkinds:\n  - { kind: A, patterns: [\"as/{a}\"], references: [{ path: b, targets: [b.example.com/B], behaviour: BLOCK }] }\n"
	}
	require.Empty(t, problems(t, importer("v1")+imported("v1", "")))
	require.Empty(t, problems(t, importer("v1")+imported("v1", ", referable_by: [a.example.com]")))
	require.Empty(t, problems(t, importer("v1")+imported("v1", "")+imported("v2", ", referable_by: [c.example.com]")),
		"the other version does not count")
	require.Contains(t,
		problems(t, importer("v2")+imported("v1", "")+imported("v2", ", referable_by: [c.example.com]")),
		"b.example.com/B lets only c.example.com refer to it; add a.example.com to its referable_by, or remove the reference")
	require.Contains(t, problems(t, importer("v1")+imported("v1", ", constraints_disabled: true")),
		"nothing can refer to b.example.com/B: its constraints are disabled; remove the reference, or constraints_disabled from B")
	require.Contains(t, problems(t, importer("v3")+imported("v1", "")),
		"import b.example.com@v3: there is no descriptor of this version")
	require.Contains(t, problems(t, importer("v1")+"---\nservice: b.example.com\nversion: v1\n"),
		"unknown kind b.example.com/B: b.example.com@v1 has no such kind")
}

// A cycle of imports is reported once, with the way around.
func TestCyclesOfImportsAreReported(t *testing.T) {
	t.Parallel()
	service := func(name string, imports ...string) string {
		return fmt.Sprintf("service: %s.example.com\nversion: v1\nimports: [%s]\n---\n", name,
			strings.Join(imports, ", "))
	}
	at := func(names ...string) (out []string) {
		for _, n := range names {
			out = append(out, n+".example.com@v1")
		}
		return out
	}
	found := problems(t, service("a", at("b")...)+service("b", at("c")...)+service("c", at("b")...))
	require.Contains(t, found,
		"imports form a cycle: b.example.com@v1 -> c.example.com@v1 -> b.example.com@v1; remove one of these imports")
	require.Equal(t, 1, strings.Count(found, "form a cycle"))
	require.Empty(t, problems(t, service("a", at("b", "c")...)+service("b", at("d")...)+service("c", at("d")...)+
		service("d")), "two ways to a version are no cycle")
}

// Two names of one kind cannot be two kinds in another version.
func TestNamesOfOneKindStayTogether(t *testing.T) {
	t.Parallel()
	version := func(v string, kinds ...string) string {
		text := "service: a.example.com\nversion: " + v + "\nkinds:\n"
		for i, k := range kinds {
			text += fmt.Sprintf("  - { kind: %s, patterns: [\"k%ds/{k}\"] }\n", k, i)
		}
		return text + "---\n"
	}
	require.Empty(t, problems(t, version("v1", "A")+version("v2", "B, previous_name: A")+version("v3",
		"C, previous_name: B")))
	require.Contains(t, problems(t, version("v1", "A", "B")+version("v2", "B, previous_name: A")),
		"are the same kind, by the previous names in versions of a.example.com; give one of them a name that no version used")
	require.Contains(t, problems(t, version("v1", "A")+version("v2", "B, previous_name: A")+version("v3",
		"C, previous_name: B", "A")), "are the same kind")
	require.Contains(t, problems(t, version("v2", "B, previous_name: A", "C, previous_name: A")),
		"previous_name A is the name, or the previous name, of another kind of this version")
}

func TestTheErrorOfAnUndeclaredReferenceHasItsRemedy(t *testing.T) {
	t.Parallel()
	m := one(t, `
  - { kind: A, patterns: ["as/{a}"], references: [{ path: spec.owner, targets: [B], behaviour: BLOCK }] }
  - { kind: B, patterns: ["bs/{b}"] }
`)
	a, err := m.Kind("A")
	require.NoError(t, err)
	value := map[string]any{"spec": map[string]any{"ownr": "//a.example.com/us/bs/b"}}
	require.EqualError(t, a.CheckUndeclared(value, nil),
		`field spec.ownr: "//a.example.com/us/bs/b" is the name of a resource, and A has no reference there; did you mean spec.owner? If not, declare a reference for the field in a version of the service`)
	b, err := m.Kind("B")
	require.NoError(t, err)
	require.EqualError(t, b.CheckUndeclared(value, nil),
		`field spec.ownr: "//a.example.com/us/bs/b" is the name of a resource, and B has no reference there; declare a reference for the field in a version of the service`)
	require.NoError(t, b.CheckUndeclared(value, map[string]any{"elsewhere": "//a.example.com/us/bs/b"}),
		"a stored name may move")
}
