package plan

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheGraphOfAPlanCompilesWithoutADatabase(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, of := range []string{"pgx", "zap", "grpc", "internal/feed", "internal/db"} {
		require.NotContains(t, string(out), of)
	}
}
