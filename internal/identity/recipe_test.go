package identity

import (
	"crypto/x509"
	"encoding/pem"
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
	run := func(script string) {
		cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script) //nolint:gosec // the project's own document
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	run(string(script[1]))
	before, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	// a common name has at most 64 characters
	long := schema.DeploymentID{Service: "inventory-of-all-warehouses.platform.example.com", Region: "europe-west1"}
	run(string(script[1]) + "certificate deployment/" + long.Service + "/" + long.Region + "\n")
	after, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	require.Equal(t, string(before), string(after), "a repetition keeps the authority of the certificates that exist")

	servers := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for folder, is := range map[string]struct {
		identity Identity
		usage    []x509.ExtKeyUsage
	}{
		"registry":       {Identity{Role: RoleRegistry}, servers},
		"operator_alice": {Identity{Role: RoleOperator, Name: "alice"}, servers[1:]},
		"deployment_iam.example.com_us-west2": {Deployment(schema.DeploymentID{
			Service: "iam.example.com",
			Region:  "us-west2",
		}), servers},
		"deployment_" + long.Service + "_" + long.Region: {Deployment(long), servers},
	} {
		c, err := Load(InDir(filepath.Join(dir, folder)))
		require.NoError(t, err, folder)
		require.Equal(t, is.identity, c.Identity)
		text, err := os.ReadFile(filepath.Join(dir, folder, "tls.crt"))
		require.NoError(t, err)
		block, _ := pem.Decode(text)
		leaf, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		require.Equal(t, is.usage, leaf.ExtKeyUsage, folder)
	}
}
