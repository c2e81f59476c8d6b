package constraint

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// batchLimit is the number of pieces of work, and about the number of deletions, in one run of a handler.
const batchLimit = 1000

// result of a worker. Sent by workers, which give up when the node ends; never closed.
type result struct {
	key     taskKey
	seqs    []int64
	waiting []int64 // of seqs: they are tried again later
	items   int
	took    time.Duration
	err     error
	holders []schema.DeploymentID // of sweeping: deployments that have to be asked
	// Of subscribed and continuing.
	run    *watchRun
	batch  batch
	failed map[uuid.UUID]error
}

// job is a batch for a worker.
type job func(ctx context.Context, r *result) error

// start gives a batch of every task that can run to a worker, and returns the time until the next one can.
func (l *loop) start(ctx context.Context) time.Duration {
	const idle = time.Hour
	if !l.work.Primed() {
		return idle
	}
	now := time.Now()
	soonest := min(idle, l.wantDeletions(now))
	for k, t := range l.tasks {
		t.queue.Resume(now)
		if due, waits := t.queue.Due(); waits {
			soonest = min(soonest, due.Sub(now))
		}
		if t.running || !t.wanted && t.queue.Len() == 0 {
			continue
		}
		if wait := t.wait(now); wait > 0 {
			soonest = min(soonest, wait)
			continue
		}
		t.wanted = false
		if next := l.batch(k, t); next != nil {
			t.running = true
			t.paced = now.Add(l.cfg.Handlers.Owned.Pace(k.task))
			l.startWorker(ctx, k, next)
		}
	}
	return soonest
}

// wantDeletions marks the tasks of deletions that have work, and returns the time until the next one has, at
// most an hour.
func (l *loop) wantDeletions(now time.Time) time.Duration {
	soonest := time.Hour
	for id, d := range l.deletions {
		if !d.Primed() {
			continue
		}
		if d.hasNew() {
			l.task(taskKey{subscribed, id}).wanted = true
		}
		if waits, wait := d.waits(now); waits && wait <= 0 {
			l.task(taskKey{continuing, id}).wanted = true
		} else if waits {
			soonest = min(soonest, wait)
		}
	}
	return soonest
}

// batch takes the next batch of a task; nil when there is nothing to do.
func (l *loop) batch(k taskKey, t *task) job {
	switch k.task {
	case sweeping:
		return func(ctx context.Context, r *result) (err error) {
			r.holders, err = l.cfg.Handlers.Resolver.Expired(ctx)
			return err
		}
	case resolving:
		return func(ctx context.Context, _ *result) error { return l.cfg.Handlers.Resolver.Resolve(ctx, k.deployment) }
	case subscribed, continuing:
		return l.deletionsBatch(k)
	default:
		return l.workBatch(k, t)
	}
}

func (l *loop) workBatch(k taskKey, t *task) job {
	work := l.queued(t)
	if len(work) == 0 {
		return nil
	}
	return func(ctx context.Context, r *result) (err error) {
		r.items = len(work)
		for _, w := range work {
			r.seqs = append(r.seqs, w.Seq)
		}
		r.waiting, err = l.cfg.Handlers.Owned.Handle(ctx, k.deployment, work)
		return err
	}
}

// queued takes keys off the queue and looks their work up.
func (l *loop) queued(t *task) []schema.Work {
	var work []schema.Work
	for len(work) < batchLimit {
		seq, ok := t.queue.Take()
		if !ok {
			break
		}
		if w, ok := l.work.get(seq); ok {
			work = append(work, *w)
		} else {
			t.queue.Forget(seq) // another process has done it
		}
	}
	return work
}

func (l *loop) deletionsBatch(k taskKey) job {
	d := l.deletions[k.deployment]
	if d == nil || !d.Primed() {
		return nil
	}
	b, run := batch{}, d.run
	if k.task == continuing {
		b = d.again(time.Now())
	} else {
		b = d.fresh()
	}
	if len(b.deletions) == 0 && b.position == "" {
		return nil
	}
	return func(ctx context.Context, r *result) (err error) {
		r.run, r.batch, r.items = run, b, len(b.deletions)
		r.failed, err = l.cfg.Handlers.Subscribed.Handle(ctx, k.deployment, b.deletions, b.position, b.except, b.retry)
		return err
	}
}

