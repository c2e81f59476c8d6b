package constraint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// Watches are what a node follows. They deliver a snapshot, its end, and what comes after, until ctx ends or the
// stream does.
type Watches interface {
	WatchShadows(ctx context.Context, shards []uint32, deliver func(schema.Event[schema.Work]) error) error
	WatchDeletions(ctx context.Context, from schema.DeploymentID, deliver func(schema.Event[schema.Deletion]) error) error
}

// Owned does the outstanding work of this deployment.
type Owned interface {
	// Task names the task of an action: the work of one task and one deployment is handled one batch at a time, beside all
	// other tasks. It is empty for an action that this version does not know; its work is left to a newer version.
	Task(action schema.Action) string
	// Handle does work of one task for one deployment. It returns the pieces that wait for something that has not come
	// yet. Pieces that fail by themselves are a schema.PartError; any other error is of the whole batch.
	Handle(ctx context.Context, deployment schema.DeploymentID, work []schema.Work) (waiting []int64, err error)
}

// Resolver asks the holders' deployments about expired blockades.
type Resolver interface {
	// Expired names the deployments to call Resolve for.
	Expired(ctx context.Context) ([]schema.DeploymentID, error)
	Resolve(ctx context.Context, holder schema.DeploymentID) error
}

// SubscribedDeleting acts upon deletions of another deployment, and acknowledges them when a position is given. It returns
// the deletions that failed, which it does not acknowledge, and with schema.ErrUnfinished those with more holders than one
// run handles: they are handled again, beside new ones.
type SubscribedDeleting interface {
	Handle(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion, position string, earlier []uuid.UUID, again bool) (map[uuid.UUID]error, error)
}

// Observer is told what goes on, for metrics. It must not block.
type Observer interface {
	// HandlerRan is called after each run of a handler.
	HandlerRan(handler string, deployment schema.DeploymentID, items int, took time.Duration, err error)
	// WatchPrimed is called when a watch has reached its end of snapshot, when it was lost, and when it has ended.
	WatchPrimed(watch string, deployment schema.DeploymentID, p Primed)
	// WatchHeard is called for everything that a watch delivers, bookmarks included.
	WatchHeard(watch string, deployment schema.DeploymentID)
}

// Primed tells whether a watch has reached its end of snapshot, how many objects it knows of, and how long the snapshot
// took; or that the watch has ended for good, and nothing more is told of it.
type Primed struct {
	Done    bool
	Objects int
	Took    time.Duration
	Ended   bool
}

// Config of a Node. All fields but SweepInterval are needed.
type Config struct {
	Name       string
	Deployment schema.DeploymentID
	// Shards of the ring whose work this node does.
	Shards []uint32
	// Subscriptions is sent whenever the set changes: the whole set. Closed by nobody; Run ends with its context.
	Subscriptions <-chan []schema.Subscription
	Watches       Watches
	Owned         Owned
	Resolver      Resolver
	Subscribed    SubscribedDeleting
	Observer      Observer
	Logger        *zap.Logger
	// Sweeps tells this node to look for expired blockades; one node of a deployment does.
	Sweeps bool
	// SweepInterval is how often it looks (default 1 s).
	SweepInterval time.Duration
}

// Node is a DbConstraint node. Run it once.
type Node struct {
	cfg    Config
	events chan event
	done   chan result

	// Of the loop's goroutine alone.
	own     *own
	foreign map[schema.DeploymentID]*foreign
	tasks   map[taskKey]*task
	workers sync.WaitGroup
}

// event is something from a watch. Sent by the watch's goroutine, which waits for the loop; never closed.
type event struct {
	from     schema.DeploymentID // zero: the own watch
	run      *watchRun
	started  bool // a new stream begins: what is known so far is replaced
	lost     bool
	work     schema.Event[schema.Work]
	deletion schema.Event[schema.Deletion]
}

// New makes a node.
func New(cfg Config) (*Node, error) {
	if cfg.Watches == nil || cfg.Owned == nil || cfg.Resolver == nil || cfg.Subscribed == nil || cfg.Observer == nil || cfg.Logger == nil {
		return nil, errors.New("a node needs watches, handlers, an observer and a logger")
	}
	if cfg.SweepInterval <= 0 {
		cfg.SweepInterval = time.Second
	}
	return &Node{
		cfg: cfg,
		// Unbuffered: a watch is never ahead of the loop by more than the one event in its hand.
		events: make(chan event),
		// Unbuffered: a worker waits for the loop, which never waits for workers while it runs.
		done:    make(chan result),
		own:     newOwn(),
		foreign: map[schema.DeploymentID]*foreign{},
		tasks:   map[taskKey]*task{},
	}, nil
}

// Run blocks until ctx ends and every watch and worker has returned; then it answers nil.
func (n *Node) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer n.workers.Wait()
	defer cancel()
	own := n.watchOwn(ctx)
	defer func() {
		own.stop()
		n.cfg.Observer.WatchPrimed(n.shadowsWatch(), n.cfg.Deployment, Primed{Ended: true})
	}()
	defer n.converge(ctx, nil)
	sweep := time.NewTicker(n.cfg.SweepInterval)
	defer sweep.Stop()
	sweeps := sweep.C
	if !n.cfg.Sweeps {
		sweeps = nil
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(n.start(ctx))
		select {
		case <-ctx.Done():
			return nil
		case set := <-n.cfg.Subscriptions:
			n.converge(ctx, set)
		case e := <-n.events:
			n.take(e)
		case r := <-n.done:
			n.finish(r)
		case <-sweeps:
			n.task(taskKey{kind: sweeping, deployment: n.cfg.Deployment}).wanted = true
		case <-timer.C: // a backoff is over
		}
	}
}

