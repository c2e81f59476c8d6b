package schema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func TestFinalizersOfADescriptor(t *testing.T) {
	t.Parallel()
	parse := func(kind string) (*schema.Model, error) {
		file, err := schema.ParseFile("f.yaml",
			strings.NewReader("service: a.example.com\nversion: v1\nkinds:\n  - { kind: A, "+kind+" }\n"))
		if err != nil {
			return nil, err
		}
		if err := schema.Check(file.Services); err != nil {
			return nil, err
		}
		return schema.NewModel(schema.ServiceVersion{Service: "a.example.com", Version: "v1"}, file.Services)
	}
	const patterns = `patterns: ["as/{a}"]`
	model, err := parse(patterns +
		`, finalizers: [{ name: calendar, holder: user/calendar }, { name: badge, holder: operator/badges }]`)
	require.NoError(t, err)
	kind, err := model.Kind("A")
	require.NoError(t, err)
	require.Equal(t, []string{"badge", "calendar"}, kind.FinalizerNames())
	require.Equal(t, "user/calendar", kind.FinalizerHolder("calendar"))
	require.Empty(t, kind.FinalizerHolder("other"))
	without, err := parse(patterns)
	require.NoError(t, err)
	other, err := parse(patterns +
		`, finalizers: [{ name: calendar, holder: user/other }, { name: badge, holder: operator/badges }]`)
	require.NoError(t, err)
	require.NotEqual(t, without.Digest, model.Digest, "a version described with other finalizers is another one")
	require.NotEqual(t, other.Digest, model.Digest)
	for text, problem := range map[string]string{
		patterns +
			`, finalizers: [{ name: Calendar, holder: user/c }]`: `finalizer "Calendar"; write lower-case letters`,
		patterns +
			`, finalizers: [{ name: "a b", holder: user/c }]`: `finalizer "a b"; write lower-case letters`,
		patterns +
			`, finalizers: [{ name: a, holder: someone }]`: `finalizer a: holder "someone": unknown form; write user/NAME, operator/NAME or application/a.example.com/NAME`,
		patterns +
			`, finalizers: [{ name: a, holder: application/b.example.com/x }]`: `finalizer a: holder "application/b.example.com/x": unknown form`,
		patterns +
			`, finalizers: [{ name: a, holder: application/a.example.com/ }]`: `finalizer a: holder "application/a.example.com/": unknown form`,
		patterns +
			`, finalizers: [{ name: a }]`: `key "holder" is missing`,
		patterns +
			`, finalizers: [{ name: a, holder: user/c }, { name: a, holder: user/d }]`: `finalizer a is listed twice`,
		`patterns: ["as/{a}"], table: public.a, key: [id], finalizers: [{ name: a, holder: user/c }]`: `kind A is a table: SQL deletes its rows, and waits for nobody; remove finalizers`,
		patterns + `, finalizers: [` + strings.Repeat(`{ name: a, holder: user/c }, `, 11) +
			`]`: `kind A has 11 finalizers, at most 10 are allowed`,
	} {
		_, err := parse(text)
		require.ErrorContains(t, err, problem, text)
	}
}
