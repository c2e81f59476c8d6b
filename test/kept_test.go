package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
)

// A version that drops kinds or name patterns of stored resources is refused, unless it is confirmed that
// they are kept; then they can be read, listed and deleted, and status counts them.
func TestAVersionThatDropsPatternsOfStoredResourcesNeedsAConfirmation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const hidden = aWest + "hidden/h"
	f.mustPut(hidden, nil)
	const deployment = "a.example.com/us-west2"
	code, out := exitCode(t, "set-version", deployment, "v2", "--context", f.Context)
	require.Equal(t, cli.Refused, code)
	require.Contains(t, out, "a.example.com@v2 has no kind or pattern for "+hidden)
	require.Contains(t, out, "patterns_dropped: keep")
	require.Equal(t, "v1", f.status(deployment).GetVersion())
	_, err := f.Client.Registry().SetDeploymentVersion(t.Context(),
		&registryv1.SetDeploymentVersionRequest{Service: "a.example.com", Region: "us-west2", Version: "v2"})
	require.ErrorContains(t, err, "a.example.com@v2 has no pattern hidden/{hidden} of kind Hidden",
		"a client that does not ask the deployment")

	// A deployment that stores none of them switches.
	out, err = run(t, "set-version", "a.example.com/eastus2", "v2", "--context", f.Context)
	require.NoError(t, err, out)
	out, err = run(t, "set-version", "a.example.com/eastus2", "v1", "--context", f.Context)
	require.NoError(t, err, out)

	// The same with apply; the confirmation is in the file.
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "services.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const deployments = "---\ndeployments:\n  - { deployment: a.example.com/us-west2, version: v2 }\n"
	code, out = exitCode(t, "apply", file(deployments), "--context", f.Context)
	require.Equal(t, cli.Refused, code)
	require.Contains(t, out, "has no kind or pattern for "+hidden)
	_, v2, _ := strings.Cut(everything, "---\n")
	v2, _, _ = strings.Cut(v2, "---\n")
	out, err = run(t, "apply", file(v2+"patterns_dropped: keep\n"+deployments), "--context", f.Context)
	require.NoError(t, err, out)
	f.eventually("it switches", func() bool { return f.status(deployment).GetVersion() == "v2" })
	f.settled()
	require.Equal(t, "Hidden", f.get(hidden).GetKind())
	out, err = run(t, "status", deployment, "--context", f.Context)
	require.NoError(t, err, out)
	require.Contains(t, out, "kept: 1 resource of kind Hidden, such as hidden/h")
	_, err = f.put(hidden, nil)
	require.ErrorContains(t, err, "can be read and deleted")
	out, err = run(t, "plan", hidden, "--context", f.Context)
	require.NoError(t, err, out)
	f.mustDelete(hidden)
	f.gone(hidden)
	require.Empty(t, f.status(deployment).GetKept())
}
