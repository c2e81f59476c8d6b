package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// Messages about a dropped pattern name the version: its position says no more than the file and the line.
func TestADroppedPatternIsAtItsDescriptor(t *testing.T) {
	t.Parallel()
	services, err := parse(t, `
service: a.example.com
version: v1
kinds: [{kind: T, patterns: ["ts/{t}", "old/{t}"]}]
---
service: a.example.com
version: v2
kinds: [{kind: T, patterns: ["ts/{t}"]}]
`)
	require.NoError(t, err)
	services[1].Pos.Path = "a.example.com@v2" // as of a descriptor that was received
	id := schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}
	run := func(version string) *schema.Environment {
		return &schema.Environment{
			Regions: []string{"us-west2"}, Services: services,
			Deployments: []schema.Deployment{{DeploymentID: id, Version: version, Address: "host:1"}},
		}
	}
	dropped, err := run("v1").Dropped(run("v2"), id)
	require.NoError(t, err)
	require.Len(t, dropped, 1)
	require.Equal(t, "old/{t}", dropped[0].Pattern.String())
	require.Equal(t, "a.example.com@v2", dropped[0].By.String())
	require.Equal(t, "f.yaml", dropped[0].Pos.File)
	require.Empty(t, dropped[0].Pos.Path)
	none, err := run("v2").Dropped(run("v1"), id)
	require.NoError(t, err)
	require.Empty(t, none)
}
