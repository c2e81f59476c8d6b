package shadow_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// A caller does not shorten the retention of a kind: only Now does without it.
func TestTheRetentionOfAKindIsAMinimum(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, strings.Replace(services, "kind: Target\n", "kind: Target\n    retention: 7d\n", 1), nil,
		aWest, bEast)
	b.MustPut(target, nil)
	found, err := b.Stores[b.ID(aWest)].Deletions.PlanDelete(t.Context(), "targets/t")
	require.NoError(t, err)
	require.Equal(t, 7*24*time.Hour, found.Retention)
	r, err := b.Stores[b.ID(aWest)].Deletions.Delete(t.Context(), shadow.DeleteRequest{
		Name:      "targets/t",
		Retention: time.Second,
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.Resource.PurgeAt.Sub(r.Resource.DeletedAt), 7*24*time.Hour)
}

// A list of removals has each removed resource once, and none that still has a finalizer.
func TestRemovalsOfHiddenResources(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, strings.Replace(services, "kind: Holder\n",
		"kind: Holder\n    finalizers: [{name: clean, holder: user/cleaner}]\n", 1), nil, aWest, bEast)
	since := func(token string) (names []string) {
		found, _, err := b.Stores[b.ID(bEast)].Operate.Removals(t.Context(), shadow.RemovalQuery{Since: token}, "", 100)
		require.NoError(t, err)
		for _, r := range found {
			names = append(names, r.Name)
		}
		return names
	}
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	token := resourcesToken(t, b.Stores[b.ID(bEast)], "", "")
	schedule(t, b, target)
	require.Empty(t, since(token))
	_, err := undelete(t, b, target)
	require.NoError(t, err)
	b.Settle()
	require.Empty(t, since(token))
	schedule(t, b, target)
	require.NoError(t, comeDue(t, b, aWest))
	b.Settle()
	require.Equal(t, peer.Deleting, b.Get(holder).State)
	require.Empty(t, since(token))
	_, err = b.Stores[b.ID(bEast)].Write.RemoveFinalizer(t.Context(), "holders/h", b.Get(holder).UID, "clean")
	require.NoError(t, err)
	b.Settle()
	b.Gone(holder)
	require.Equal(t, []string{"holders/h"}, since(token))
}

// The deletion bears the name of the first resource that it has hidden.
func TestAMissingResourceIsNoRoot_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	_, err := b.Stores[b.ID(aWest)].Deletions.DeleteAll(t.Context(), []shadow.DeleteRequest{
		{Name: "targets/missing", AllowMissing: true, Retention: time.Hour}, {Name: "targets/t", AllowMissing: true},
	})
	require.NoError(t, err)
	b.Settle()
	requireHidden(t, b, target, middle, holder)
	_, err = undelete(t, b, holder)
	require.ErrorContains(t, err, target)
	all, _, err := b.Stores[b.ID(bEast)].Deletions.ListScheduled(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, target, all[0].Root)
}

// A member that is one for the resource of a decommissioned deployment is one for another owner too.
func TestADecommissioningBesideAScheduledDeletion_I36(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"undelete", "purge"} {
		b := newBox(t, nil)
		b.MustPut(target, nil)
		goes, stays, ownee := "//"+bWest+"/holders/w", "//"+bEast+"/holders/e", "//"+aEast+"/targets/owned"
		b.MustPut(goes, body{"cascade": target})
		b.MustPut(stays, body{"cascade": target})
		mustOwn(t, b, ownee, nil, owner(t, goes, "Holder"), owner(t, stays, "Holder"))
		b.Settle()
		schedule(t, b, target)
		requireHidden(t, b, target, goes, stays, ownee)
		for _, d := range []string{aWest, aEast, bEast} {
			require.NoError(t, b.Stores[b.ID(d)].Admin.Decommission(t.Context(),
				shadow.Decommissioned{
					Deployment: b.ID(bWest), Blocking: schema.Unset, Reason: "burnt down",
					By: "operator/ann",
				}))
		}
		b.SetDown(bWest, true)
		b.Settle()
		requireHidden(t, b, target, stays, ownee)
		if end == "undelete" {
			_, err := undelete(t, b, target)
			require.NoError(t, err)
			b.Settle()
			requireVisible(t, b, target, stays, ownee)
		} else {
			require.NoError(t, comeDue(t, b, aWest))
			b.Settle()
			b.Gone(target, stays, ownee)
		}
		requireNothingFrozen(t, b, aWest, aEast, bEast)
	}
}

