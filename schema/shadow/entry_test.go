package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
)

// unreferred gives a target a holder entry and no reference, with a look that has begun, and returns the
// look.
func unreferred(t *testing.T, b *harness.Box) peer.EntryLooks {
	t.Helper()
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"cascade": target})
	b.Settle()
	b.MustPut(holderNumber(0), body{})
	b.Settle()
	_, err := b.Stores[b.ID(bEast)].Admin.Tidy(t.Context())
	require.NoError(t, err)
	_, err = b.Do(b.ID(bEast), schema.Release)
	require.NoError(t, err)
	require.Equal(t, 1, b.Count(aWest, "holder_entry"), "it is asked about first")
	var seqs []int64
	for _, w := range b.Work(b.ID(aWest)) {
		require.Equal(t, schema.LookAtEntry, w.Action)
		seqs = append(seqs, w.Seq)
	}
	require.Len(t, seqs, 1)
	looks, err := b.Stores[b.ID(aWest)].Targets.EntriesToLookAt(t.Context(), b.ID(bEast), seqs)
	require.NoError(t, err)
	require.Len(t, looks.Entries, 1)
	return looks
}

// unused asks the holders' deployment, and ends the look.
func unused(t *testing.T, b *harness.Box, looks peer.EntryLooks) (ended bool, err error) {
	t.Helper()
	recalled, err := b.Stores[b.ID(bEast)].Rights.Recall(t.Context(), b.ID(aWest),
		[]peer.Recall{peer.IfUnused(looks.Entries[0].Target)})
	require.NoError(t, err)
	ended = recalled.Answers[0].Closed
	return ended, b.Stores[b.ID(aWest)].Targets.EntriesLookedAt(t.Context(), b.ID(bEast), looks, recalled.Epoch,
		[]bool{ended})
}

// A holder entry goes with the last acting reference, and another one comes with the next.
func TestAnEntryLeavesWithItsLastReference_I4_I8(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	looks := unreferred(t, b)
	ended, err := unused(t, b, looks)
	require.NoError(t, err)
	require.True(t, ended)
	require.Zero(t, b.Count(aWest, "holder_entry"))
	require.Empty(t, b.Work(b.ID(aWest)))
	b.MustPut(holderNumber(1), body{"cascade": target})
	b.Settle()
	require.Equal(t, 1, b.Count(aWest, "holder_entry"))
	b.MustDelete(target)
	b.Settle()
	require.Nil(t, b.Get(holderNumber(1)))
	b.Audit()
}

// The answer to the question is older than a reference that was confirmed meanwhile.
func TestAnEntryThatIsConfirmedAgainStays_I4(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	looks := unreferred(t, b)
	recalled, err := b.Stores[b.ID(bEast)].Rights.Recall(t.Context(), b.ID(aWest),
		[]peer.Recall{peer.IfUnused(looks.Entries[0].Target)})
	require.NoError(t, err)
	require.True(t, recalled.Answers[0].Closed)
	b.MustPut(holderNumber(1), body{"cascade": target})
	_, err = b.Do(b.ID(bEast), schema.Confirm)
	require.NoError(t, err)
	require.NoError(t, b.Stores[b.ID(aWest)].Targets.EntriesLookedAt(t.Context(), b.ID(bEast), looks, recalled.Epoch,
		[]bool{true}))
	require.Equal(t, 1, b.Count(aWest, "holder_entry"))
	b.MustDelete(target)
	b.Settle()
	require.Nil(t, b.Get(holderNumber(1)))
	b.Audit()
}

// An entry that is looked at grants no acting right to the confirm of a blocking reference: it may go.
func TestAnEntryThatIsLookedAtGrantsNothing_I30(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	looks := unreferred(t, b)
	b.MustPut(holderNumber(1), body{"block": target})
	_, err := b.Do(b.ID(bEast), schema.Confirm)
	require.NoError(t, err)
	require.Zero(t, rights(t, b, bEast))
	ended, err := unused(t, b, looks)
	require.NoError(t, err)
	require.True(t, ended)
	b.MustPut(holderNumber(2), body{"cascade": target})
	b.Settle()
	require.Equal(t, 1, rights(t, b, bEast), "an entry that was confirmed since grants")
	b.Audit()
}

// The right ends before the answer: nothing is written under it afterwards.
func TestAnUnusedRightEndsWithItsEntry_I30_I31(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"cascade": target})
	b.Settle()
	uid := b.Get(target).UID
	ask := func() bool {
		recalled, err := b.Stores[b.ID(bEast)].Rights.Recall(t.Context(), b.ID(aWest),
			[]peer.Recall{peer.IfUnused(uid)})
		require.NoError(t, err)
		return recalled.Answers[0].Closed
	}
	require.False(t, ask(), "it is used")
	require.Equal(t, 1, rights(t, b, bEast))
	b.MustPut(holderNumber(0), body{})
	b.Settle()
	require.Equal(t, 1, rights(t, b, bEast))
	require.True(t, ask())
	require.Zero(t, rights(t, b, bEast))
}

// An entry that was looked at in another epoch, or whose target is being deleted, stays.
func TestAnEntryOfAnotherEpochStays_I4(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	looks := unreferred(t, b)
	recalled, err := b.Stores[b.ID(bEast)].Rights.Recall(t.Context(), b.ID(aWest),
		[]peer.Recall{peer.IfUnused(looks.Entries[0].Target)})
	require.NoError(t, err)
	b.Renew(bEast)
	_, err = b.Do(b.ID(bEast), schema.AnnounceEpoch)
	require.NoError(t, err)
	err = b.Stores[b.ID(aWest)].Targets.EntriesLookedAt(t.Context(), b.ID(bEast), looks, recalled.Epoch, []bool{true})
	require.ErrorIs(t, err, peer.ErrStaleEpoch)
	require.Equal(t, 1, b.Count(aWest, "holder_entry"))
}
