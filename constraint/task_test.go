package constraint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
)

// A key with a longer pause never prolongs the pause of another one, in either order.
func TestALaterPostponementDelaysNoEarlierOne(t *testing.T) {
	now := time.Now()
	for _, order := range [][2]int64{{1, 2}, {2, 1}} {
		tk := &task{later: map[int64]*postponed{2: {backoff: retry.Backoff{First: 10 * time.Second}}}}
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

func TestPostponedWorkThatAnotherProcessHasDoneIsForgotten(t *testing.T) {
	o, tk := newOutstanding(), &task{}
	l := &loop{work: o}
	there := event{started: true}
	there.work.Items = []schema.Work{{Seq: 1}, {Seq: 2}}
	there.work.EndOfSnapshot = true
	_, err := o.take(there)
	require.NoError(t, err)
	tk.settle(o, result{seqs: []int64{1, 2}, waiting: []int64{1, 2}})
	gone := event{started: true}
	gone.work.EndOfSnapshot = true
	_, err = o.take(gone)
	require.NoError(t, err)
	tk.resume(time.Now().Add(time.Hour))
	require.Empty(t, l.queued(tk))
	require.Empty(t, tk.later)
}
