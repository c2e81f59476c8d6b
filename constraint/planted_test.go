package constraint

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
)

var elsewhere = schema.DeploymentID{Service: "a.example.com", Region: "us-west2"}

// An event of a watch that was replaced counts for nothing, even if it arrives late.
func TestAnEventOfAReplacedWatchIsDropped(t *testing.T) {
	l := newLoop(Config{})
	d := newDeletions(schema.Subscription{DeploymentID: elsewhere})
	d.run = &watchRun{}
	l.deletions[elsewhere] = d
	late := deleted("x")
	late.from, late.run = elsewhere, &watchRun{}
	l.take(late)
	require.Zero(t, d.Len())
}

// stop returns after the goroutine of the watch: until then its events belong to the former subscription.
func TestAStoppedWatchHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		run, returned := &watchRun{cancel: cancel, done: make(chan struct{})}, false
		go func() {
			defer close(run.done)
			<-ctx.Done()
			time.Sleep(time.Second)
			returned = true
		}()
		run.stop()
		require.True(t, returned)
	})
}

// Nothing is done for a deployment before the end of its snapshot, by either of the two places that look.
func TestDeletionsWaitForTheirSnapshot(t *testing.T) {
	l := newLoop(Config{})
	d := newDeletions(schema.Subscription{DeploymentID: elsewhere})
	l.deletions[elsewhere] = d
	said(t, d, event{started: true}, deleted("x"))
	key := taskKey{subscribed, elsewhere}
	l.wantDeletions(time.Now())
	require.False(t, l.task(key).wanted)
	require.Nil(t, l.deletionsBatch(key))
	said(t, d, end("p1"))
	l.wantDeletions(time.Now())
	require.True(t, l.task(key).wanted)
	require.NotNil(t, l.deletionsBatch(key))
}

// Of a batch that is put back, the position still covers the deletions before it only.
func TestABatchIsPutBackAsItWas(t *testing.T) {
	d := newDeletions(schema.Subscription{})
	said(t, d, event{started: true}, deleted("x"), end("p1"), deleted("y"))
	b := d.fresh()
	require.Equal(t, 1, b.covered)
	d.putBack(b)
	require.Equal(t, b, d.fresh())
}

// A deletion that is done and not acknowledged is forgotten with it when a snapshot lacks it, and is not done
// again before.
func TestADeletionThatIsDoneIsDoneOnce(t *testing.T) {
	d := newDeletions(schema.Subscription{})
	said(t, d, event{started: true}, end(""), deleted("x"))
	b := d.fresh()
	d.done(b, nil)
	require.Len(t, d.acted, 1)
	require.Empty(t, d.lookUp(keysOf(b.deletions)))
	said(t, d, event{lost: true}, event{started: true}, end("p1"))
	require.Empty(t, d.acted)
}

// A key that is queued twice is one piece of work of a batch.
func TestAKeyThatIsQueuedTwiceIsDoneOnce(t *testing.T) {
	l, tk := newLoop(Config{}), &task{}
	tk.queue.Add(1, 1)
	there := event{started: true}
	there.work.Items = []schema.Work{{Seq: 1}}
	_, err := l.work.take(there)
	require.NoError(t, err)
	require.Len(t, l.queued(tk), 1)
}

// A success ends the back-off of a task: the next failure waits as the first one did.
func TestABackOffBeginsAnewAfterASuccess(t *testing.T) {
	tk := &task{backoff: retry.Backoff{First: time.Millisecond, Max: time.Hour}}
	for range 12 {
		tk.backoff.Next()
	}
	require.Greater(t, tk.backoff.Next(), 100*time.Millisecond)
	tk.notYet = time.Now().Add(time.Hour)
	tk.atOnce()
	require.Zero(t, tk.notYet)
	require.Less(t, tk.backoff.Next(), 10*time.Millisecond)
}

// A deletion is handled again, arrives again meanwhile, and fails. The result of the earlier run, which comes
// last, does not replace the newer failure: otherwise the newer deletion would never be handled.
func TestAnEarlierFailureReplacesNoLaterOne_I13(t *testing.T) {
	d := newDeletions(schema.Subscription{})
	said(t, d, event{started: true}, deleted("x"), end("p1"))
	first := d.fresh()
	uid := first.deletions[0].UID
	d.done(first, map[uuid.UUID]error{uid: schema.ErrUnfinished})
	earlier := d.again(time.Now())
	require.Len(t, earlier.deletions, 1)
	anew := deleted("x")
	anew.deletion.Items[0].Seq = 2
	said(t, d, anew)
	d.done(d.fresh(), map[uuid.UUID]error{uid: schema.ErrUnfinished})
	d.done(earlier, map[uuid.UUID]error{uid: schema.ErrUnfinished})
	again := d.again(time.Now())
	require.Len(t, again.deletions, 1)
	require.EqualValues(t, 2, again.deletions[0].Seq)
}
