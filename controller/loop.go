package controller

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/constraint/cache"
	"github.com/db-controller/db-controller/constraint/queue"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
)

// phase of a loop.
type phase int

const (
	priming      phase = iota // the caches are filled
	initialising              // the initialisers run
	reconciling
)

// loop is the state of a controller that runs. All fields but the channels belong to the goroutine of run.
type loop struct {
	c          *Controller
	reconciler Reconciler
	kinds      *kinds
	fail       context.CancelCauseFunc
	// Unbuffered: watches and workers wait for the loop, which waits for neither while it runs.
	batches  chan batch
	wanted   chan []Request // by custom sources
	done     chan ended
	handings chan handing
	stopped  chan struct{} // closed when no worker is started any more

	phase    phase
	unprimed map[schema.DeploymentID]bool
	caches   map[schema.DeploymentID]*cache.Cache[*object]
	// positions are the tokens behind the last batches.
	positions map[schema.DeploymentID]string
	view      *View // nil after a change
	queue     queue.Queue[key]
	// unmapped are the former states of resources for which their mapper was not called yet.
	unmapped map[key][]*Resource
	running  map[key]bool // true: once more after this run
	failing  map[key]bool // the log has one line when a key begins to fail, and one when it ends
	initial  int          // initialisers that have not succeeded yet
	// awaited are the writes of the last run of each key that the caches lack, awaiting the same by resource,
	// and patience by age.
	awaited  map[key]*awaited
	awaiting map[schema.FullName][]*awaited
	patience []*awaited
	// tenures are the shards of this process, returning shards whose runs may still be under way included.
	tenures   map[int]*tenure
	returning []handing
	workers   sync.WaitGroup // all goroutines
	runners   sync.WaitGroup // the goroutines that run keys
}

func newLoop(c *Controller, r Reconciler, k *kinds, fail context.CancelCauseFunc) *loop {
	l := &loop{
		c: c, reconciler: r, kinds: k, fail: fail,
		batches: make(chan batch), wanted: make(chan []Request), done: make(chan ended), handings: make(chan handing),
		stopped: make(chan struct{}), tenures: map[int]*tenure{},
		unprimed: map[schema.DeploymentID]bool{}, caches: map[schema.DeploymentID]*cache.Cache[*object]{},
		positions: map[schema.DeploymentID]string{},
		queue:     queue.Queue[key]{Pauses: c.pauses},
		awaited:   map[key]*awaited{}, awaiting: map[schema.FullName][]*awaited{},
		unmapped: map[key][]*Resource{}, running: map[key]bool{}, failing: map[key]bool{}, initial: len(c.initialisers),
	}
	for id := range k.declared {
		l.unprimed[id], l.caches[id] = true, c.newCache(id)
	}
	return l
}

// run ends with ctx, when everything that it started has ended.
func (l *loop) run(ctx context.Context) {
	defer l.workers.Wait()
	defer close(l.stopped)
	for id := range l.caches {
		l.goFailing(ctx, func() error { return l.follow(ctx, id) })
	}
	if l.c.sharing != nil {
		l.goFailing(ctx, func() error { return l.share(ctx) })
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(l.start(ctx))
		select {
		case <-ctx.Done():
			return
		case b := <-l.batches:
			l.take(ctx, b)
		case all := <-l.wanted:
			l.request(all...)
		case e := <-l.done:
			l.finish(ctx, e)
			l.giveBack()
		case h := <-l.handings:
			l.handed(h)
		case <-timer.C: // a key is due
		}
	}
}

// goFailing runs a function whose error ends the controller.
func (l *loop) goFailing(ctx context.Context, f func() error) {
	l.workers.Go(func() {
		if err := f(); err != nil && ctx.Err() == nil {
			l.fail(err)
		}
	})
}

// start gives keys to workers while there are any, and returns the time until the next one is due.
func (l *loop) start(ctx context.Context) time.Duration {
	now := time.Now()
	l.queue.Resume(now)
	impatient, waiting := l.losePatience(now)
	for len(l.running) < l.c.workers {
		k, ok := l.queue.Take()
		if !ok {
			break
		}
		if _, runs := l.running[k]; runs {
			l.running[k] = true
			continue
		}
		if l.held(k) {
			continue
		}
		if during, ours := l.contextOf(ctx, k); ours {
			l.running[k] = false
			l.startWorker(ctx, during, k)
		}
	}
	l.c.observer.Waiting(l.queue.Len())
	due, waits := l.queue.Due()
	if waiting && (!waits || impatient.Before(due)) {
		due, waits = impatient, true
	}
	if waits {
		return max(0, due.Sub(now))
	}
	return time.Hour
}

// take puts a batch into its cache, and queues the requests that it causes. No worker gets a view of a part
// of it.
func (l *loop) take(ctx context.Context, b batch) {
	l.view = nil
	if b.position != "" {
		l.positions[b.from] = b.position
	}
	for _, c := range b.changes {
		l.change(b.from, c)
	}
	l.c.observer.Cached(b.from, l.caches[b.from].Len())
	if delete(l.unprimed, b.from); l.phase == priming && len(l.unprimed) == 0 {
		l.primed(ctx)
	}
}

func (l *loop) change(from schema.DeploymentID, c change) {
	if c.stored == nil {
		for _, gone := range l.caches[from].Delete(0, c.removed) {
			l.changed(gone.kind, gone.resource, nil)
			l.seen(schema.FullName{Deployment: from, Name: c.removed}, nil, gone.resource.GetUid())
		}
		return
	}
	name := schema.FullName{Deployment: from, Name: c.stored.resource.GetName()}
	former := l.cached(name)
	l.seen(name, c.stored.resource, "") // also when an index refuses it
	if _, err := l.caches[from].Upsert(c.stored); err != nil {
		l.c.log.Error("an index refused a resource: the cache has the former one", zap.Error(err))
		return
	}
	l.changed(c.stored.kind, former, c.stored.resource)
}

