package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func TestAServiceHasDefaultsForItsKinds(t *testing.T) {
	const kinds = `kinds:
  - { kind: A, patterns: ["as/{a}"] }
  - { kind: B, patterns: ["bs/{b}"], hide_while_deleting: false, referable_by: [] }
  - { kind: C, patterns: ["cs/{c}"], referable_by: [c.example.com] }
`
	const defaults = "defaults: { hide_while_deleting: true, referable_by: [b.example.com] }\n"
	const head = "service: a.example.com\nversion: v1\n"
	for _, text := range []string{head + defaults + kinds, head + kinds + defaults} {
		services, err := parse(t,
			text+"---\nservice: b.example.com\nversion: v1\nkinds: [{ kind: D, patterns: [\"ds/{d}\"] }]\n")
		require.NoError(t, err)
		var got []any
		for _, d := range services {
			for _, k := range d.Kinds {
				got = append(got, k.Name, k.HideWhileDeleting, k.ReferableBy)
			}
		}
		require.Equal(t, []any{
			"A", true,
			[]string{"b.example.com"},
			"B", false, []string(nil),
			"C", true,
			[]string{"c.example.com"},
			"D", false, []string(nil), // of another document
		}, got)
	}
	for bad, says := range map[string]string{
		"defaults: { hide_while_deletin: true }\n": `f.yaml:3: defaults: unknown key "hide_while_deletin"; the keys here are constraints_disabled, delegation, deletion, hide_while_deleting, referable_by`,
		"defaults: { hide_while_deleting: 5 }\n":   `f.yaml:3: defaults.hide_while_deleting: want true or false, got "5"`,
		"defaults: { delegation: some }\n":         `f.yaml:3: defaults.delegation: "some"; write none, or all (the default)`,
		"defaults: { deletion: some }\n":           `f.yaml:3: defaults.deletion: "some"; write atomic, or cascade (the default)`,
		"defaults: { patterns: [] }\n":             `unknown key "patterns"`,
		"defaults: []\n":                           `f.yaml:3: defaults: want a mapping, got a list`,
	} {
		_, err := parse(t, head+bad)
		require.ErrorContains(t, err, says)
	}
}

func TestAnchorsAliasesAndMergeKeysMeanWhatYAMLSays(t *testing.T) {
	services, err := parse(t, `
x-common:
  hidden: &hidden { hide_while_deleting: true }
  below: &below
    <<: *hidden
    parents: &parents
      - { kind: A, behaviour: &cascade CASCADE_DELETE }
service: &me a.example.com
version: v1
kinds:
  - { kind: A, patterns: &as ["as/{a}"] }
  - { <<: *below, kind: B, patterns: ["as/{a}/bs/{b}"] }
  - <<: [*below, { hide_while_deleting: false, referable_by: [c.example.com] }]
    kind: C
    patterns: ["as/{a}/cs/{c}"]
    references: [{ path: a, targets: [A], behaviour: *cascade }]
  - { kind: D, patterns: ["as/{a}/ds/{d}"], parents: *parents, hide_while_deleting: false, <<: *hidden }
---
service: b.example.com
version: v1
kinds:
  - &kind { kind: A, patterns: ["as/{a}"] }
`)
	require.NoError(t, err)
	var got []any
	for _, k := range services[0].Kinds {
		got = append(got, k.Name, k.HideWhileDeleting, len(k.Parents), k.Pos.Path)
	}
	require.Equal(t, []any{
		"A", false, 0, "kinds[A]", "B", true, 1, "kinds[B]", "C", true, 1, "kinds[C]", "D", false, 1,
		"kinds[D]",
	}, got)
	require.Equal(t, []string{"c.example.com"}, services[0].Kinds[2].ReferableBy)
	require.Equal(t, schema.CascadeDelete, services[0].Kinds[2].References[0].Behaviour)
	require.Equal(t, schema.CascadeDelete, services[0].Kinds[3].Parents[0].Behaviour)
}

// A problem behind an alias has the line of the text, and the path of the place where it is used.
func TestProblemsBehindAliasesNameTheirLines(t *testing.T) {
	const head = "service: a.example.com\nversion: v1\n"
	for text, says := range map[string]string{
		"x-a: &a\n  hide_while_deletin: true\nkinds:\n  - { <<: *a, kind: K, patterns: [\"ks/{k}\"] }\n":                     `f.yaml:4: kinds[K]: unknown key "hide_while_deletin"; the keys here are`,
		"x-a: &a\n  hide_while_deleting: 5\nkinds:\n  - { <<: *a, kind: K, patterns: [\"ks/{k}\"] }\n":                       `f.yaml:4: kinds[K].hide_while_deleting: want true or false, got "5"`,
		"x-a: &a\n  parents:\n    - { kind: K, behaviour: DROP }\nkinds:\n  - { <<: *a, kind: K, patterns: [\"ks/{k}\"] }\n": `f.yaml:5: kinds[K].parents[K].behaviour: behaviour "DROP"`,
		"x-b: &b DROP\nkinds:\n  - kind: K\n    references: [{ path: x, targets: [K], behaviour: *b }]\n":                    `f.yaml:3: kinds[K].references[x].behaviour: behaviour "DROP"`,
		"x-a: &a { kind: K, kind: L }\nkinds:\n  - <<: *a\n":                                                                 `f.yaml:3: kinds[K]: key "kind" is used twice`,
		"kinds:\n  - <<: 5\n    kind: K\n":                     `f.yaml:4: kinds[K]: want a mapping, got "5"; merge a mapping: <<: *anchor`,
		"kinds:\n  - &a\n    kind: K\n    <<: *a\n":            `a mapping is merged into itself; remove its alias from it`,
		"kinds: &a [*a]\n":                                     `f.yaml:3: kinds[0]: want a mapping, got a list`,
		"kinds:\n  - { \"<<\": {}, kind: K }\n":                `f.yaml:4: kinds[K]: unknown key "<<"`,
		"kinds:\n  - { kind: K, x-a: 5 }\n":                    `unknown key "x-a"`,
		"x-a: &a 5\nkinds: *a\n":                               `f.yaml:4: kinds: want a list, got "5"`,
		"x-a: &a { patterns: [\"ks/{k}\"] }\nkinds:\n  - *a\n": `f.yaml:5: kinds[0]: key "kind" is missing`,
	} {
		_, err := parse(t, head+text)
		require.ErrorContains(t, err, says, text)
	}
}

// A short file with aliases of aliases can have very many nodes.
func TestAliasesAreBounded(t *testing.T) {
	many := func(alias string) string { return "[" + strings.Repeat("*"+alias+", ", 999) + "*" + alias + "]" }
	bomb := "x-t: &t \"a.example.com/A\"\nx-ts: &ts " + many("t") +
		"\nx-r: &r { path: a, behaviour: BLOCK, targets: *ts }\nx-rs: &rs " + many("r") +
		"\nx-k: &k { kind: A, patterns: [\"as/{a}\"], references: *rs }\n"
	merges := "x-0: &a0 { kind: A }\n"
	for i := range 30 {
		merges += fmt.Sprintf("x-%d: &a%d { <<: [*a%d, *a%d] }\n", i+1, i+1, i, i)
	}
	for _, text := range []string{bomb + "kinds: " + many("k") + "\n", merges + "kinds: [*a30]\n"} {
		var err error
		allocated := testing.AllocsPerRun(1, func() { _, err = parse(t, "service: a.example.com\nversion: v1\n"+text) })
		require.ErrorContains(t, err, "use fewer aliases")
		require.Less(t, allocated, 1e7, "allocations")
	}
}
