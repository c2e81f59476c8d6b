package schema_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// A folder stands for its YAML files, and the problems of all files are reported together.
func TestReadFilesOfAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	write("b.yml", "regions: [eu]")
	write("a.yaml", "regions: [us]")
	write("note.txt", "no: yaml: at all")
	write("below/c.yaml", "regions: [asia]")
	write(".hidden/d.yaml", "regions: [mars]")
	one := filepath.Join(t.TempDir(), "services")
	require.NoError(t, os.WriteFile(one, []byte("regions: [africa]"), 0o600))
	f, err := schema.ReadFiles([]string{one, dir})
	require.NoError(t, err)
	require.Equal(t, []string{"africa", "us", "eu"}, f.Regions)

	write("a.yaml", "region: [us]")
	write("b.yml", "services: 1")
	_, err = schema.ReadFiles([]string{dir})
	require.ErrorContains(t, err, "a.yaml:1")
	require.ErrorContains(t, err, "b.yml:1")
	write("a.yaml", "")
	write("b.yml", "regions: [eu]")
	_, err = schema.ReadFiles([]string{dir})
	require.ErrorContains(t, err, "a.yaml: there is no region, service, deployment or right in it")
	for path, want := range map[string]string{
		filepath.Join(dir, "below", "none"): "no such file",
		t.TempDir():                         "there is no file *.yaml or *.yml in it",
	} {
		_, err = schema.ReadFiles([]string{path})
		require.ErrorContains(t, err, want)
	}
}
