package identity

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// The script of docs/certificates.md makes folders that processes accept, with the identities that it names.
func TestTheRecipeForOpenSSL(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	text, err := os.ReadFile("../../docs/certificates.md")
	require.NoError(t, err)
	script := regexp.MustCompile("(?s)## By openssl\n+```sh\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, script)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", string(script[1])) //nolint:gosec // the project's own document
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)

	iam := Deployment(schema.DeploymentID{Service: "iam.example.com", Region: "us-west2"})
	for folder, is := range map[string]Identity{
		"registry": {Role: RoleRegistry}, "operator_alice": {Role: RoleOperator, Name: "alice"}, "deployment_iam.example.com_us-west2": iam,
	} {
		c, err := Load(InDir(filepath.Join(dir, folder)))
		require.NoError(t, err, folder)
		require.Equal(t, is, c.Identity)
	}
}
