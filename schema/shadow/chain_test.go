package shadow_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
)

// A chain of any length can be deleted: one transaction follows so many levels, and the rest goes later, piece by piece.
func TestADeepChainIsDeletedInPieces_I21(t *testing.T) {
	t.Parallel()
	const depth = 2500
	b := newBox(t, nil)
	store := b.Stores[b.ID(aWest)]
	for i := 0; i < depth; {
		var writes []shadow.Write
		for ; len(writes) < 500; i++ {
			content := body{}
			if i > 0 {
				content["next"] = fmt.Sprintf("targets/c%d", i-1)
			}
			writes = append(writes, shadow.Write{Name: fmt.Sprintf("targets/c%d", i), Body: content})
		}
		_, err := store.Save(t.Context(), writes)
		require.NoError(t, err)
	}
	result, err := store.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/c0"})
	require.NoError(t, err)
	require.True(t, result.Removed, "it waits for nobody")
	left := b.Count(aWest, "shadow")
	require.Greater(t, left, 1000, "the rest is not held up by one transaction")
	require.Less(t, left, depth-900)
	b.Settle()
	require.Zero(t, b.Count(aWest, "shadow"))
	b.Audit()
}
