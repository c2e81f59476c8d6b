package shadow_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// now carries out the scheduled deletion of targets in the first deployment.
func now(t *testing.T, b *harness.Box, reqs ...shadow.DeleteRequest) ([]peer.DeleteResult, error) {
	t.Helper()
	for i := range reqs {
		reqs[i].Now = true
	}
	return b.Stores[b.ID(aWest)].Deletions.DeleteAll(t.Context(), reqs)
}

// The answer is lost, and the request is repeated: it has the same answer, and takes no new resource.
func TestARequestThatCarriesOutIsRepeated_I29_I36(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	schedule(t, b, target)
	req := shadow.DeleteRequest{Name: "targets/t", RequestID: uuid.New()}
	first, err := now(t, b, req)
	require.NoError(t, err)
	b.Settle()
	b.Gone(target, holder)
	b.MustPut(target, nil)
	again, err := now(t, b, req)
	require.NoError(t, err)
	require.Equal(t, first[0].Deletion, again[0].Deletion)
	require.NotNil(t, b.Get(target))
}

// It has the preconditions, the limit and the author of the request that carries out.
func TestCarryingOutHeedsItsRequest_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	uid := b.Get(target).UID
	schedule(t, b, target)
	_, err := now(t, b, shadow.DeleteRequest{Name: "targets/t", MaxRemovals: 1})
	require.ErrorIs(t, err, peer.ErrTooManyRemovals)
	_, err = now(t, b, shadow.DeleteRequest{Name: "targets/t", Revision: 1 << 40})
	require.ErrorIs(t, err, peer.ErrConflict)
	_, err = now(t, b, shadow.DeleteRequest{Name: "targets/t", UID: uuid.New()})
	require.ErrorIs(t, err, peer.ErrNotFound)
	other, err := now(t, b, shadow.DeleteRequest{Name: "targets/t", UID: uuid.New(), AllowMissing: true})
	require.NoError(t, err)
	require.True(t, other[0].Removed)
	b.Settle()
	requireHidden(t, b, target, middle, holder)
	call := uuid.New()
	_, err = now(t, b, shadow.DeleteRequest{Name: "targets/t", UID: uid, Actor: "user/bob", Call: call})
	require.NoError(t, err)
	b.Settle()
	b.Gone(target, middle, holder)
	found, _, err := b.Stores[b.ID(aWest)].Operate.Removals(t.Context(), shadow.RemovalQuery{Request: call}, "", 10)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "user/bob", removedBy(t, b, aWest, "targets/t"))
	requireNothingFrozen(t, b, everywhere...)
}

// The caller may have the right to delete one of two resources that were deleted together.
func TestCarryingOutNamesAllOfADeletion_I36(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	schedule(t, b, target, target2)
	_, err := now(t, b, shadow.DeleteRequest{Name: "targets/t"})
	require.ErrorIs(t, err, peer.ErrDeleted)
	require.ErrorContains(t, err, "targets/t was deleted together with targets/t2: name all of them")
	requireHidden(t, b, target, target2)
	third := "//" + aWest + "/targets/t3"
	b.MustPut(third, nil)
	_, err = now(t, b, shadow.DeleteRequest{Name: "targets/t3"}, shadow.DeleteRequest{Name: "targets/t2"},
		shadow.DeleteRequest{Name: "targets/t"})
	require.NoError(t, err)
	b.Settle()
	b.Gone(target, target2, third)
	requireNothingFrozen(t, b, aWest, bEast)

	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	schedule(t, b, target)
	schedule(t, b, target2)
	_, err = now(t, b, shadow.DeleteRequest{Name: "targets/t"}, shadow.DeleteRequest{Name: "targets/t2"})
	require.ErrorIs(t, err, peer.ErrDeleted) // of one deletion after the other
	requireHidden(t, b, target, target2)
}
