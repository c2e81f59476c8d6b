package follow

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestAWalkResumesForTheSameDeletionOnly(t *testing.T) {
	t.Parallel()
	var w walks
	first := deletionKey{seq: 1, epoch: uuid.New()}
	w.put(7, walk{deletion: first, behaviour: 2, after: 40})
	require.True(t, w.has(7, first))
	again := deletionKey{seq: 2, epoch: first.epoch}
	require.False(t, w.has(7, again), "the deletion came again: there may be holders that the walk has passed")
	require.False(t, w.has(7, deletionKey{seq: 1, epoch: uuid.New()}), "in another epoch the ids may be of other rows")
	require.Equal(t, walk{deletion: again}, w.take(7, again), "it begins anew")
	require.False(t, w.has(7, first), "and the old walk is forgotten")
	w.put(7, walk{deletion: first, behaviour: 2, after: 40})
	require.Equal(t, walk{deletion: first, behaviour: 2, after: 40}, w.take(7, first))
	require.False(t, w.has(7, first), "it is taken once")
}

func TestInterruptedWalksAreBounded(t *testing.T) {
	t.Parallel()
	var w walks
	for target := range int64(mostWalks + 100) {
		w.put(target, walk{})
	}
	require.Len(t, w.byTarget, mostWalks)
}

// Its row is not waited for any more, and another process may have continued it.
func TestATallyIsBegunAnewBehindALongPause(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var so tally
	so.resume(now)
	require.Equal(t, tally{began: now}, so)
	so.counted, so.passed, so.ahead[0], so.paused = true, 7, 5, now.Add(time.Second)
	before := so
	so.resume(now.Add(time.Minute))
	require.Equal(t, before, so)
	later := now.Add(2 * time.Minute)
	so.resume(later)
	require.Equal(t, tally{began: later}, so)
}
