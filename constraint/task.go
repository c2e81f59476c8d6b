package constraint

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// batchLimit is how many pieces of work, or about how many deletions, one run of a handler is given.
const batchLimit = 1000

type taskKind string

const (
	pending    taskKind = "owned_pending"
	resolving  taskKind = "owned_pending_resolve"
	sweeping   taskKind = "owned_pending_sweep"
	deleting   taskKind = "owned_deleting"
	subscribed taskKind = "subscribed_deleting"
)

// taskKey names everything of one kind for one deployment.
type taskKey struct {
	kind       taskKind
	deployment schema.DeploymentID
}

func taskOf(w schema.Work) taskKey {
	if w.Action == schema.Finalise {
		return taskKey{deleting, w.Deployment}
	}
	return taskKey{pending, w.Deployment}
}

// task is what waits to be done, and whether a worker is at it. It holds keys; what they stand for is in the caches.
type task struct {
	queue   []int64 // in the order of arrival; of pending and deleting
	wanted  bool    // of resolving and sweeping
	running bool
	backoff backoff
	notYet  time.Time
}

func (t *task) add(seq int64) { t.queue = append(t.queue, seq) }

func (n *Node) task(k taskKey) *task {
	t := n.tasks[k]
	if t == nil {
		t = &task{}
		n.tasks[k] = t
	}
	return t
}

// result is what a worker reports. Sent by workers, which give up when the node ends; never closed.
type result struct {
	key    taskKey
	seqs   []int64
	items  int
	took   time.Duration
	err    error
	expire []schema.DeploymentID // of sweeping: who has to be asked
	// Of subscribed.
	run       *watchRun
	stream    int
	retry     bool // of what failed before
	deletions []schema.Deletion
	position  string
	failed    map[uuid.UUID]error
}

// start gives every task that can run to a worker, and tells when to look again.
func (n *Node) start(ctx context.Context) time.Duration {
	const idle = time.Hour
	if !n.own.primed {
		return idle
	}
	now, soonest := time.Now(), idle
	for k, f := range n.foreign {
		if !f.primed {
			continue
		}
		if due := f.retryAt.Sub(now); len(f.steps) > 0 || len(f.failed) > 0 && due <= 0 {
			n.task(taskKey{subscribed, k}).wanted = true
		} else if len(f.failed) > 0 {
			soonest = min(soonest, due)
		}
	}
	for k, t := range n.tasks {
		if t.running || !t.wanted && len(t.queue) == 0 {
			continue
		}
		if wait := t.notYet.Sub(now); wait > 0 {
			soonest = min(soonest, wait)
			continue
		}
		if work := n.batch(k, t); work != nil {
			t.running, t.wanted = true, false
			n.work(ctx, k, work)
		} else {
			t.wanted = false
		}
	}
	return soonest
}

// batch takes the next batch of a task, as a function for a worker; nil when there is nothing to do.
func (n *Node) batch(k taskKey, t *task) func(context.Context, *result) error {
	switch k.kind {
	case sweeping:
		return func(ctx context.Context, r *result) (err error) {
			r.expire, err = n.cfg.Pending.Expired(ctx)
			return err
		}
	case resolving:
		return func(ctx context.Context, _ *result) error { return n.cfg.Pending.Resolve(ctx, k.deployment) }
	case subscribed:
		return n.deletions(k)
	default: // pending and deleting
	}
	work := n.queued(t)
	if len(work) == 0 {
		return nil
	}
	return func(ctx context.Context, r *result) error {
		r.items = len(work)
		for _, w := range work {
			r.seqs = append(r.seqs, w.Seq)
		}
		if k.kind == deleting {
			return n.cfg.Deleting.Handle(ctx, work)
		}
		return n.cfg.Pending.Handle(ctx, k.deployment, work)
	}
}

// queued takes keys off the queue and looks up what they are now.
func (n *Node) queued(t *task) []schema.Work {
	var work []schema.Work
	taken := map[int64]bool{} // a key may stand twice: a failed run put it back, and a new snapshot had it as well
	i := 0
	for ; i < len(t.queue) && len(work) < batchLimit; i++ {
		if w, ok := n.own.work[t.queue[i]]; ok && !taken[w.Seq] {
			taken[w.Seq] = true
			work = append(work, w)
		}
	}
	if t.queue = t.queue[i:]; len(t.queue) == 0 {
		t.queue = nil // lets go of the array
	}
	return work
}

