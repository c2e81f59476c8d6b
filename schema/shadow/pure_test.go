package shadow

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// pure decide, walk over the graph of a plan, and judge.
var pure = []string{
	"across.go", "blocked.go", "closure_types.go", "decide.go", "errors.go", "judge.go", "plan_groups.go", "plan_types.go", "tree.go", "types.go", "unasked.go",
}

func TestWhatDecidesCompilesWithoutADatabase(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", "/dev/null"}, pure...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	out, err = exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, pure...)...).Output()
	require.NoError(t, err)
	for _, of := range []string{"pgx", "zap", "grpc", "internal/feed"} {
		require.NotContains(t, string(out), of)
	}
}
