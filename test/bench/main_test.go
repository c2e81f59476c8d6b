package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	"github.com/db-controller/db-controller/schema"
)

// The deployments that the cases use are in any number of deployments.
func TestBenchRunsInAnyNumberOfDeployments(t *testing.T) {
	t.Parallel()
	files, err := dev.Services()
	require.NoError(t, err)
	for _, n := range []int{2, 4, 8, 28} {
		regions, deployments := deploymentsOf(files.Deployments, n)
		require.Len(t, deployments, n)
		require.Len(t, regions, max(2, n/2))
		used, seen := 0, map[schema.DeploymentID]bool{}
		for _, d := range deployments {
			require.Contains(t, regions, d.Region)
			require.NotEmpty(t, d.Version)
			require.False(t, seen[d.DeploymentID], d.DeploymentID)
			seen[d.DeploymentID] = true
			if Uses(d.DeploymentID) {
				used++
			}
		}
		require.Equal(t, 2, used)
	}
}