func (n *Node) deletions(k taskKey) func(context.Context, *result) error {
	f := n.foreign[k.deployment]
	if f == nil || !f.primed {
		return nil
	}
	deletions, position, except, retry := f.batch(time.Now())
	if len(deletions) == 0 && position == "" {
		return nil
	}
	run, stream := f.run, f.stream
	return func(ctx context.Context, r *result) (err error) {
		r.run, r.stream, r.retry, r.deletions, r.position, r.items = run, stream, retry, deletions, position, len(deletions)
		r.failed, err = n.cfg.Subscribed.Handle(ctx, k.deployment, deletions, position, except)
		return err
	}
}

// work runs a batch in a goroutine of its own. A panic of a handler is an error of the batch.
func (n *Node) work(ctx context.Context, k taskKey, run func(context.Context, *result) error) {
	n.workers.Go(func() {
		r := result{key: k}
		began := time.Now()
		func() {
			defer func() {
				if p := recover(); p != nil {
					r.err = fmt.Errorf("handler panicked: %v\n%s", p, debug.Stack())
				}
			}()
			r.err = run(ctx, &r)
		}()
		r.took = time.Since(began)
		select {
		case n.done <- r:
		case <-ctx.Done():
		}
	})
}

// finish puts a worker's result into the caches and lets the task go on, after a while when it failed.
func (n *Node) finish(r result) {
	t := n.task(r.key)
	t.running = false
	if r.key.kind != sweeping || r.err != nil {
		n.cfg.Observer.HandlerRan(string(r.key.kind), r.key.deployment, r.items, r.took, r.err)
	}
	if r.err == nil {
		t.backoff.reset()
		t.notYet = time.Time{}
		for _, seq := range r.seqs {
			delete(n.own.work, seq)
		}
	} else {
		wait := t.backoff.next()
		t.notYet = time.Now().Add(wait)
		n.cfg.Logger.Warn("a handler failed, it is tried again", zap.String("handler", string(r.key.kind)),
			zap.Stringer("deployment", r.key.deployment), zap.Int("items", r.items), zap.Duration("in", wait), zap.Error(r.err))
		t.queue = append(t.queue, r.seqs...) // behind what has not been tried yet
		t.wanted = t.wanted || r.key.kind == resolving
	}
	for _, holder := range r.expire {
		n.task(taskKey{resolving, holder}).wanted = true
	}
	if f := n.foreign[r.key.deployment]; f != nil && r.run != nil && f.run == r.run && f.stream == r.stream {
		n.acted(f, r)
	}
}

// acted takes the result of a subscribed deleting run.
func (n *Node) acted(f *foreign, r result) {
	if r.err != nil && r.retry {
		f.retryAt = time.Now().Add(f.backoff.next()) // they are still among the failed
		return
	}
	if r.err != nil {
		// Back to the front: the same deletions, and the same position after them.
		again := []step{{deletions: r.deletions}}
		if r.position != "" {
			again = append(again, step{position: r.position})
		}
		f.steps = append(again, f.steps...)
		return
	}
	if r.position != "" {
		f.position = r.position
	}
	for _, d := range r.deletions {
		if cause, ok := r.failed[d.UID]; ok {
			f.failed[d.UID] = d
			n.cfg.Logger.Warn("a deletion cannot be carried out here yet", zap.String("name", d.Name), zap.Error(cause))
		} else {
			delete(f.failed, d.UID)
		}
	}
	if len(r.failed) > 0 {
		f.retryAt = time.Now().Add(f.backoff.next())
	} else if len(f.failed) == 0 {
		f.backoff.reset()
	}
}

// backoff doubles from 50 ms to 10 s, with jitter. (The shape is that of exponential backoff in gRPC's connection
// backoff protocol.)
type backoff struct{ last time.Duration }

func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, 50*time.Millisecond), 10*time.Second)
	return b.last/2 + rand.N(b.last/2+1)
}

func (b *backoff) reset() { b.last = 0 }
