package harness

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A run of tests without processes builds no program, and none to remove it either.
func TestOnlyBuiltBinariesAreRemoved(t *testing.T) {
	t.Parallel()
	RemoveBinary()
	folders.mu.Lock()
	require.Empty(t, folders.each, "no test of this package needs the program")
	folders.mu.Unlock()
	kept := t.TempDir() + "/kept"
	require.NoError(t, os.Mkdir(kept, 0o700))
	path := built(t, func() (string, error) { return kept + "/db-controller", nil })
	require.Equal(t, kept+"/db-controller", path)
	RemoveBinary()
	require.NoDirExists(t, kept)
}
