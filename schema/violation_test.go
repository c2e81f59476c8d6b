package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/violation"
)

// Errors of bodies name the fields that they are about, in any wrapping.
func TestErrorsOfABodyNameItsFields(t *testing.T) {
	t.Parallel()
	file, err := schema.ParseFile("d.yaml", strings.NewReader(`
service: desks.example.com
version: v1
kinds:
  - kind: Desk
    patterns: ["desks/{desk}"]
    fields: [{ path: spec.room, required: true }, { path: serial, immutable: true }, { path: spec.height, default: 70 }]
    references: [{ path: spec.lamps.*, targets: [Lamp], behaviour: BLOCK }]
    schema: { properties: { legs: { type: array, items: { type: integer } }, tag: { type: string } } }
  - { kind: Lamp, patterns: ["lamps/{lamp}"] }
`))
	require.NoError(t, err)
	env := &schema.Environment{Services: file.Services}
	model, err := schema.NewModel(schema.ServiceVersion{Service: "desks.example.com", Version: "v1"}, env.Services)
	require.NoError(t, err)
	kind, err := model.Kind("Desk")
	require.NoError(t, err)
	self := schema.DeploymentID{Service: "desks.example.com", Region: "eu"}
	check := func(body string, stored map[string]any) error {
		steps := schema.MaxCheckSteps
		return kind.CheckBody([]byte(body), stored, &steps)
	}
	_, overwrites := kind.Complete(map[string]any{"spec": "text"})
	_, shape := kind.References(self, "desks/d", map[string]any{"spec": map[string]any{"lamps": []any{"lamps/a", 7.0}}})
	_, unknown := kind.References(self, "desks/d", map[string]any{"spec": map[string]any{"lamps": []any{"chairs/c"}}})
	for want, err := range map[string]error{
		"body.spec.room: is required": check(`{}`, nil),
		`body.serial: is immutable: it is "1"`: check(`{"spec":{"room":"a"}}`,
			map[string]any{"serial": "1"}),
		"body.legs[1]: got string, want integer": check(
			`{"spec":{"room":"a"},"legs":[1,"x"]}`, nil),
		"body.spec: want a message, got a string":                                   overwrites,
		"body.spec.lamps[1]: want the name of a resource as a string, got a number": shape,
		"body.notes[0].ref: ": kind.CheckUndeclared(
			map[string]any{"notes": []any{map[string]any{"ref": "//iam.example.com/eu/projects/p"}}}, nil),
		"body.spec.lamps.*: ": unknown,
	} {
		require.Error(t, err, want)
		found := violation.Of(errors.Join(errors.New("another one"), err))
		require.Len(t, found, 1, "%s: %v", want, err)
		require.Contains(t, found[0].Path+": "+found[0].Problem, want)
		require.ErrorContains(t, violation.In("elsewhere", err), err.Error())
		require.Equal(t, "elsewhere", violation.Of(violation.In("elsewhere", err))[0].Path)
	}
	several := violation.Of(check(`{"spec":{"room":"a"},"legs":["x"],"tag":7}`, nil))
	require.Len(t, several, 2)
	require.Nil(t, violation.Of(errors.New("no field")))
	require.NoError(t, violation.In("name", nil))
	require.Equal(t, "status.a[0]: is wrong", func() string {
		v := violation.Of(violation.UnderRoot("status",
			violation.Under("a", violation.UnderIndex(0, violation.Errorf("is wrong")))))[0]
		return v.Path + ": " + v.Problem
	}())
}
