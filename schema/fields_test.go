package schema_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

const ruled = `
service: a.example.com
version: v1
kinds:
  - kind: Project
    patterns: ["projects/{project}"]
  - kind: Device
    patterns: ["devices/{device}"]
    references:
      - { path: project, targets: [Project], behaviour: BLOCK }
      - { path: spec.friend, targets: [Project], behaviour: UNSET }
    fields:
      - { path: spec.size, default: 3 }
      - { path: spec.labels, default: { tier: [a, b] } }
      - { path: project, required: true, immutable: true }
    schema:
      type: object
      additionalProperties: false
      properties:
        project: { type: string }
        mail: { type: string, format: email }
        spec:
          properties:
            size: { type: integer, minimum: 1 }
            labels: { type: object }
            friend: { type: string }
`

func ruledKind(t *testing.T, text string) *schema.KindModel {
	t.Helper()
	file, err := schema.ParseFile("a.yaml", strings.NewReader(text))
	require.NoError(t, err)
	m, err := schema.NewModel(file.Services[0].ServiceVersion, file.Services)
	require.NoError(t, err)
	kind, err := m.Kind("Device")
	require.NoError(t, err)
	return kind
}

func TestDefaultsCompleteABodyAndLeaveTheGivenOne(t *testing.T) {
	t.Parallel()
	kind := ruledKind(t, ruled)
	given := map[string]any{"spec": map[string]any{"friend": "projects/p"}}
	done, err := kind.Complete(given)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"spec": map[string]any{
		"friend": "projects/p", "size": float64(3), "labels": map[string]any{"tier": []any{"a", "b"}},
	}}, done)
	require.Equal(t, map[string]any{"spec": map[string]any{"friend": "projects/p"}}, given)
	done["spec"].(map[string]any)["labels"].(map[string]any)["tier"] = nil
	again, err := kind.Complete(map[string]any{"spec": nil})
	require.NoError(t, err)
	require.Equal(t, []any{"a", "b"}, again["spec"].(map[string]any)["labels"].(map[string]any)["tier"],
		"each body has a copy")
	kept, err := kind.Complete(map[string]any{"spec": map[string]any{"size": 0.0, "labels": "x"}})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"size": 0.0, "labels": "x"}, kept["spec"])
	_, err = kind.Complete(map[string]any{"spec": "text"})
	require.ErrorContains(t, err, "field spec: want a message, got a string")
}

func checkBody(kind *schema.KindModel, body []byte, stored map[string]any) error {
	left := schema.MaxCheckSteps
	return kind.CheckBody(body, stored, &left)
}

func TestABodyIsCheckedByTheRulesOfItsKind(t *testing.T) {
	t.Parallel()
	kind := ruledKind(t, ruled)
	stored := map[string]any{"project": "projects/p", "n": json.Number("1.0")}
	for body, want := range map[string]string{
		`{"project": "projects/p"}`:                        "",
		`{"project": "projects/p", "spec": {"size": 1.0}}`: "",
		`{}`:                        "field project: is required",
		`{"project": null}`:         "field project: is required",
		`{"project": ""}`:           "field project: is required",
		`{"project": "projects/q"}`: `field project: is immutable: it is "projects/p"`,
		`{"project": "projects/p", "spec": {"size": 0}}`:            "field spec.size: minimum: got 0, want 1",
		`{"project": "projects/p", "spec": {"size": "a"}, "x": {}}`: "field spec.size: got string, want integer",
		`{"project": "projects/p", "prject": 1}`:                    "additional properties 'prject' not allowed",
		`{"project": "projects/p", "mail": "nobody"}`:               "field mail: 'nobody' is not valid email",
	} {
		err := checkBody(kind, []byte(body), stored)
		if want == "" {
			require.NoError(t, err, body)
		} else {
			require.ErrorContains(t, err, want, body)
		}
	}
	require.NoError(t, checkBody(kind, []byte(`{"project": "projects/q"}`), nil), "a new resource")
	require.NoError(t, checkBody(kind, []byte(`{"project": "projects/q"}`), map[string]any{"spec": map[string]any{}}),
		"the stored body has no value")
}