// startWorker runs a batch in a goroutine of its own.
func (l *loop) startWorker(ctx context.Context, k taskKey, next job) {
	l.workers.Go(func() {
		r := result{key: k}
		began := time.Now()
		r.err = guarded(ctx, next, &r)
		r.took = time.Since(began)
		select {
		case l.done <- r:
		case <-ctx.Done():
		}
	})
}

// guarded runs a batch. A panic of a handler is an error of the batch.
func guarded(ctx context.Context, next job, r *result) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return next(ctx, r)
}

// finish takes a worker's result: the caches and queues follow it, and its errors are logged. They are logged
// nowhere else.
func (l *loop) finish(r result) {
	t := l.task(r.key)
	t.running = false
	var part *schema.PartError
	if errors.As(r.err, &part) {
		r.waiting = append(r.waiting, part.Failed...)
	}
	l.report(t, r, part)
	if r.err == nil || part != nil {
		t.atOnce()
		t.settle(l.work, r)
	} else {
		l.failed(t, r)
	}
	for _, holder := range r.holders {
		l.task(taskKey{resolving, holder}).wanted = true
	}
	ran := HandlerRun{Items: r.items, Took: r.took, Err: r.err, Next: t.next(r.err)}
	if d := l.deletions[r.key.deployment]; d != nil && r.run != nil && d.run == r.run {
		if l.acted(d, r); r.err == nil {
			ran.Next, ran.Failed = d.problem()
		}
	}
	if r.key.task != sweeping || r.err != nil {
		l.cfg.Observer.HandlerRan(r.key.task, r.key.deployment, ran)
	}
}

// failed makes a task wait after a batch that failed as a whole, and queues its work behind the work that is
// new.
func (l *loop) failed(t *task, r result) {
	wait := t.backoff.Next()
	t.notYet = time.Now().Add(wait)
	t.queue.Add(r.seqs...)
	t.wanted = t.wanted || r.key.task == resolving
}

// report logs the first failure of a task, and its next success. Failures in between are for debugging:
// status shows the last one.
func (l *loop) report(t *task, r result, part *schema.PartError) {
	level := zap.WarnLevel
	if t.failing {
		level = zap.DebugLevel
	}
	switch {
	case part != nil:
		l.log(r).Log(level, "pieces of work failed, they are tried again", zap.Int("failed", len(part.Failed)),
			zap.Error(part.Cause))
	case r.err != nil:
		l.log(r).Log(level, "a handler failed, it is tried again", zap.Error(r.err))
	case t.failing && !r.didSomething():
		return // it shows nothing
	case t.failing:
		l.log(r).Info("a handler works again")
	}
	t.failing = r.err != nil
}

// didSomething reports whether a batch called other deployments or the database, as each of the tasks without
// items does.
func (r *result) didSomething() bool {
	return r.items > 0 || r.key.task == resolving || r.key.task == sweeping
}

func (l *loop) log(r result) *zap.Logger {
	return l.cfg.Logger.With(zap.String("handler", r.key.task), zap.Stringer("deployment", r.key.deployment),
		zap.Int("items", r.items))
}

// acted takes the result of a batch of deletions. A batch that is handled again, and fails as a whole, stays
// as it is.
func (l *loop) acted(d *deletions, r result) {
	if r.err != nil {
		if !r.batch.retry {
			d.putBack(r.batch)
		}
		return
	}
	d.done(r.batch, r.failed)
	level := zap.WarnLevel
	if r.batch.retry {
		level = zap.DebugLevel // it was logged when it failed first
	}
	for _, deletion := range r.batch.deletions {
		if cause := r.failed[deletion.UID]; cause != nil && !errors.Is(cause, schema.ErrUnfinished) {
			l.log(r).Log(level, "a deletion cannot be carried out here yet, it is tried again",
				zap.String("name", deletion.Name), zap.Error(cause))
		}
	}
}
