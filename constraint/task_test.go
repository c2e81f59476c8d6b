package constraint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func TestBackoffDoublesUpToItsCapWithJitter(t *testing.T) {
	b, differ := backoff{}, false
	for want := 50 * time.Millisecond; want < 40*time.Second; want *= 2 {
		limit := min(want, 10*time.Second)
		first := b.next()
		require.LessOrEqual(t, first, limit)
		require.GreaterOrEqual(t, first, limit/2)
		other := backoff{last: b.last / 2}
		differ = differ || other.next() != first
	}
	require.True(t, differ, "nodes that failed together do not come again together")
	b.reset()
	require.LessOrEqual(t, b.next(), 50*time.Millisecond)
}

// A key that waits longer never makes another one wait longer, in whatever order they are postponed.
func TestALaterPostponementDelaysNoEarlierOne(t *testing.T) {
	now := time.Now()
	for _, order := range [][2]int64{{1, 2}, {2, 1}} {
		tk := &task{later: map[int64]*postponed{2: {backoff: backoff{last: 5 * time.Second}}}}
		for _, seq := range order {
			tk.postpone([]int64{seq}, now)
		}
		tk.resume(now.Add(60 * time.Millisecond))
		require.Equal(t, []int64{1}, tk.queue)
		tk.resume(now.Add(11 * time.Second))
		require.Equal(t, []int64{1, 2}, tk.queue)
		require.True(t, tk.due.IsZero())
	}
}

func TestPostponedWorkThatSomebodyElseHasDoneIsForgotten(t *testing.T) {
	o, tk := newOwn(), &task{}
	n := &Node{own: o}
	there := event{started: true}
	there.work.Items = []schema.Work{{Seq: 1}, {Seq: 2}}
	there.work.EndOfSnapshot = true
	_, err := o.take(there)
	require.NoError(t, err)
	tk.settle(o, result{seqs: []int64{1, 2}, left: []int64{1, 2}})
	gone := event{started: true}
	gone.work.EndOfSnapshot = true
	_, err = o.take(gone)
	require.NoError(t, err)
	tk.resume(time.Now().Add(time.Hour))
	require.Empty(t, n.queued(tk))
	require.Empty(t, tk.later)
}