// The bodies of a request share its steps.
func TestAChecksStepsAreTakenFromThoseOfItsRequest(t *testing.T) {
	t.Parallel()
	kind := ruledKind(t, ruled)
	const body = `{"project": "projects/p", "spec": {"size": 1}}`
	left := schema.MaxCheckSteps
	require.NoError(t, kind.CheckBody([]byte(body), nil, &left))
	taken := schema.MaxCheckSteps - left
	require.Positive(t, taken)
	require.NoError(t, kind.CheckBody([]byte(body), nil, &left))
	require.Equal(t, schema.MaxCheckSteps-2*taken, left)
	left = taken - 1
	require.ErrorContains(t, kind.CheckBody([]byte(body), nil, &left), "take too many steps")
}

func TestAnImmutableNumberHasManySpellings(t *testing.T) {
	t.Parallel()
	kind := ruledKind(t, `
service: a.example.com
version: v1
kinds: [{ kind: Device, patterns: ["devices/{device}"], fields: [{ path: n, immutable: true }] }]
`)
	require.NoError(t, checkBody(kind, []byte(`{"n": {"a": [1e1]}}`),
		map[string]any{"n": map[string]any{"a": []any{json.Number("10.0")}}}))
	require.Error(t, checkBody(kind, []byte(`{"n": {"a": [11]}}`),
		map[string]any{"n": map[string]any{"a": []any{json.Number("10.0")}}}))
	require.Error(t, checkBody(kind, []byte(`{}`), map[string]any{"n": 1.0}), "removed")
}

func TestCheckNamesProblemsOfFieldsAndSchemas(t *testing.T) {
	t.Parallel()
	for rules, want := range map[string]string{
		`fields: [{ path: a.*, required: true }]`:                             "field a.* can have many values",
		`fields: [{ path: a }]`:                                               "field a has no rule",
		`fields: [{ path: a, default: 1, required: true }]`:                   "and is required",
		`fields: [{ path: a, default: 1 }, { path: a, required: true }]`:      "field a is listed twice",
		`fields: [{ path: ref, required: true }]`:                             "a deletion removes the value of ref (UNSET)",
		`fields: [{ path: in, immutable: true }]`:                             "a deletion removes the value of in.list.* (ASYNC_UNSET)",
		`fields: [{ path: in, default: null }]`:                               "the default is null",
		`fields: [{ path: in, default: [.nan] }]`:                             "numbers that JSON has",
		`schema: { type: nothing }`:                                           "schema of Device: ",
		`schema: { $ref: "file:///etc/passwd" }`:                              "a schema can refer only to parts of itself",
		`schema: { properties: { a: { $ref: "https://example.com/s.json" }}}`: "a schema can refer only to parts of itself",
		`schema: [a]`: "want a mapping",
		`schema: { properties: { a: { pattern: "(" }}}`: "schema of Device: ",
	} {
		file, err := schema.ParseFile("a.yaml", strings.NewReader(`
service: a.example.com
version: v1
kinds:
  - kind: Device
    patterns: ["devices/{device}"]
    references:
      - { path: ref, targets: [Device], behaviour: UNSET }
      - { path: in.list.*, targets: [Device], behaviour: ASYNC_UNSET }
    `+rules+"\n"))
		if err == nil {
			err = schema.Check(file.Services)
		}
		require.ErrorContains(t, err, want, rules)
	}
}

// The digest tells whether two descriptors of one version are the same: rules belong to them.
func TestRulesAreInTheDigest(t *testing.T) {
	t.Parallel()
	digest := func(text string) string {
		file, err := schema.ParseFile("a.yaml", strings.NewReader(text))
		require.NoError(t, err)
		m, err := schema.NewModel(file.Services[0].ServiceVersion, file.Services)
		require.NoError(t, err)
		return m.Digest
	}
	require.Equal(t, digest(ruled), digest(ruled))
	for _, change := range [][2]string{
		{"default: 3", "default: 4"},
		{", immutable: true", ""},
		{"minimum: 1", "minimum: 2"},
	} {
		require.NotEqual(t, digest(ruled), digest(strings.Replace(ruled, change[0], change[1], 1)), change)
	}
}
