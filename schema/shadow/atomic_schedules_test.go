package shadow_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
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
		_, failed = b.Stores[b.ID(aWest)].Deletions.Delete(context.Background(),
			shadow.DeleteRequest{Name: "targets/t"})
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

// Two owners of one resource go, each for a root of its own. The one that lets it stay goes last, or first.
func TestAnOwneeOfTwoRootsOfAnAtomicDeletion_I35(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"plain", "flagged"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, nil)
			b.MustPut(target, nil)
			b.MustPut(target2, nil)
			plain, flagged, ownee := "//"+bEast+"/holders/plain", "//"+bWest+"/holders/flagged",
				"//"+aEast+"/targets/owned"
			b.MustPut(plain, body{"cascade": target})
			b.MustPut(flagged, body{"cascade": target2})
			mustOwn(t, b, ownee, nil, owner(t, plain, "Holder"), unsets(owner(t, flagged, "Holder")))
			b.Settle()
			_, err := b.Stores[b.ID(aWest)].Deletions.DeleteAll(t.Context(),
				[]shadow.DeleteRequest{{Name: "targets/t", Atomic: true}, {Name: "targets/t2"}})
			require.NoError(t, err)
			require.Equal(t, 1, b.Count(aEast, "frozen"))
			for _, at := range map[string][]string{"plain": {bEast, bWest}, "flagged": {bWest, bEast}}[first] {
				_, err := b.Act(b.ID(at), b.ID(aWest))
				require.NoError(t, err)
				// waits while it is not known there that the deletion is committed
				_, _ = b.Do(b.ID(at), schema.DropOwners)
			}
			b.Settle()
			requireNothingFrozen(t, b, everywhere...)
			b.Gone(plain, flagged, ownee)
			b.Audit()
		})
	}
}

// The owner that lets its ownee stay goes in another deletion, which does not wait for the atomic one.
func TestAnOwneeOfAnAtomicDeletionThatLosesItsLastOwnerInAnother_I35(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	plain, flagged, ownee := "//"+bEast+"/holders/plain", "//"+bWest+"/holders/flagged", "//"+aEast+"/targets/owned"
	b.MustPut(plain, body{"cascade": target})
	b.MustPut(flagged, body{"cascade": target})
	mustOwn(t, b, ownee, nil, owner(t, plain, "Holder"), unsets(owner(t, flagged, "Holder")))
	b.Settle()
	_, err := deleteAtomically(t.Context(), b, target)
	require.NoError(t, err)
	require.Equal(t, 1, b.Count(aEast, "frozen"))
	b.MustDelete(flagged)
	_, err = b.Act(b.ID(bEast), b.ID(aWest))
	require.NoError(t, err)
	_, err = b.Do(b.ID(bEast), schema.DropOwners) // of the plain owner, first
	require.NoError(t, err)
	b.Settle()
	requireNothingFrozen(t, b, everywhere...)
	b.Gone(plain, flagged, ownee)
	b.Audit()
}

