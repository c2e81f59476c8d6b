package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/constraint/queue"
	"github.com/db-controller/db-controller/internal/retry"
)

func taken(q *queue.Queue[int]) (keys []int) {
	for k, ok := q.Take(); ok; k, ok = q.Take() {
		keys = append(keys, k)
	}
	return keys
}

func TestAKeyIsQueuedOnce(t *testing.T) {
	t.Parallel()
	var q queue.Queue[int]
	q.Add(1, 2, 1)
	q.Add(2, 3)
	require.Equal(t, 3, q.Len())
	require.Equal(t, []int{1, 2, 3}, taken(&q))
	q.Add(1)
	require.Equal(t, []int{1}, taken(&q), "and again after it was taken")
}

// A key with a longer pause never prolongs the pause of another one, or its own, in either order.
func TestALaterPostponementDelaysNoEarlierOne(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, order := range [][2]time.Duration{{time.Second, time.Minute}, {time.Minute, time.Second}} {
		var q queue.Queue[int]
		for i, pause := range order {
			q.At(i, now.Add(pause))
			q.At(7, now.Add(pause))
		}
		due, waits := q.Due()
		require.True(t, waits)
		require.Equal(t, now.Add(time.Second), due)
		q.Resume(now.Add(time.Second))
		require.Len(t, taken(&q), 2)
		q.Resume(now.Add(time.Minute))
		require.Len(t, taken(&q), 1, "the later time of the same key is not kept")
		_, waits = q.Due()
		require.False(t, waits)
	}
}

func TestPausesAreOfEachKeyAndBeginAnewAfterASuccess(t *testing.T) {
	t.Parallel()
	q, now := queue.Queue[int]{Pauses: retry.Backoff{First: time.Second, Max: time.Hour}}, time.Now()
	pause := func(k int) time.Duration {
		q.Retry(k, now)
		due, _ := q.Due()
		q.Resume(due)
		require.Equal(t, []int{k}, taken(&q))
		return due.Sub(now)
	}
	for nominal := time.Second; nominal < time.Minute; nominal *= 2 {
		require.GreaterOrEqual(t, pause(1), nominal/2)
	}
	require.LessOrEqual(t, pause(2), time.Second)
	q.Succeeded(1)
	require.LessOrEqual(t, pause(1), time.Second)
}

func TestAKeyThatIsForgottenIsNotDue(t *testing.T) {
	t.Parallel()
	var q queue.Queue[int]
	now := time.Now()
	q.Retry(1, now)
	q.Forget(1)
	_, waits := q.Due()
	require.False(t, waits)
	q.Resume(now.Add(time.Hour))
	require.Zero(t, q.Len())
}
