package test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

// The example application, a module of its own, is built and runs: over two deployments, with tables of its
// own.
func TestTheExampleApplication(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds another module, and runs two deployments")
	}
	run := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "./...")
	run.Dir = exampleDir
	// as make build does: the build cache is shared
	run.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-trimpath", "GOWORK=off", "CGO_ENABLED=0",
		"DBCONTROLLER_TEST_DSN="+harness.Postgres(t).DSN("postgres"))
	out, err := run.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

const exampleDir = "../examples/booking"
