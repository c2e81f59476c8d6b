package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
)

// A holder's database goes back to a backup in which the holder refers to the target by an earlier attempt.
// Until its epoch is announced it says of no attempt that it is gone: the target's deployment does not wait
// for the comparison yet.
func TestARestoredHolderDeniesNothingBeforeItsEpochIsKnown_I2_I3(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore := b.Backup(bEast)
	b.MustPut(holder, nil)
	b.Settle()
	b.MustPut(holder, body{"block": target})
	b.Expire(aWest) // the confirm of the second attempt is lost with the database
	restore()
	store := b.Stores[b.ID(bEast)]
	_, err := store.Gate.NoticeEpoch(t.Context())
	require.NoError(t, err)
	for range 2 { // before and after its recovery begins
		_, err = b.Delete(target)
		require.ErrorAs(t, err, new(*peer.UnavailableError))
		require.NoError(t, store.Gate.Recover(t.Context(), b.Environment()))
	}
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}
