package kindgraph

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func described(t *testing.T) *schema.Environment {
	t.Helper()
	file, err := schema.ParseFile("services.yaml", bytes.NewBufferString(`
service: iam.example.com
version: v1
kinds: [{ kind: Project, patterns: ["projects/{project}"] }, { kind: Old, patterns: ["olds/{old}"] }]
---
service: iam.example.com
version: v2
kinds: [{ kind: Project, patterns: ["projects/{project}"] }]
---
service: devices.example.com
version: v1
imports: [iam.example.com@v1]
kinds:
  - kind: Device
    patterns: ["projects/{project}/devices/{device}"]
    parents: [{ kind: iam.example.com/Project, behaviour: CASCADE_DELETE }]
    references:
      - { path: twin, targets: [Device], behaviour: BLOCK }
      - { path: spare, targets: [Device], behaviour: BLOCK }
`))
	require.NoError(t, err)
	return &schema.Environment{Services: file.Services, Deployments: []schema.Deployment{
		{DeploymentID: schema.DeploymentID{Service: "iam.example.com", Region: "eu"}, Version: "v2"},
	}}
}

// The graph has the version that runs, and a service of which none does; the fields of one behaviour are one
// arrow.
func TestTheGraphHasWhatRuns(t *testing.T) {
	t.Parallel()
	g := Of(Running(described(t)))
	require.Equal(t, []string{"devices.example.com/Device", "iam.example.com/Project"}, g.Kinds)
	require.Equal(t, []Edge{
		{"devices.example.com/Device", "devices.example.com/Device", "BLOCK", []string{"twin", "spare"}},
		{"devices.example.com/Device", "iam.example.com/Project", "CASCADE_DELETE", []string{Parent}},
	}, g.Edges)
}

// The picture is well-formed, whatever the names are.
func TestThePictureIsWellFormed(t *testing.T) {
	t.Parallel()
	g := Of(Running(described(t)))
	g.Edges[0].Fields = append(g.Edges[0].Fields, `a<b>&"c"`)
	var picture bytes.Buffer
	require.NoError(t, g.SVG(&picture))
	texts := 0
	for d := xml.NewDecoder(&picture); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "text" {
			texts++
		}
	}
	require.Equal(t, 2*len(g.Kinds)+len(g.Edges), texts)
}
