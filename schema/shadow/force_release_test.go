package shadow_test

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// releasable returns the one row of a kind that can be released of a resource.
func releasable(t *testing.T, at *shadow.Store, name, what string) shadow.Releasable {
	t.Helper()
	all, _, err := at.Operate.Releasable(t.Context(), name, 10, "")
	require.NoError(t, err)
	var found []shadow.Releasable
	for _, r := range all {
		if r.What == what {
			found = append(found, r)
		}
	}
	require.Len(t, found, 1, "%+v", all)
	require.NotEmpty(t, found[0].Breaks)
	return found[0]
}

// forceRelease releases a key, and reports whether its row was there.
func forceRelease(t *testing.T, at *shadow.Store, key string) bool {
	t.Helper()
	before, err := at.Operate.OperatorDecisions(t.Context())
	require.NoError(t, err)
	released, err := at.Operate.ForceRelease(t.Context(), []string{key}, false, "ticket 1", "operator/eve")
	require.NoError(t, err)
	after, err := at.Operate.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Len(t, after, len(before)+len(released), "what is released is recorded, and a repetition is not")
	if len(released) == 0 {
		return false
	}
	require.Equal(t, []string{key}, released)
	require.Equal(t, "operator/eve", after[0].By)
	require.Contains(t, after[0].Reason, key+": ticket 1")
	return true
}

// confirmLate makes a holder's deployment send the confirm of an attempt once more.
func confirmLate(t *testing.T, b *harness.Box, attempt peer.AttemptID) {
	t.Helper()
	const sql = `INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt) SELECT 1, 0, id, $1 FROM dbcontroller.deployment WHERE service = $2 AND region = $3`
	_, err := b.Pools[b.ID(bEast)].Exec(t.Context(), sql, attempt, b.ID(aWest).Service, b.ID(aWest).Region)
	require.NoError(t, err)
}

// The entries of a resource that is not being deleted are listed with the reason why they stay, and the
// rights that may rest on them.
func TestEntriesOfAnActiveResourceAreListed(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	west := b.Stores[b.ID(aWest)]
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	all, _, err := west.Operate.Releasable(t.Context(), "targets/t", 10, "")
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "RIGHTS", all[1].What)
	require.Equal(t, "HOLDER_ENTRY", all[0].What)
	require.Equal(t, bEast, all[0].Other)
	require.Contains(t, all[0].Refused, "a deletion needs it to reach "+bEast)
	require.False(t, forceRelease(t, west, all[0].Key))
	require.Equal(t, 1, b.Count(aWest, "holder_entry"))
}

// The rows that tie a resource are listed page by page, each once, of all kinds.
func TestReleasableRowsHavePages(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	west := b.Stores[b.ID(aWest)]
	b.MustPut(target, nil)
	for n := range 5 {
		b.MustPut(holderNumber(n), body{"block": target, "cascade": target})
	}
	b.Settle()
	whole, next, err := west.Operate.Releasable(t.Context(), "targets/t", 10, "")
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, whole, 7, "5 blockades, 1 entry, its rights")
	for size := 1; size <= 7; size++ {
		var keys []string
		for token := ""; ; {
			page, next, err := west.Operate.Releasable(t.Context(), "targets/t", size, token)
			require.NoError(t, err)
			require.LessOrEqual(t, len(page), size)
			for _, r := range page {
				keys = append(keys, r.Key)
			}
			if token = next; token == "" {
				break
			}
		}
		for i, r := range whole {
			require.Equal(t, r.Key, keys[i], "pages of %d", size)
		}
		require.Len(t, keys, len(whole))
	}
	_, next, err = west.Operate.Releasable(t.Context(), "targets/t", 2, "")
	require.NoError(t, err)
	b.MustPut(target2, nil)
	forged := base64.RawURLEncoding.EncodeToString([]byte(`{"u":"` + b.Get(target).UID.String() +
		`","s":1,"a":["x","y","z"]}`))
	for _, bad := range []string{"x", next[:len(next)-2], forged} {
		_, _, err = west.Operate.Releasable(t.Context(), "targets/t", 2, bad)
		require.ErrorAs(t, err, new(*peer.InvalidError), bad)
	}
	_, _, err = west.Operate.Releasable(t.Context(), "targets/t2", 2, next)
	require.ErrorAs(t, err, new(*peer.InvalidError), "it is of another resource")
	_, err = b.Pools[b.ID(aWest)].Exec(t.Context(), `UPDATE dbcontroller.shadow SET state = 2 WHERE name = 'targets/t'`)
	require.NoError(t, err)
	_, _, err = west.Operate.Releasable(t.Context(), "targets/t", 2, next)
	require.ErrorIs(t, err, peer.ErrAborted)
}

