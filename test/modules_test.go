package test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// go.mod and go.sum are as `go mod tidy` writes them. The test uses the modules that are downloaded, and is
// skipped where some that only tests of dependencies need are not.
func TestModulesAreTidy(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("loads the packages of all modules and of their tests")
	}
	for _, dir := range []string{"..", exampleDir} {
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			isTidy(t, dir)
		})
	}
}

func isTidy(t *testing.T, dir string) {
	t.Helper()
	tidy := exec.CommandContext(t.Context(), "go", "mod", "tidy", "-diff")
	tidy.Dir = dir
	tidy.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=")
	out, err := tidy.CombinedOutput()
	if err != nil && strings.Contains(string(out), "GOPROXY=off") {
		t.Skip("modules are not downloaded: run go mod tidy")
	}
	require.NoError(t, err, "run go mod tidy:\n%s", out)
}
