package constraint

import (
	"slices"
	"time"

	"github.com/db-controller/db-controller/constraint/queue"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
)

// Tasks beside the tasks of outstanding work, which Owned names. The names are labels of metrics.
const (
	resolving  = "owned_pending_resolve"
	sweeping   = "owned_pending_sweep"
	subscribed = "subscribed_deleting"
	continuing = subscribed + Again
)

// Again ends the name of a task that does the failed and unfinished work of another one, beside its new work.
const Again = "_again"

// taskKey names all work of one task for one deployment.
type taskKey struct {
	task       string
	deployment schema.DeploymentID
}

// task has the keys of its work, and at most one worker. The work itself is in the caches.
type task struct {
	// queue is unused by resolving, sweeping, subscribed and continuing. Keys that wait do so each by itself.
	queue   queue.Queue[int64]
	wanted  bool // of the tasks without a queue: there is work
	running bool
	backoff retry.Backoff
	notYet  time.Time // a batch failed: the next one begins after this
	paced   time.Time // the next batch begins after this, unless it is full
	// failing: the last batch failed, or pieces of it. The log has one line when this begins and one when it
	// ends.
	failing bool
}

// wait returns the time until the next batch may begin.
func (t *task) wait(now time.Time) time.Duration {
	if t.queue.Len() >= batchLimit {
		return t.notYet.Sub(now)
	}
	return max(t.notYet.Sub(now), t.paced.Sub(now))
}

// atOnce ends the back-off.
func (t *task) atOnce() {
	t.backoff.Reset()
	t.notYet = time.Time{}
}

// next returns the time of the next try after a batch with an error; zero: none.
func (t *task) next(err error) time.Time {
	if err == nil || !t.notYet.IsZero() {
		return t.notYet
	}
	at, _ := t.queue.Due()
	return at
}

// settle removes the work of a batch that is done, and puts off the pieces that wait.
func (t *task) settle(work *outstanding, r result) {
	done := slices.DeleteFunc(slices.Clone(r.seqs), func(seq int64) bool { return slices.Contains(r.waiting, seq) })
	work.remove(done)
	for _, seq := range done {
		t.queue.Forget(seq)
	}
	now := time.Now()
	for _, seq := range r.waiting {
		t.queue.Retry(seq, now)
	}
}

func (l *loop) task(k taskKey) *task {
	t := l.tasks[k]
	if t == nil {
		t = &task{}
		l.tasks[k] = t
	}
	return t
}

// retry ends the back-offs for a deployment, or for all: tasks, their pieces of work, deletions there, and
// lost watches.
func (l *loop) retry(of schema.DeploymentID) {
	now := time.Now()
	for k, t := range l.tasks {
		if of.IsZero() || k.deployment == of {
			t.atOnce()
			t.queue.Hurry(now)
		}
	}
	for id, d := range l.deletions {
		if of.IsZero() || id == of {
			d.atOnce()
			d.run.atOnce()
		}
	}
	l.own.atOnce()
}

// heard ends the back-offs of all tasks for a deployment that was unreachable.
func (l *loop) heard(from schema.DeploymentID) {
	for k, t := range l.tasks {
		if k.deployment == from {
			t.atOnce()
		}
	}
}