// A blockade is released by its key alone. A late message about a reference that exists establishes it again,
// under a key that the operator has not seen; the released attempt establishes nothing any more.
func TestAForcedReleaseOfABlockade_I3_I7(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	west := b.Stores[b.ID(aWest)]
	first := b.MustPut(target, nil)
	h := b.MustPut(holder, body{"block": target})

	young := releasable(t, west, "targets/t", "BLOCKADE")
	require.Equal(t, holder, young.Other)
	require.NotEmpty(t, young.Refused, "its write may be under way")
	_, err := west.Operate.ForceRelease(t.Context(), []string{young.Key}, false, "ticket 1", "operator/eve")
	require.ErrorIs(t, err, peer.ErrAborted)
	b.Expire(aWest)
	require.True(t, forceRelease(t, west, releasable(t, west, "targets/t", "BLOCKADE").Key))
	require.Zero(t, b.Count(aWest, "blockade"))
	b.Settle() // the confirm of the write is on its way
	b.Audit()

	late := keyOf(t, b, h, first.UID)
	seen := releasable(t, west, "targets/t", "BLOCKADE")
	require.Empty(t, seen.Refused)
	// The same reference once more, under another attempt.
	other := `attempt, field_id, deployment_id, holder_kind_id, behaviour, expires_at, holder_name`
	_, err = b.Pools[b.ID(aWest)].Exec(t.Context(), `INSERT INTO dbcontroller.blockade (target_id, holder_uid, `+other+`)
SELECT target_id, holder_uid, `+strings.Replace(other, "attempt", "gen_random_uuid()", 1)+` FROM dbcontroller.blockade`)
	require.NoError(t, err)
	require.True(t, forceRelease(t, west, seen.Key))
	require.False(t, forceRelease(t, west, seen.Key))
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	_, err = b.Pools[b.ID(aWest)].Exec(t.Context(), `DELETE FROM dbcontroller.blockade`)
	require.NoError(t, err)
	_, err = west.Targets.Establish(t.Context(), b.ID(bEast), late.Attempt,
		[]peer.EstablishReference{reference("block", 1, h.UID)})
	require.Error(t, err, "a late establish")
	confirmLate(t, b, late.Attempt)
	b.Settle()
	b.Audit()
	require.False(t, forceRelease(t, west, seen.Key), "the blockade of the reference that exists is another one")
	require.Equal(t, 1, b.Count(aWest, "blockade"))

	require.True(t, forceRelease(t, west, releasable(t, west, "targets/t", "BLOCKADE").Key))
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	b.MustPut(target, nil) // of another uid
	require.False(t, forceRelease(t, west, seen.Key))
}

