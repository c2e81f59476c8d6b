package follow

import (
	"testing"

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
