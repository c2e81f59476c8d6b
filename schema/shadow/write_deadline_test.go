package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
)

// A write that is retried until its deadline, and is in the middle of a try then, reports the failure of the
// last complete try.
func TestAWritePastItsDeadlineReturnsTheLastFailure(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	g := newGate("begin")
	store := gatedProcess(t, b, aWest, g, b.Stores[b.ID(aWest)].Model())
	// as after a failover
	_, err := b.Pools[b.ID(aWest)].Exec(t.Context(), `UPDATE dbcontroller.meta SET timeline = 'another'`)
	require.NoError(t, err)
	g.arm(1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		_, err := store.Write.Save(ctx, []peer.Write{{Name: "targets/early"}})
		answer <- err
	}()
	select {
	case <-g.reached: // the second try
	case err := <-answer:
		require.FailNow(t, "there was no second try", "%v", err)
	}
	<-ctx.Done()
	close(g.open)
	err = <-answer
	require.ErrorIs(t, err, peer.ErrAborted)
	require.ErrorContains(t, err, "failed over")
}
