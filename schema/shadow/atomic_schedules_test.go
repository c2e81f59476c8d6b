package shadow_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A named resource that does not exist is left out where that is allowed, as in an ordinary deletion.
func TestAnAtomicDeletionOfSeveralLeavesOutTheMissing_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	b.MustPut(target2, nil)
	b.MustPut(holder2, body{"block": target2})
	b.Settle()
	results, err := b.Stores[b.ID(aWest)].Deletions.DeleteAll(t.Context(), []shadow.DeleteRequest{
		{Name: "targets/none", AllowMissing: true, Atomic: true}, {Name: "targets/t", AllowMissing: true},
	})
	require.NoError(t, err)
	require.True(t, results[0].Removed)
	require.Equal(t, peer.Deleting, results[1].Resource.State)
	b.Settle()
	b.Gone(target, middle, holder)
	requireActive(t, b, target2)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// An ordinary deletion marks the root during the look-ahead: the atomic one has nothing left to decide.
func TestAnAtomicDeletionOfARootThatIsMarkedMeanwhile_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	var failed error
	b.AfterPlan = func() {
		b.AfterPlan = nil
		_, failed = b.Stores[b.ID(aWest)].Deletions.Delete(context.Background(), shadow.DeleteRequest{Name: "targets/t"})
		require.NotZero(t, b.Count(aEast, "frozen"))
	}
	result, err := deleteAtomically(t.Context(), b, target)
	b.AfterPlan = nil
	require.NoError(t, failed)
	require.NoError(t, err)
	require.Equal(t, peer.Deleting, result.Resource.State)
	require.Equal(t, 1, b.Count(aWest, "aborted"), "nothing is left to its participants' clocks")
	b.Settle()
	b.Gone(target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}
