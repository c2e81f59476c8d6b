package shadow_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// A chain of any length can be deleted, also over a slow line to the database: one transaction follows a
// bounded number of levels, and later transactions continue.
func TestADeepChainIsDeletedInPieces_I21(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]harness.Line{
		"beside the database": harness.Clear,
		"over a slow line":    harness.Far,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const depth = 1200
			b := newPair(t, nil)
			writes := make([]peer.Write, depth)
			for i := range writes {
				writes[i] = peer.Write{Name: fmt.Sprintf("targets/c%d", i)}
				if i > 0 {
					writes[i].Body = body{"next": fmt.Sprintf("targets/c%d", i-1)}
				}
			}
			for batch := range slices.Chunk(writes, 400) {
				_, err := b.Stores[b.ID(aWest)].Write.Save(t.Context(), batch)
				require.NoError(t, err)
			}
			store, proxy := throughProxy(t, b, aWest, nil)
			proxy.SetLine(line)
			ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
			defer cancel()
			result, err := store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/c0"})
			require.NoError(t, err)
			require.True(t, result.Removed, "no other deployment is involved")
			left := b.Count(aWest, "shadow")
			require.Greater(t, left, depth-200, "one transaction removes a bounded number of levels")
			require.Less(t, left, depth-50)
			b.Settle()
			require.Zero(t, b.Count(aWest, "shadow"))
			b.Audit()
		})
	}
}
