package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/playground"
)

// Services without deployments run nowhere: dev prints the deployments to add, and adds them for --regions.
func TestDevSaysWhatServicesWithoutDeploymentsLack(t *testing.T) {
	t.Parallel()
	file := write(t, twoKinds)
	got := command(t, "dev", "--services", file, "--dir", t.TempDir())
	require.Equal(t, cli.WrongUsage, got.code)
	require.Contains(t, got.errOut, "  - { deployment: iam.example.com/us-west2, version: v1 }\n")
	for _, wrong := range [][]string{{"--regions", "US"}, {"--regions", ""}} {
		require.Equal(t, cli.WrongUsage, command(t, append([]string{"dev", "--services", file, "--dir", t.TempDir()},
			wrong...)...).code)
	}
	require.Equal(t, cli.WrongUsage, command(t, "dev", "--regions", "us-west2", "--dir", t.TempDir()).code)
}

// A playground replaces no configuration of another installation, or of a running playground.
func TestDevTakesNoFolderThatIsInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	context := filepath.Join(dir, playground.ClientFile)
	require.NoError(t, os.WriteFile(context, []byte("registry: prod:7000\n"), 0o600))
	got := command(t, "dev", "--dir", dir)
	require.Equal(t, cli.WrongUsage, got.code)
	require.Contains(t, got.errOut, "is the configuration of another installation")
	require.NoError(t, os.Remove(context))
	release, err := playground.Lock(dir)
	require.NoError(t, err)
	defer release()
	got = command(t, "dev", "--dir", dir)
	require.Equal(t, cli.WrongUsage, got.code)
	require.Contains(t, got.errOut, "another playground runs in "+dir)
}
