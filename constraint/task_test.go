package constraint

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

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
	tk.queue.Resume(time.Now().Add(time.Hour))
	require.Empty(t, l.queued(tk))
	_, waits := tk.queue.Due()
	require.False(t, waits)
}

func TestTheNextTryIsThatOfTheBatchOrOfItsPieces(t *testing.T) {
	l := &loop{work: newOutstanding()}
	failed, partly, done := &task{}, &task{}, &task{}
	began := time.Now()
	l.failed(failed, result{seqs: []int64{1}})
	require.Equal(t, failed.notYet, failed.next(errors.New("no answer")))
	require.True(t, failed.next(errors.New("no answer")).After(began))
	partly.settle(l.work, result{seqs: []int64{1, 2}, waiting: []int64{2}})
	require.True(t, partly.next(errors.New("one is refused")).After(began))
	done.settle(l.work, result{seqs: []int64{1}})
	require.Zero(t, done.next(nil))
}
