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
		e, err := store.Operate.Explain(t.Context(), "targets/t")
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

// A resource in DELETING whose holders are gone still waits while an operator has paused deletions, or while
// others compare their references after a failover: the explanation names both, and the deployments that are
// waited for.
func TestExplainSaysThatDeletionsAreHalted_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, id := b.Stores[b.ID(aWest)], b.ID(aWest)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	halted := func() (told []string) {
		e, err := store.Operate.Explain(t.Context(), "targets/t")
		require.NoError(t, err)
		for _, r := range e.Reasons {
			if r.Type == "HALTED" {
				told = append(told, r.Message)
			}
		}
		return told
	}
	require.Empty(t, halted())
	require.NoError(t, store.Operate.Pause(t.Context(), id, "", true, "a test", "operator/o"))
	require.Len(t, halted(), 1)
	require.Contains(t, halted()[0], "an operator has paused deletions until db-controller resume")
	require.NoError(t, store.Operate.Pause(t.Context(), id, "", false, "a test", "operator/o"))
	require.Empty(t, halted())
	exec(t, b, aWest, `UPDATE dbcontroller.deployment SET unconfirmed = true WHERE service || '/' || region = $1`,
		bEast)
	require.Len(t, halted(), 1)
	require.Contains(t, halted()[0], bEast)
	exec(t, b, aWest, `UPDATE dbcontroller.deployment SET unconfirmed = false`)
	require.Empty(t, halted())
	b.Settle()
	b.Gone(target, holder)
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
	e, err := b.Stores[b.ID(aEast)].Operate.Explain(t.Context(), "targets/m")
	require.NoError(t, err)
	var told []string
	for _, r := range e.Reasons {
		told = append(told, r.Type+" "+r.Message)
	}
	require.Equal(t, []string{"BLOCKED by " + peer + " (peer)", "BLOCKED by " + holder + " (block)"}, told)
}