// A resource in DELETING does not wait for a deployment whose entry is released. A confirm that comes later
// inserts a newer notice, which a repetition leaves alone; an acknowledgement that comes later has no effect.
func TestAForcedReleaseOfAHolderEntry_I4(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	west, east := b.Stores[b.ID(aWest)], b.ID(bEast)
	uid := b.MustPut(target, nil).UID
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	active := "HOLDER_ENTRY|" + uid.String() + "|" + bEast + "|9999"
	require.False(t, forceRelease(t, west, active), "the entry of an ACTIVE resource is needed by its deletion")
	b.MustPut(holder2, body{"cascade": target}) // its confirm is on its way
	b.MustDelete(target)
	_, position := b.Seen(east, b.ID(aWest))

	seen := releasable(t, west, "targets/t", "HOLDER_ENTRY")
	require.Equal(t, bEast, seen.Other)
	own := strings.Replace(seen.Key, bEast, aWest, 1)
	_, err := west.Operate.ForceRelease(t.Context(), []string{own}, false, "ticket 1", "operator/eve")
	require.ErrorContains(t, err, "its work is done here")
	require.True(t, forceRelease(t, west, seen.Key))
	require.Zero(t, b.Count(aWest, "holder_entry"))
	_, err = b.Do(b.ID(aWest), schema.Finalise)
	require.NoError(t, err)
	require.Equal(t, 1, b.Count(aWest, "deleting"), "the tentative blockade of the second holder")

	_, err = b.Do(east, schema.Confirm)
	require.NoError(t, err)
	require.Equal(t, 1, b.Count(aWest, "holder_entry"))
	require.False(t, forceRelease(t, west, seen.Key))
	require.Equal(t, 1, b.Count(aWest, "notice"))
	require.NoError(t, west.Targets.Acknowledge(t.Context(), east, b.Stores[east].Gate.PresentEpoch(), position, nil))
	require.Equal(t, 1, b.Count(aWest, "notice"), "of a later position")

	require.True(t, forceRelease(t, west, releasable(t, west, "targets/t", "HOLDER_ENTRY").Key))
	_, err = b.Do(b.ID(aWest), schema.Finalise)
	require.NoError(t, err)
	b.Gone(target)
	require.NoError(t, west.Targets.Acknowledge(t.Context(), east, b.Stores[east].Gate.PresentEpoch(), position, nil))
	require.NotNil(t, b.Get(holder), "nobody told its deployment")
	found := map[string]int{}
	_, err = b.Stores[east].Verify.Verify(t.Context(), shadow.Verification{Report: func(d shadow.Difference) error {
		found[d.Holder.String()]++
		return nil
	}})
	require.NoError(t, err)
	require.Equal(t, map[string]int{holder: 1, holder2: 1}, found, "verify names what dangles")
}

// An owner does not wait for the deployment of ownees whose entry is released; verify there finds the ownees
// later.
func TestAForcedReleaseOfAnOwneeEntry_I17(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	west, east := b.Stores[b.ID(aWest)], b.Stores[b.ID(bEast)]
	full, err := schema.ParseFullName(target)
	require.NoError(t, err)
	owner := b.MustPut(target, nil)
	_, err = b.PutOwned(holder, nil, peer.OwnerReference{Owner: full, Kind: "Target"})
	require.NoError(t, err)
	b.Settle()
	waits, err := west.Operate.RetryResource(t.Context(), "targets/t", "ticket 0", "operator/eve")
	require.NoError(t, err)
	require.Empty(t, waits)
	decisions, err := west.Operate.OperatorDecisions(t.Context())
	require.NoError(t, err)
	require.Contains(t, decisions[0].Reason, "targets/t "+owner.UID.String()+": ticket 0")
	b.SetDown(bEast, true)
	require.False(t, forceRelease(t, west, "OWNEE_ENTRY|"+owner.UID.String()+"|"+bEast),
		"the entry of an ACTIVE owner is needed by its deletion")
	b.MustDelete(target)
	b.Settle()
	require.Equal(t, 1, b.Count(aWest, "deleting"))
	waits, err = west.Operate.RetryResource(t.Context(), "targets/t", "ticket 1", "operator/eve")
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, waits)

	seen := releasable(t, west, "targets/t", "OWNEE_ENTRY")
	require.True(t, forceRelease(t, west, seen.Key))
	require.False(t, forceRelease(t, west, seen.Key))
	for _, w := range b.Work(b.ID(aWest)) {
		require.Equal(t, schema.Finalise, w.Action, "no message to the other deployment is left")
	}
	b.Settle()
	b.Gone(target)
	b.SetDown(bEast, false)
	b.Settle()
	require.NotNil(t, b.Get(holder))
	_, err = east.Verify.Verify(t.Context(), shadow.Verification{Repair: true, Report: func(shadow.Difference) error {
		return nil
	}})
	require.NoError(t, err)
	b.Settle()
	b.Gone(holder)
	b.Audit()
}

