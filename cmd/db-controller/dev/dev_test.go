package dev

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
