package dev

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/bench"
	"github.com/db-controller/db-controller/schema"
)

// --regions adds a deployment of each service in each region, where the files have none.
func TestRegionsOfDevAddDeployments(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "services.yaml")
	text := "service: iam.example.com\nversion: v1\nkinds: [{ kind: A, patterns: ['as/{a}'] }]\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	files, err := devServices(defaultServices, []string{file}, []string{"eastus2", "asia1"})
	require.NoError(t, err)
	require.Equal(t, []string{"asia1", "eastus2"}, files.Regions)
	require.Len(t, files.Deployments, 2)
}

// The deployments that the cases use are among them, whatever their number.
func TestBenchRunsInAnyNumberOfDeployments(t *testing.T) {
	t.Parallel()
	files, err := devServices(defaultServices, nil, nil)
	require.NoError(t, err)
	for _, n := range []int{2, 4, 8, 28} {
		regions, deployments := benchDeployments(files.Deployments, n)
		require.Len(t, deployments, n)
		require.Len(t, regions, max(2, n/2))
		used, seen := 0, map[schema.DeploymentID]bool{}
		for _, d := range deployments {
			require.Contains(t, regions, d.Region)
			require.NotEmpty(t, d.Version)
			require.False(t, seen[d.DeploymentID], d.DeploymentID)
			seen[d.DeploymentID] = true
			if bench.Uses(d.DeploymentID) {
				used++
			}
		}
		require.Equal(t, 2, used)
	}
}
