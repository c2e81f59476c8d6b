package shadow_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
)

// A right of a lost epoch, under which nothing stands, is returned without a delete that recalls it.
func TestAnIdleRightOfALostEpochIsReturned_I30(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	for _, failing := range []string{aWest, bEast} {
		idleRight(t, b)
		require.Equal(t, 1, b.Count(aWest, "blockade"))
		b.Renew(failing)
		b.Settle()
		require.Zero(t, b.Count(aWest, "blockade"), failing)
		_, proxies := blockRights(t, b, bEast)
		require.Zero(t, proxies)
	}
	b.Audit()
}

// A deployment has acknowledged a deletion that its right to block keeps waiting, and its database is
// restored to before: it is told again, though it has no entry at the target.
func TestADeploymentWithARightIsToldAgain_I1_I30(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, services, withBlockRights, aWest, aEast, bEast)
	root := "//" + aEast + "/targets/root"
	b.MustPut(root, nil)
	b.MustPut(target, body{"next": root})
	b.Settle()
	b.MustDelete(root) // no holder blocks it now; the cascade has not arrived
	for n := range 2 {
		b.MustPut(holderNumber(n), body{"block": target})
	}
	for range 2 {
		_, err := b.Do(b.ID(bEast), schema.Confirm)
		require.NoError(t, err)
	}
	unasked(t, b, holderNumber(2), body{"block": target})
	restore := b.Backup(bEast)
	b.Settle()
	require.Equal(t, peer.Deleting, b.Get(target).State)
	told := func() bool {
		seen, _ := b.Seen(b.ID(bEast), b.ID(aWest))
		return len(seen) > 0
	}
	require.False(t, told(), "it has acknowledged")
	restore()
	b.Recover(bEast)
	announced(t, b, bEast)
	_, err := b.Do(b.ID(aWest), schema.VerifyBlockades)
	require.NoError(t, err)
	require.True(t, told())
	b.Settle()
	require.False(t, told())
	for n := range 3 {
		b.MustPut(holderNumber(n), nil)
	}
	b.Settle()
	b.Gone(target)
	b.Audit()
}

// Between the two looks of a recall its database begins another epoch: the numbers of rows may belong to
// other rows, so it ends nothing.
func TestARecallInAnEpochThatHasEndedEndsNothing_I8_I30(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	idleRight(t, b)
	var attempt uuid.UUID
	require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(),
		`SELECT block_attempt FROM dbcontroller.foreign_target`).Scan(&attempt))
	g := newGate("INSERT INTO dbcontroller.ending")
	process := gatedProcess(t, b, bEast, g, b.Stores[b.ID(bEast)].Model())
	open := sync.OnceFunc(func() { close(g.open) })
	t.Cleanup(open)
	g.arm(0)
	uid := b.Get(target).UID
	recalled := make(chan error, 1)
	go func() {
		key := peer.BlockadeKey{Attempt: attempt, HolderUID: uid, Path: peer.RightPath, TargetUID: uid}
		_, err := process.Rights.Recall(t.Context(), b.ID(aWest),
			[]peer.Recall{{Question: peer.Question{Key: key}, Mode: peer.RecallIfFree}})
		recalled <- err
	}()
	<-g.reached
	b.Renew(bEast)
	open()
	require.ErrorAs(t, <-recalled, new(*peer.UnavailableError))
	_, proxies := blockRights(t, b, bEast)
	require.Equal(t, 1, proxies)
}