// changed queues the requests that a change of a resource causes.
func (l *loop) changed(of Kind, before, after *Resource) {
	i := slices.IndexFunc(l.c.watched, func(w watched) bool { return w.kind == of })
	if l.phase != reconciling {
		return
	}
	matters, err := l.c.watched[i].matters(before, after)
	if err != nil {
		l.c.log.Error("a filter failed: the change counts", zap.Stringer("kind", of), zap.Error(err))
	}
	if matters || i == 0 && l.c.finalizers.begins(before, after) {
		l.enqueue(i, before, after)
	}
}

// enqueue queues a resource of the i-th kind, of which one of the states may be nil.
func (l *loop) enqueue(i int, before, after *Resource) {
	of := after
	if of == nil {
		of = before
	}
	k := key{does: mapping, n: i, name: nameOf(of)}
	if i == 0 {
		k.does = reconcile
	} else if before != nil {
		l.unmapped[k] = append(l.unmapped[k], before)
	}
	l.queue.Add(k)
}

// primed begins with the initialisers.
func (l *loop) primed(ctx context.Context) {
	l.phase = initialising
	for i := range l.c.initialisers {
		l.queue.Add(key{does: initialise, n: i})
	}
	if l.initial == 0 {
		l.begin(ctx)
	}
}

// begin queues all resources, and starts the custom sources.
func (l *loop) begin(ctx context.Context) {
	l.phase = reconciling
	l.enqueueAll()
	for _, s := range l.c.sources {
		l.workers.Go(func() { l.feed(ctx, s) })
	}
}

// enqueueAll queues all resources.
func (l *loop) enqueueAll() {
	for i, w := range l.c.watched {
		found, err := l.caches[w.kind.Deployment].View().By(kindIndex, w.kind.Name)
		if err != nil {
			continue // each cache has the index
		}
		for o := range found {
			l.enqueue(i, nil, o.resource)
		}
	}
}

// feed runs a custom source, again and again.
func (l *loop) feed(ctx context.Context, s customSource) {
	retry.Forever(ctx, l.c.pauses, func(ctx context.Context) error {
		return guarded(func() error {
			return s.run(ctx, func(all ...Request) {
				select {
				case <-ctx.Done():
				case l.wanted <- all:
				}
			})
		})
	}, func(err error, pause time.Duration, _ bool) {
		l.c.log.Warn("a source ended, it is started again", zap.String("source", s.name), zap.Error(err),
			zap.Duration("in", pause))
	})
}

// request queues resources of the controlled kind.
func (l *loop) request(all ...Request) {
	for _, r := range all {
		if !l.isOurs(r.Name) {
			l.c.log.Warn("a request is not for a resource of the controlled kind, it is dropped",
				zap.Stringer("name", r.Name), zap.Stringer("kind", l.c.kind))
			continue
		}
		l.queue.Add(key{does: reconcile, name: r.Name})
	}
}

// isOurs reports whether a name is of the controlled kind.
func (l *loop) isOurs(name schema.FullName) bool {
	if of := l.caches[name.Deployment]; of != nil {
		if o, ok := of.View().Get(name.Name); ok {
			return o.kind == l.c.kind
		}
	}
	return l.kinds.canBe(name, l.c.kind)
}

// present returns the view of the present state.
func (l *loop) present() *View {
	if l.view == nil {
		l.view = &View{
			kinds: l.kinds, of: map[schema.DeploymentID]*cache.View[*object]{},
			positions: maps.Clone(l.positions),
		}
		for id, of := range l.caches {
			l.view.of[id] = of.Copies()
		}
	}
	return l.view
}

// finish takes the result of a worker. Its errors are logged here, and nowhere else.
func (l *loop) finish(ctx context.Context, e ended) {
	again := l.running[e.key]
	delete(l.running, e.key)
	l.c.observer.Ran(e.key.does.String(), e.took, e.err)
	l.await(e)
	l.request(e.requests...)
	if len(e.unmapped) > 0 {
		l.unmapped[e.key] = append(e.unmapped, l.unmapped[e.key]...)
	}
	if again {
		l.queue.Add(e.key)
	}
	l.report(e)
	if e.err != nil {
		l.queue.Retry(e.key, time.Now())
		return
	}
	switch l.queue.Succeeded(e.key); e.key.does {
	case initialise:
		if l.initial--; l.initial == 0 {
			l.begin(ctx)
		}
	case reconcile:
		l.deferred(e)
	case mapping:
	}
}

// deferred queues a resource again for the time at which its run asked for it, or at which it is due anyway.
func (l *loop) deferred(e ended) {
	now := time.Now()
	if _, exists := l.caches[e.key.name.Deployment].View().Get(e.key.name.Name); !exists {
		l.queue.Forget(e.key)
	} else if l.c.resync > 0 {
		l.queue.At(e.key, now.Add(l.c.resync-l.c.resync/10+rand.N(l.c.resync/5+1)))
	}
	if e.result.RequeueAfter > 0 {
		l.queue.At(e.key, now.Add(e.result.RequeueAfter))
	}
}

// report logs the first failure of a key, and its next success. Failures in between are for debugging.
func (l *loop) report(e ended) {
	log := l.c.log.With(zap.Stringer("key", e.key))
	switch failing := l.failing[e.key]; {
	case e.err == nil && failing:
		delete(l.failing, e.key)
		log.Info("it works again")
	case e.err != nil && failing:
		log.Debug("it failed again", zap.Error(e.err))
	case e.err != nil:
		l.failing[e.key] = true
		log.Warn("it failed, and is tried again", zap.Error(e.err))
	}
}
