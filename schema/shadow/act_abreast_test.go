package shadow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

// The fixture's deletion has a thousand holders. The first 201 go in a small batch; then a transaction holds
// a lock in each half of the others.
func newHoldersOfOne(t *testing.T) (b *harness.Box, act func() (ended <-chan error), release func()) {
	t.Helper()
	b = newPair(t, nil)
	b.MustPut(target, nil)
	putHolders(t, b, "h", 1000, body{"cascade": target})
	b.Settle()
	release = hold(t, b, bEast, `
SELECT FROM dbcontroller.shadow WHERE id IN (
    (SELECT holder_id FROM dbcontroller.reference ORDER BY holder_id OFFSET 400 LIMIT 1) UNION ALL (SELECT holder_id FROM dbcontroller.reference ORDER BY holder_id OFFSET 900 LIMIT 1)
) FOR UPDATE`)
	return b, func() <-chan error {
		b.MustDelete(target)
		ended := make(chan error, 1)
		go func() {
			_, err := b.Act(b.ID(bEast), b.ID(aWest))
			ended <- err
		}()
		return ended
	}, release
}

func TestTwoBatchesOfALargeDeletionRunAtATime(t *testing.T) {
	t.Parallel()
	b, act, release := newHoldersOfOne(t)
	ended := act()
	stopped(t, b, bEast, 2)
	release()
	require.NoError(t, <-ended)
	b.Settle()
	b.Gone(target)
	require.Zero(t, b.Count(bEast, "shadow"))
	b.Audit()
}

// Holders with holders of their own: the closures of two batches can have common members, and would wait for
// each other.
func TestBatchesThatCanMeetRunOneAfterTheOther(t *testing.T) {
	t.Parallel()
	b, act, release := newHoldersOfOne(t)
	b.MustPut(fmt.Sprintf("//%s/holders/near", bEast),
		body{"near": map[string]any{"cascade": fmt.Sprintf("//%s/holders/h0", bEast)}})
	ended := act()
	waiting, most := 0, 0
	for running := true; running; {
		err := b.Pools[b.ID(bEast)].QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted AND
			pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&waiting)
		require.NoError(t, err)
		most = max(most, waiting)
		select {
		case err := <-ended:
			require.NoError(t, err)
			running = false
		case <-time.After(5 * time.Millisecond):
		}
	}
	require.Equal(t, 1, most)
	release()
	b.Settle()
	b.Gone(target)
	require.Zero(t, b.Count(bEast, "shadow"))
	b.Audit()
}

// A holder in common may show only behind the first locks of two batches: each has a holder in the other
// one's cascade. They wait for each other, and then run one after the other: no holder counts as locked by
// another transaction.
func TestBatchesThatHaveMetRunOneAfterTheOther(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	putHolders(t, b, "h", 1000, body{"cascade": target})
	near := func(holder, of int) {
		full := func(i int) string { return fmt.Sprintf("//%s/holders/h%d", bEast, i) }
		b.MustPut(full(holder), body{"cascade": target, "near": map[string]any{"cascade": full(of)}})
	}
	near(400, 800)
	near(801, 401)
	b.Settle()
	b.MustDelete(target)
	deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
	failed, err := b.Stores[b.ID(bEast)].Follow.ActFor(t.Context(), b.ID(aWest), deletions, time.Minute)
	require.NoError(t, err)
	require.Empty(t, failed)
	require.Zero(t, b.Count(bEast, "reference"))
	b.Settle()
	b.Gone(target)
	require.Zero(t, b.Count(bEast, "shadow"))
	b.Audit()
}