// A released owner reference is gone as after a user's update: the resource stays without owners. An equal
// reference that is written later has another key.
func TestAForcedReleaseOfAnOwnerReference_I16(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	east := b.Stores[b.ID(bEast)]
	full, err := schema.ParseFullName(target)
	require.NoError(t, err)
	b.MustPut(target, nil)
	own := func(owners ...peer.OwnerReference) {
		t.Helper()
		_, err := b.PutOwned(holder, nil, owners...)
		require.NoError(t, err)
		b.Settle()
	}
	own(peer.OwnerReference{Owner: full, Kind: "Target"})
	seen := releasable(t, east, "holders/h", "OWNER_REFERENCE")
	require.Equal(t, target, seen.Other)
	require.True(t, forceRelease(t, east, seen.Key))
	require.Empty(t, b.Get(holder).Owners)
	require.False(t, forceRelease(t, east, seen.Key))
	b.Audit()

	own(peer.OwnerReference{Owner: full, Kind: "Target"})
	require.False(t, forceRelease(t, east, seen.Key))
	require.Len(t, b.Get(holder).Owners, 1)
	require.True(t, forceRelease(t, east, releasable(t, east, "holders/h", "OWNER_REFERENCE").Key))
	b.MustDelete(target) // its deployment tells this one
	b.Settle()
	b.Gone(target)
	require.NotNil(t, b.Get(holder))
	b.Audit()
}

// Keys are checked before a row is released.
func TestForcedReleasesAreRefusedWithoutAKeyOrAReason(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	west := b.Stores[b.ID(aWest)]
	uid := b.MustPut(target, nil).UID.String()
	good := "OWNEE_ENTRY|" + uid + "|" + bEast
	for _, keys := range [][]string{
		nil,
		{""},
		{good, "x|y"},
		{"BLOCKADE|" + uid + "|" + bEast},
		{"OWNEE_ENTRY|" + uid + "|nowhere"},
	} {
		_, err := west.Operate.ForceRelease(t.Context(), keys, false, "ticket 1", "operator/eve")
		require.ErrorAs(t, err, new(*peer.InvalidError), "%q", keys)
	}
	_, err := west.Operate.ForceRelease(t.Context(), []string{good}, false, "", "operator/eve")
	require.ErrorContains(t, err, "reason")
	require.ErrorContains(t, west.Operate.Retry(t.Context(), schema.DeploymentID{}, "", "operator/eve"), "reason")
	_, _, err = west.Operate.Releasable(t.Context(), "targets/none", 10, "")
	require.ErrorIs(t, err, peer.ErrNotFound)
}

// A retry reaches every process of the deployment, and is recorded.
func TestARetryReachesOtherProcesses(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	west := b.Stores[b.ID(aWest)]
	other := b.SecondProcess(aWest, shadow.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = other.RunNotifications(ctx) }()
	defer func() { cancel(); <-done }()
	here, there := west.Operate.ListenRetries(ctx), other.Operate.ListenRetries(ctx)
	require.NoError(t, west.Operate.Retry(ctx, b.ID(bEast), "ticket 1", "operator/eve"))
	require.Equal(t, b.ID(bEast), <-here)
	for heard := false; !heard; { // until it listens
		require.NoError(t, west.Operate.Retry(ctx, schema.DeploymentID{}, "ticket 2", "operator/eve"))
		select {
		case of := <-there:
			heard = of.IsZero()
		case <-time.After(20 * time.Millisecond):
		}
	}
	decisions, err := west.Operate.OperatorDecisions(ctx)
	require.NoError(t, err)
	require.Equal(t, "WORK_RETRIED", decisions[0].What)
	require.Equal(t, "ticket 2", decisions[0].Reason)
	require.Equal(t, b.ID(aWest), decisions[0].Deployment)
	require.Equal(t, b.ID(bEast), decisions[len(decisions)-1].Deployment)
}