// An operator who lets a member stay without owners gets the answer of a write: nothing would mark it any
// more.
func TestAMemberKeepsItsOwnersUntilItsMark_I35(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	ownee := "//" + aEast + "/targets/owned"
	mustOwn(t, b, ownee, nil, owner(t, target, "Target"))
	b.Settle()
	store := b.Stores[b.ID(aEast)]
	key := releasable(t, store, "targets/owned", "OWNER_REFERENCE").Key
	_, err := deleteAtomically(t.Context(), b, target)
	require.NoError(t, err)
	require.Equal(t, 1, b.Count(aEast, "frozen"))
	_, err = store.Operate.ForceRelease(t.Context(), []string{key}, false, "ticket 1", "operator/eve")
	require.ErrorIs(t, err, peer.ErrAborted)
	b.Settle()
	b.Gone(target, ownee)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// A transaction of a user holds one member for long: the freeze holds no lock of another one in the meantime.
func TestAFreezeHoldsNoLocksWhileItWaits_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	const lockSQL = `SELECT FROM dbcontroller.shadow WHERE name = $1 FOR UPDATE`
	b.MustPut("//"+aEast+"/targets/later", body{"next": middle})
	b.Settle()
	release := hold(t, b, aEast, lockSQL, "targets/later")
	deleted := make(chan error, 1)
	go func() { _, err := deleteAtomically(context.Background(), b, target); deleted <- err }()
	stopped(t, b, aEast, 1)
	hold(t, b, aEast, lockSQL, "targets/m")() // without the end of the other transaction
	release()
	require.NoError(t, <-deleted)
	b.Settle()
	b.Gone(target, middle, holder, "//"+aEast+"/targets/later")
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// A version switch makes a reference to a member block. It is derived after the freeze, by a deployment
// without members.
func TestAReferenceThatIsDerivedAfterTheFreeze_I35(t *testing.T) {
	t.Parallel()
	both := strings.Split(services, "---\n")
	blocks := strings.NewReplacer("version: v1", "version: v2",
		"path: unset, targets: [a.example.com/Target], behaviour: UNSET",
		"path: unset, targets: [a.example.com/Target], behaviour: BLOCK").Replace(both[1])
	b := harness.NewBox(t, services+"---\n"+blocks, nil, aWest, aEast, bWest, bEast)
	stays := "//" + bWest + "/holders/stays"
	b.MustPut(target, nil)
	b.MustPut(middle, body{"next": target})
	b.MustPut(holder, body{"cascade": middle})
	b.MustPut(stays, body{"unset": middle})
	b.Settle()
	b.Switch(bWest, "v2")
	_, err := deleteAtomically(t.Context(), b, target)
	require.NoError(t, err)
	require.NotZero(t, b.Count(bWest, "work"))
	_, _ = b.Do(b.ID(bWest), schema.Derive) // is refused
	b.Settle()
	b.Gone(target, middle, holder)
	require.NotContains(t, b.Get(stays).Body, "unset")
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// The database of the coordinator fails over after the decision, and loses nothing: the members stay closed
// until their mark.
func TestMembersStayClosedThroughAFailover_I35(t *testing.T) {
	t.Parallel()
	b := newCommittedChain(t)
	b.Renew(aWest)
	_, err := b.Do(b.ID(aWest), schema.AnnounceEpoch)
	require.NoError(t, err)
	late := "//" + bWest + "/holders/late"
	require.Error(t, putOnce(t, b, late, body{"block": middle}))
	b.Settle()
	b.Gone(target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// The decision is forgotten when a participant fails over that the mark has not reached: its members stay
// closed.
func TestMembersStayClosedThroughALateFailover_I35(t *testing.T) {
	t.Parallel()
	b := newCommittedChain(t)
	_, err := b.Pools[b.ID(aWest)].Exec(t.Context(), `DELETE FROM dbcontroller.attempt`)
	require.NoError(t, err)
	b.Renew(bEast)
	require.NoError(t, b.Resolve(b.ID(bEast)))
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	require.Error(t, putOnce(t, b, "//"+bWest+"/holders/late", body{"block": holder}))
	b.Settle()
	b.Gone(target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// A request is repeated while its first run looks ahead: both get the answer of the one that decides.
func TestARepeatedRequestOfAnAtomicDeletion_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	req := shadow.DeleteRequest{Name: "targets/t", Atomic: true, RequestID: uuid.New()}
	deletions := b.Stores[b.ID(aWest)].Deletions
	var again peer.DeleteResult
	var failed error
	b.AfterPlan = func() {
		b.AfterPlan = nil
		again, failed = deletions.Delete(context.Background(), req)
	}
	first, err := deletions.Delete(t.Context(), req)
	require.NoError(t, failed)
	require.NoError(t, err)
	require.Equal(t, again.Deletion, first.Deletion)
	b.Settle()
	b.Gone(target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// More members than one transaction marks, and members that act later, are frozen in the database of the root
// too.
func TestAnAtomicDeletionBeyondOneTransaction_I35(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Limits.LocalCascade = 2 })
	b.MustPut(target, nil)
	names := []string{target}
	for i := range 5 {
		member := fmt.Sprintf("//%s/targets/m%d", aWest, i)
		b.MustPut(member, body{"next": target})
		later := fmt.Sprintf("//%s/holders/l%d", bEast, i)
		b.MustPut(later, body{"asyncCascade": member})
		names = append(names, member, later)
	}
	b.Settle()
	var refused error
	b.AfterPlan = func() {
		if b.Count(bEast, "frozen") == 5 {
			refused = putOnce(t, b, "//"+bEast+"/holders/late", body{"block": "//" + aWest + "/targets/m4"})
		}
	}
	_, err := deleteAtomically(t.Context(), b, target)
	b.AfterPlan = nil
	require.NoError(t, err)
	require.Error(t, refused)
	b.Settle()
	b.Gone(names...)
	requireNothingFrozen(t, b, aWest, bEast)
	b.Audit()
}

// The database of a participant fails over after the decision, and loses nothing.
func TestMembersStayClosedThroughAFailoverOfTheirOwn_I35(t *testing.T) {
	t.Parallel()
	b := newCommittedChain(t)
	b.Renew(aEast)
	_, err := b.Do(b.ID(aEast), schema.AnnounceEpoch)
	require.NoError(t, err)
	require.Error(t, putOnce(t, b, "//"+bWest+"/holders/late", body{"block": middle}))
	b.Settle()
	b.Gone(target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}
