package cascade

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheDecisionCompilesWithoutADatabase(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "decide.go", "closure_types.go").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, of := range []string{"pgx", "zap", "grpc", "internal/feed", "internal/db"} {
		require.NotContains(t, string(out), of)
	}
}