// converge stops what is not wanted any more and waits for it, keeps what is equal, and starts what is new.
func (n *Node) converge(ctx context.Context, set []schema.Subscription) {
	wanted := map[schema.DeploymentID]schema.Subscription{}
	for _, s := range set {
		wanted[s.DeploymentID] = s
	}
	for id, f := range n.foreign {
		if s, ok := wanted[id]; !ok || s != f.subscription {
			f.run.stop()
			delete(n.foreign, id)
			_, again := wanted[id]
			n.cfg.Observer.WatchPrimed(deletionsWatch, id, Primed{Ended: !again})
		}
	}
	for id, s := range wanted {
		if n.foreign[id] == nil {
			f := newForeign(s)
			f.run = n.watchForeign(ctx, id)
			n.foreign[id] = f
		}
	}
}

// take puts an event into its cache. Until the end of the snapshot nothing else happens with it.
func (n *Node) take(e event) {
	if e.from.IsZero() {
		fresh, err := n.own.take(e)
		if err != nil {
			n.cfg.Logger.Error("outstanding work that cannot be kept", zap.Error(err))
		}
		for _, w := range fresh {
			if name := n.cfg.Owned.Task(w.Action); name != "" {
				n.task(taskKey{taskKind(name), w.Deployment}).add(w.Seq)
			}
		}
		if e.work.EndOfSnapshot || e.lost {
			n.cfg.Observer.WatchPrimed(n.shadowsWatch(), n.cfg.Deployment, Primed{Done: n.own.Primed(), Objects: n.own.Len(), Took: time.Since(n.own.began)})
		}
		return
	}
	f := n.foreign[e.from]
	if f == nil || f.run != e.run {
		return // of a watch that was stopped
	}
	if err := f.take(e); err != nil {
		n.cfg.Logger.Error("deletions that cannot be kept", zap.Error(err))
	}
	if e.deletion.EndOfSnapshot {
		n.heard(e.from)
	}
	if e.deletion.EndOfSnapshot || e.lost {
		n.cfg.Observer.WatchPrimed(deletionsWatch, e.from, Primed{Done: f.Primed(), Objects: f.Len(), Took: time.Since(f.began)})
	}
}

// watchRun is one goroutine that keeps a watch going.
type watchRun struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has returned
}

func (r *watchRun) stop() {
	r.cancel()
	<-r.done
}

func (n *Node) watchOwn(ctx context.Context) *watchRun {
	return n.keepWatching(ctx, schema.DeploymentID{}, func(ctx context.Context, run *watchRun, heard func()) error {
		return n.cfg.Watches.WatchShadows(ctx, n.cfg.Shards, func(e schema.Event[schema.Work]) error {
			heard()
			n.cfg.Observer.WatchHeard(n.shadowsWatch(), n.cfg.Deployment)
			return n.send(ctx, event{run: run, work: e})
		})
	})
}

func (n *Node) watchForeign(ctx context.Context, from schema.DeploymentID) *watchRun {
	return n.keepWatching(ctx, from, func(ctx context.Context, run *watchRun, heard func()) error {
		return n.cfg.Watches.WatchDeletions(ctx, from, func(e schema.Event[schema.Deletion]) error {
			heard()
			n.cfg.Observer.WatchHeard(deletionsWatch, from)
			return n.send(ctx, event{from: from, run: run, deletion: e})
		})
	})
}

// keepWatching opens a watch again whenever it ends, each time with a new snapshot that replaces what was known. The
// same stream primes and goes on.
func (n *Node) keepWatching(ctx context.Context, from schema.DeploymentID, watch func(ctx context.Context, run *watchRun, heard func()) error) *watchRun {
	ctx, cancel := context.WithCancel(ctx)
	run := &watchRun{cancel: cancel, done: make(chan struct{})}
	log := n.cfg.Logger.With(zap.String("node", n.cfg.Name), zap.Stringer("deployment", from))
	go func() {
		defer close(run.done)
		backoff := backoff{}
		for ctx.Err() == nil {
			began := time.Now()
			if n.send(ctx, event{from: from, run: run, started: true}) != nil {
				return
			}
			err := n.once(ctx, run, watch)
			if ctx.Err() != nil || n.send(ctx, event{from: from, run: run, lost: true}) != nil {
				return
			}
			if time.Since(began) > 10*time.Second {
				backoff.reset()
			}
			level := zap.InfoLevel
			if backoff.last != 0 {
				level = zap.DebugLevel // the same once more
			}
			wait := backoff.next()
			log.Log(level, "a watch ended, it is opened again", zap.Error(err), zap.Duration("in", wait))
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
	}()
	return run
}

// silence is how long a watch may say nothing, whose server speaks every few seconds: then its connection is half open, or
// its server hangs.
const silence = 30 * time.Second

var errSilent = errors.New("nothing was heard for too long")

// once follows one stream of a watch, until it ends or is silent for too long.
func (n *Node) once(ctx context.Context, run *watchRun, watch func(ctx context.Context, run *watchRun, heard func()) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer silent.Stop()
	err := watch(ctx, run, func() { silent.Reset(silence) })
	if errors.Is(context.Cause(ctx), errSilent) {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return err
}

func (n *Node) send(ctx context.Context, e event) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case n.events <- e:
		return nil
	}
}

// deletionsWatch names watches of other deployments for the observer: of each there is one. Every node has its own watch of
// shadows.
const deletionsWatch = "deletions"

func (n *Node) shadowsWatch() string { return "shadows-" + n.cfg.Name }

func (n *Node) String() string { return fmt.Sprintf("node %s of %s", n.cfg.Name, n.cfg.Deployment) }
