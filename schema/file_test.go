package schema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// A file can have several documents: versions of services, and one or more with regions and deployments.
func TestAFileHasServicesRegionsAndDeployments(t *testing.T) {
	t.Parallel()
	file, err := schema.ParseFile("f.yaml", strings.NewReader(`
# a comment alone is an empty document
---
service: a.example.com
version: v1
patterns_dropped: refuse
imports: [b.example.com@v2]
kinds:
  - kind: A
    previous_name: Old
    patterns: ["bs/{b}/as/{a}", "as/{a}"]
    hide_while_deleting: true
    referable_by: [c.example.com, d.example.com]
    parents:
      - { kind: b.example.com/B, behaviour: BLOCK, region: eu }
    references:
      - { path: "x.*", targets: [A, b.example.com/B], behaviour: ASYNC_UNSET }
acknowledge:
  - { warning: block-cycle, at: "kinds[A]", reason: they form a tree }
---
regions: [us, eu]
---
deployments:
  - { deployment: a.example.com/us, version: v1, address: "host:1" }
  - { deployment: a.example.com/eu, version: v1, disabled: true }
`))
	require.NoError(t, err)
	require.Equal(t, []string{"us", "eu"}, file.Regions)
	require.Len(t, file.Deployments, 2)
	require.Equal(t, "a.example.com/us", file.Deployments[0].DeploymentID.String())
	require.Equal(t, "host:1", file.Deployments[0].Address)
	require.False(t, file.Deployments[0].Disabled)
	require.True(t, file.Deployments[1].Disabled)
	require.Equal(t, schema.Pos{File: "f.yaml", Line: 25, Path: "deployments[a.example.com/eu]"},
		file.Deployments[1].Pos)

	require.Len(t, file.Services, 1)
	d := file.Services[0]
	require.Equal(t, "a.example.com@v1", d.ServiceVersion.String())
	require.Equal(t, "refuse", d.PatternsDropped)
	require.Equal(t, "b.example.com@v2", d.Imports[0].ServiceVersion.String())
	require.Equal(t, schema.Pos{File: "f.yaml", Line: 7, Path: "imports[0]"}, d.Imports[0].Pos)
	require.Equal(t, schema.Acknowledgement{
		Finding: "block-cycle", At: "kinds[A]", Reason: "they form a tree",
		Pos: schema.Pos{File: "f.yaml", Line: 19, Path: "acknowledge[0]"},
	}, d.Acknowledged[0])
	k := d.Kinds[0]
	require.Equal(t, schema.Pos{File: "f.yaml", Line: 9, Path: "kinds[A]"}, k.Pos)
	require.Equal(t, []string{"bs/{b}/as/{a}", "as/{a}"}, k.Patterns)
	require.Equal(t, []string{"c.example.com", "d.example.com"}, k.ReferableBy)
	require.Equal(t, []any{"A", "Old", true, false}, []any{
		k.Name, k.PreviousName, k.HideWhileDeleting,
		k.ConstraintsDisabled,
	})
	require.Equal(t, schema.Parent{
		Kind: "b.example.com/B", Behaviour: schema.Block, Region: "eu",
		Pos: schema.Pos{File: "f.yaml", Line: 15, Path: "kinds[A].parents[b.example.com/B]"},
	}, k.Parents[0])
	require.Equal(t, schema.Reference{
		Path: "x.*", Targets: []string{"A", "b.example.com/B"}, Behaviour: schema.AsyncUnset,
		Pos: schema.Pos{File: "f.yaml", Line: 17, Path: "kinds[A].references[x.*]"},
	}, k.References[0])
}

func TestAnEmptyFileHasNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", "# nothing\n", "---\n---\n", "null\n"} {
		file, err := schema.ParseFile("f.yaml", strings.NewReader(text))
		require.NoError(t, err, text)
		require.Empty(t, file.Services)
		require.Empty(t, file.Regions)
		require.Empty(t, file.Deployments)
	}
}

// The scalars of YAML have types of their own: a number where a text is wanted is still a text, and not the
// other way round.
func TestScalarsAreReadAsTheirFields(t *testing.T) {
	t.Parallel()
	file, err := schema.ParseFile("f.yaml", strings.NewReader("service: 5\nversion: true\n"))
	require.NoError(t, err)
	require.Equal(t, "5", file.Services[0].Service, "Check refuses it")
	require.Equal(t, "true", file.Services[0].Version)
	for text, says := range map[string]string{
		"service: a.example.com\nversion: {}\n":                                                                        "f.yaml:2: version: want a string, got a mapping",
		"service: a.example.com\nversion: v1\nkinds: [{ kind: A, patterns: [[a]] }]\n":                                 "patterns[0]: want a string, got a list",
		"service: a.example.com\nversion: v1\nimports: [[b]]\n":                                                        "imports[0]: want a string, got a list",
		"service: a.example.com\nversion: v1\nkinds: [{ kind: A, patterns: [\"as/{a}\"], constraints_disabled: 1 }]\n": `constraints_disabled: want true or false, got "1"`,
	} {
		_, err := schema.ParseFile("f.yaml", strings.NewReader(text))
		require.ErrorContains(t, err, says, text)
	}
}