// A target was restored to before the references, and an operator did not wait for the comparison: one target
// is hidden. The comparison establishes the others again.
func TestAHiddenTargetKeepsNoComparison_I1_I36(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"unset": target})
	b.MustPut(holder2, body{"block": target2})
	b.Settle()
	restore()
	b.SetDown(bEast, true)
	b.Recover(aWest)
	b.Settle()
	require.NoError(t, b.Stores[b.ID(aWest)].Operate.WaiveComparison(t.Context(), b.ID(bEast), "it is away",
		"operator/ann"))
	_, err := tryToSchedule(t.Context(), b, target)
	require.NoError(t, err)
	b.SetDown(bEast, false)
	b.Settle()
	_, _ = b.Do(b.ID(bEast), schema.ConfirmAgain) // it waits for the hidden target
	_, err = b.Delete(target2)
	require.Error(t, err)
	_, err = undelete(t, b, target)
	require.NoError(t, err)
	b.Settle()
	_, _ = b.Do(b.ID(bEast), schema.ConfirmAgain)
	b.MustDelete(target)
	b.Settle()
	require.NotContains(t, string(b.Get(holder).Body), "unset")
}

// Other deletions, for good, take the owners of a hidden ownee one after the other. It stays hidden, without
// owners, until its own deletion ends.
func TestAHiddenOwneeKeepsNoDeletion_I20_I36(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	third := "//" + aWest + "/targets/t3"
	for _, n := range []string{target, target2, third} {
		b.MustPut(n, nil)
	}
	plain, flagged, ownee := "//"+bEast+"/holders/plain", "//"+bWest+"/holders/flagged", "//"+aEast+"/targets/owned"
	b.MustPut(plain, body{"cascade": target, "asyncCascade": target2})
	b.MustPut(flagged, body{"cascade": target, "asyncCascade": third})
	mustOwn(t, b, ownee, nil, owner(t, plain, "Holder"), unsets(owner(t, flagged, "Holder")))
	b.Settle()
	schedule(t, b, target)
	requireHidden(t, b, target, plain, flagged, ownee)
	b.MustDelete(target2)
	b.Settle()
	b.Gone(target2, plain)
	b.MustDelete(third)
	b.Settle()
	b.Gone(third, flagged)
	require.NoError(t, comeDue(t, b, aWest))
	b.Settle()
	b.Gone(target)
	for range 3 {
		b.Expire(aEast)
		_ = b.Resolve(b.ID(aEast))
		b.Settle()
	}
	requireNothingFrozen(t, b, everywhere...)
}

// A hidden holder blocks, and is named among the referrers.
func TestAHiddenHolderIsAReferrer_I36(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	schedule(t, b, holder)
	_, err := b.Delete(target)
	require.ErrorContains(t, err, holder)
	full, err := schema.ParseFullName(target)
	require.NoError(t, err)
	found, err := b.Stores[b.ID(bEast)].Operate.Referrers(t.Context(), shadow.ReferrersRequest{
		Target: full,
		UID:    b.Get(target).UID, Limit: 10,
	})
	require.NoError(t, err)
	require.Len(t, found.List, 1)
}

// Another deletion takes the hidden resource: nothing is left to undelete, and nothing is listed.
func TestADeletionTakesAHiddenResource_I36(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"asyncCascade": target})
	b.Settle()
	schedule(t, b, holder)
	b.MustDelete(target)
	b.Settle()
	b.Gone(target, holder)
	all, total, err := b.Stores[b.ID(bEast)].Deletions.ListScheduled(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, all)
	require.Zero(t, total)
}

// The database of the coordinator loses the undelete, which the other deployments have carried out.
func TestAnUndeleteThatIsLost_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	schedule(t, b, target)
	restore := b.Backup(aWest)
	_, err := undelete(t, b, target)
	require.NoError(t, err)
	b.Settle()
	restore()
	b.Recover(aWest)
	b.Settle()
	requireVisible(t, b, target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
}
