package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Explain reports block_deletion, and no empty WAITING.
func TestExplainSaysThatDeletionIsBlocked(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	store := b.Stores[b.ID(aWest)]
	for _, blocks := range []bool{true, false} {
		protect(t, b, target, blocks)
		e, err := store.Explain(t.Context(), "targets/t")
		require.NoError(t, err)
		if !blocks {
			require.Empty(t, e.Reasons)
			continue
		}
		require.Len(t, e.Reasons, 1)
		require.Equal(t, "PROTECTED", e.Reasons[0].Type)
		require.Contains(t, e.Reasons[0].Message, "block_deletion is set")
	}
}

// The explanation names a blocker with its field, in this deployment and in others.
func TestExplainNamesTheFieldOfABlocker_I13(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	middle, peer := "//"+aEast+"/targets/m", "//"+aEast+"/targets/peer"
	b.MustPut(target, nil)
	b.MustPut(middle, body{"next": target})
	b.Settle()
	b.MustDelete(target)
	b.MustPut(holder, body{"block": middle}) // after the look-ahead, before the cascade
	b.MustPut(peer, body{"peer": middle})
	b.Settle()
	e, err := b.Stores[b.ID(aEast)].Explain(t.Context(), "targets/m")
	require.NoError(t, err)
	var told []string
	for _, r := range e.Reasons {
		told = append(told, r.Type+" "+r.Message)
	}
	require.Equal(t, []string{"BLOCKED by " + peer + " (peer)", "BLOCKED by " + holder + " (block)"}, told)
}
