package constraint

import (
	"slices"
	"time"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
)

// Tasks beside those of outstanding work, which Owned names. The names are labels of metrics.
const (
	resolving  = "owned_pending_resolve"
	sweeping   = "owned_pending_sweep"
	subscribed = "subscribed_deleting"
	continuing = "subscribed_deleting_again"
)

// taskKey names all work of one task for one deployment.
type taskKey struct {
	task       string
	deployment schema.DeploymentID
}

// task has the keys of its work, and at most one worker. The work itself is in the caches.
type task struct {
	queue []int64 // in the order of arrival; unused by resolving, sweeping, subscribed and continuing
	// later are the keys that wait, each by itself. The first of them is queued again when due, which is zero when none waits.
	later   map[int64]*postponed
	due     time.Time
	wanted  bool // of the tasks without a queue: there is something to do
	running bool
	backoff retry.Backoff
	notYet  time.Time // a batch failed: the next one begins after this
	// failing: the last batch failed, or pieces of it. The log has one line when this begins and one when it ends.
	failing bool
}

// postponed is a key that is tried again when due.
type postponed struct {
	backoff retry.Backoff
	due     time.Time
	queued  bool
}

func (t *task) add(seq int64) { t.queue = append(t.queue, seq) }

// postpone makes keys wait, each time longer.
func (t *task) postpone(seqs []int64, now time.Time) {
	if t.later == nil {
		t.later = map[int64]*postponed{}
	}
	for _, seq := range seqs {
		p := t.later[seq]
		if p == nil {
			p = &postponed{}
			t.later[seq] = p
		}
		p.due, p.queued = now.Add(p.backoff.Next()), false
		if t.due.IsZero() || p.due.Before(t.due) {
			t.due = p.due
		}
	}
}

// atOnce ends the back-off.
func (t *task) atOnce() {
	t.backoff.Reset()
	t.notYet = time.Time{}
}

// settle removes the work of a batch that is done, and postpones the pieces that wait.
func (t *task) settle(work *outstanding, r result) {
	done := slices.DeleteFunc(slices.Clone(r.seqs), func(seq int64) bool { return slices.Contains(r.waiting, seq) })
	work.remove(done)
	for _, seq := range done {
		delete(t.later, seq)
	}
	t.postpone(r.waiting, time.Now())
}

// resume queues the keys that are due.
func (t *task) resume(now time.Time) {
	if t.due.IsZero() || t.due.After(now) {
		return
	}
	t.due = time.Time{}
	for seq, p := range t.later {
		switch {
		case p.queued:
		case !p.due.After(now):
			p.queued = true
			t.add(seq)
		case t.due.IsZero() || p.due.Before(t.due):
			t.due = p.due
		}
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

// heard ends the back-offs of all tasks for a deployment that was unreachable.
func (l *loop) heard(from schema.DeploymentID) {
	for k, t := range l.tasks {
		if k.deployment == from {
			t.atOnce()
		}
	}
}
