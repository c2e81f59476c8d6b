package constraint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// batchLimit is how many pieces of work, or about how many deletions, one run of a handler is given.
const batchLimit = 1000

type taskKind string

const (
	resolving  taskKind = "owned_pending_resolve"
	sweeping   taskKind = "owned_pending_sweep"
	subscribed taskKind = "subscribed_deleting"
	continuing taskKind = "subscribed_deleting_again"
)

// taskKey names everything of one kind for one deployment.
type taskKey struct {
	kind       taskKind
	deployment schema.DeploymentID
}

func (k taskKey) String() string { return string(k.kind) + " " + k.deployment.String() }

// task is what waits to be done, and whether a worker is at it. It holds keys; what they stand for is in the caches.
type task struct {
	queue []int64 // in the order of arrival; not of resolving, sweeping and subscribed
	// later are keys that have to wait, each by itself; the first of them until due, which is zero when none waits.
	later   map[int64]*postponed
	due     time.Time
	wanted  bool // of resolving and sweeping
	running bool
	backoff backoff
	notYet  time.Time
}

// postponed is a key that is tried again when due.
type postponed struct {
	backoff backoff
	due     time.Time
	queued  bool
}

func (t *task) add(seq int64) { t.queue = append(t.queue, seq) }

// postpone lets keys wait, each time longer.
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
		p.due, p.queued = now.Add(p.backoff.next()), false
		if t.due.IsZero() || p.due.Before(t.due) {
			t.due = p.due
		}
	}
}

// atOnce ends the back-off.
func (t *task) atOnce() {
	t.backoff.reset()
	t.notYet = time.Time{}
}

// settle forgets what is done, and lets the rest wait.
func (t *task) settle(own *own, r result) {
	done := slices.DeleteFunc(slices.Clone(r.seqs), func(seq int64) bool { return slices.Contains(r.left, seq) })
	own.done(done)
	for _, seq := range done {
		delete(t.later, seq)
	}
	t.postpone(r.left, time.Now())
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

func (n *Node) task(k taskKey) *task {
	t := n.tasks[k]
	if t == nil {
		t = &task{}
		n.tasks[k] = t
	}
	return t
}

// heard ends the back-offs of everything for a deployment that was away.
func (n *Node) heard(from schema.DeploymentID) {
	for k, t := range n.tasks {
		if k.deployment == from {
			t.atOnce()
		}
	}
}

// result is what a worker reports. Sent by workers, which give up when the node ends; never closed.
type result struct {
	key    taskKey
	seqs   []int64
	left   []int64 // of seqs: to be tried again later
	items  int
	took   time.Duration
	err    error
	expire []schema.DeploymentID // of sweeping: who has to be asked
	// Of subscribed.
	run    *watchRun
	batch  batch
	failed map[uuid.UUID]error
}

// start gives every task that can run to a worker, and tells when to look again.
func (n *Node) start(ctx context.Context) time.Duration {
	const idle = time.Hour
	if !n.own.Primed() {
		return idle
	}
	now, soonest := time.Now(), idle
	for k, f := range n.foreign {
		if !f.Primed() {
			continue
		}
		if f.news() {
			n.task(taskKey{subscribed, k}).wanted = true
		}
		if waits, wait := f.waits(now); waits && wait <= 0 {
			n.task(taskKey{continuing, k}).wanted = true
		} else if waits {
			soonest = min(soonest, wait)
		}
	}
	for k, t := range n.tasks {
		if t.resume(now); !t.due.IsZero() {
			soonest = min(soonest, t.due.Sub(now))
		}
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
			r.expire, err = n.cfg.Resolver.Expired(ctx)
			return err
		}
	case resolving:
		return func(ctx context.Context, _ *result) error { return n.cfg.Resolver.Resolve(ctx, k.deployment) }
	case subscribed, continuing:
		return n.deletions(k)
	default: // has a queue
	}
	work := n.queued(t)
	if len(work) == 0 {
		return nil
	}
	return func(ctx context.Context, r *result) (err error) {
		r.items = len(work)
		for _, w := range work {
			r.seqs = append(r.seqs, w.Seq)
		}
		r.left, err = n.cfg.Owned.Handle(ctx, k.deployment, work)
		return err
	}
}

// queued takes keys off the queue and looks up what they are now.
func (n *Node) queued(t *task) []schema.Work {
	var work []schema.Work
	taken := map[int64]bool{} // a key may stand twice: a failed run put it back, and a new snapshot had it as well
	i := 0
	for ; i < len(t.queue) && len(work) < batchLimit; i++ {
		w, ok := n.own.get(t.queue[i])
		if !ok {
			delete(t.later, t.queue[i]) // somebody else has done it
		} else if !taken[w.Seq] {
			taken[w.Seq] = true
			work = append(work, *w)
		}
	}
	if t.queue = t.queue[i:]; len(t.queue) == 0 {
		t.queue = nil // lets go of the array
	}
	return work
}

func (n *Node) deletions(k taskKey) func(context.Context, *result) error {
	f := n.foreign[k.deployment]
	if f == nil || !f.Primed() {
		return nil
	}
	b, run := batch{}, f.run
	if k.kind == continuing {
		b = f.again(time.Now())
	} else {
		b = f.fresh()
	}
	if len(b.deletions) == 0 && b.position == "" {
		return nil
	}
	return func(ctx context.Context, r *result) (err error) {
		r.run, r.batch, r.items = run, b, len(b.deletions)
		r.failed, err = n.cfg.Subscribed.Handle(ctx, k.deployment, b.deletions, b.position, b.except, b.retry)
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
	var part *schema.PartError
	if errors.As(r.err, &part) {
		r.left = append(r.left, part.Failed...)
		n.cfg.Logger.Warn("pieces of work failed, they are tried again", zap.String("handler", string(r.key.kind)),
			zap.Stringer("deployment", r.key.deployment), zap.Int("failed", len(part.Failed)), zap.Int("items", r.items), zap.Error(part.Cause))
	}
	if r.err == nil || part != nil {
		t.atOnce()
		t.settle(n.own, r)
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
	if f := n.foreign[r.key.deployment]; f != nil && r.run != nil && f.run == r.run {
		n.acted(f, r)
	}
}

// acted takes the result of a subscribed deleting run.
func (n *Node) acted(f *foreign, r result) {
	if r.err != nil && !r.batch.retry {
		f.putBack(r.batch)
		return
	}
	if r.err != nil {
		return
	}
	f.done(r.batch, r.failed)
	for _, d := range r.batch.deletions {
		if cause := r.failed[d.UID]; cause != nil && !errors.Is(cause, schema.ErrUnfinished) {
			n.cfg.Logger.Warn("a deletion cannot be carried out here yet", zap.String("name", d.Name), zap.Error(cause))
		}
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
