package constraint

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// Watches are the streams that a node follows. Each delivers a snapshot, the end of the snapshot, and every
// change after it, until ctx or the stream ends.
type Watches interface {
	WatchShadows(ctx context.Context, shards []uint32, deliver func(schema.Event[schema.Work]) error) error
	WatchDeletions(ctx context.Context, from schema.DeploymentID,
		deliver func(schema.Event[schema.Deletion]) error) error
}

// Owned does the outstanding work of this deployment.
type Owned interface {
	// Task names the task of an action: the work of one task and one deployment is handled one batch at a
	// time, beside all other tasks. It is empty for an action that this version does not know; its work is
	// left to a newer version.
	Task(action schema.Action) string
	// Pace is the least time between the beginnings of two batches of a task: work that comes meanwhile
	// shares the next batch. A full batch begins at once. It is zero for work that a caller or another
	// deployment waits for.
	Pace(task string) time.Duration
	// Handle does work of one task for one deployment. It returns the pieces that cannot be done yet. Pieces
	// that fail by themselves are a schema.PartError; any other error is of the whole batch.
	Handle(ctx context.Context, deployment schema.DeploymentID, work []schema.Work) (waiting []int64, err error)
}

// Resolver asks the holders' deployments about expired blockades.
type Resolver interface {
	// Expired names the deployments to call Resolve for.
	Expired(ctx context.Context) ([]schema.DeploymentID, error)
	Resolve(ctx context.Context, holder schema.DeploymentID) error
}

// SubscribedDeleting acts upon deletions of another deployment, and acknowledges them when a position is
// given. It returns the deletions that failed, which it does not acknowledge, and with schema.ErrUnfinished
// the deletions with more holders than one run handles: they are handled again, beside new ones.
type SubscribedDeleting interface {
	Handle(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion, position string,
		earlier []uuid.UUID, again bool) (map[uuid.UUID]error, error)
}

// Observer receives the events for metrics. It must not block.
type Observer interface {
	// HandlerRan is called after each run of a handler.
	HandlerRan(handler string, deployment schema.DeploymentID, run HandlerRun)
	// WatchPrimed is called when a watch begins, when it reaches its end of snapshot, when its stream is
	// lost, and when it has ended.
	WatchPrimed(watch string, deployment schema.DeploymentID, p Primed)
	// WatchHeard is called for each event that a watch delivers, bookmarks included.
	WatchHeard(watch string, deployment schema.DeploymentID)
}

// HandlerRun is one run of a handler.
type HandlerRun struct {
	Items int
	Took  time.Duration
	Err   error
	// Failed is the error of a deletion that failed by itself, in this run or an earlier one, and is not done
	// yet.
	Failed error
	// Next is the time of the next try of failed work, which may be made earlier; zero: nothing failed, or it
	// is not known.
	Next time.Time
}

// Primed reports whether a watch has reached its end of snapshot, the number of objects in its cache, and the
// time that the snapshot took; or that the watch has begun, or ended for good.
type Primed struct {
	Done    bool
	Objects int
	Took    time.Duration
	Began   bool
	Ended   bool
}

// Config of a Node. All fields but Expired and Retries are needed.
type Config struct {
	Name       string
	Deployment schema.DeploymentID
	// Shards of the ring whose work this node does.
	Shards []uint32
	// Subscriptions receives the whole set whenever it changes. It is never closed; Run ends with its
	// context.
	Subscriptions <-chan []schema.Subscription
	Watches       Watches
	Handlers      Handlers
	Observer      Observer
	Logger        *zap.Logger
	// Expired delivers when there are expired blockades, to one node of a deployment; may be nil.
	Expired <-chan struct{}
	// Retries returns a channel until ctx ends: a deployment that it delivers ends the back-offs of the work
	// for that deployment, the zero deployment ends all back-offs. May be nil.
	Retries func(ctx context.Context) <-chan schema.DeploymentID
}

// Handlers do the work of a node. All are needed.
type Handlers struct {
	Owned      Owned
	Resolver   Resolver
	Subscribed SubscribedDeleting
}

// Node is a DbConstraint node.
type Node struct{ cfg Config }

// New makes a node.
func New(cfg Config) (*Node, error) {
	if cfg.Watches == nil || cfg.Handlers.Owned == nil || cfg.Handlers.Resolver == nil ||
		cfg.Handlers.Subscribed == nil || cfg.Observer == nil || cfg.Logger == nil {
		return nil, errors.New("a node needs watches, handlers, an observer and a logger")
	}
	return &Node{cfg: cfg}, nil
}

// Run blocks until ctx ends and every watch and worker has returned; then it returns nil.
func (n *Node) Run(ctx context.Context) error {
	newLoop(n.cfg).run(ctx)
	return nil
}

// loop is the state of a node that runs. All fields but the channels belong to the goroutine of run.
type loop struct {
	cfg    Config
	events chan event
	done   chan result

	own       *watchRun
	work      *outstanding
	deletions map[schema.DeploymentID]*deletions
	tasks     map[taskKey]*task
	workers   sync.WaitGroup
}

func newLoop(cfg Config) *loop {
	return &loop{
		cfg: cfg,
		// Unbuffered: a watch is ahead of the loop by the one event that it waits to send.
		events: make(chan event),
		// Unbuffered: a worker waits for the loop, which never waits for workers while it runs.
		done:      make(chan result),
		work:      newOutstanding(),
		deletions: map[schema.DeploymentID]*deletions{},
		tasks:     map[taskKey]*task{},
	}
}

func (l *loop) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer l.workers.Wait()
	defer cancel()
	l.own = l.watchOwn(ctx)
	defer func() {
		l.own.stop()
		l.cfg.Observer.WatchPrimed(l.shadowsWatch(), l.cfg.Deployment, Primed{Ended: true})
	}()
	defer l.converge(ctx, nil)
	var retries <-chan schema.DeploymentID
	if l.cfg.Retries != nil {
		retries = l.cfg.Retries(ctx)
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(l.start(ctx))
		select {
		case <-ctx.Done():
			return
		case set := <-l.cfg.Subscriptions:
			l.converge(ctx, set)
		case e := <-l.events:
			l.take(e)
		case r := <-l.done:
			l.finish(r)
		case <-l.cfg.Expired:
			l.task(taskKey{sweeping, l.cfg.Deployment}).wanted = true
		case of := <-retries:
			l.retry(of)
		case <-timer.C: // a back-off is over
		}
	}
}

// converge stops the watches of removed subscriptions and waits for them, keeps the watches of equal
// subscriptions, and starts the watches of new ones.
func (l *loop) converge(ctx context.Context, set []schema.Subscription) {
	wanted := map[schema.DeploymentID]schema.Subscription{}
	for _, s := range set {
		wanted[s.DeploymentID] = s
	}
	for id, d := range l.deletions {
		if s, ok := wanted[id]; !ok || s != d.subscription {
			d.run.stop()
			delete(l.deletions, id)
			l.cfg.Observer.WatchPrimed(deletionsWatch, id, Primed{Ended: !ok})
		}
	}
	for id, s := range wanted {
		if l.deletions[id] == nil {
			d := newDeletions(s)
			d.run = l.watchDeletions(ctx, id)
			l.deletions[id] = d
		}
	}
}

// take puts an event into its cache, and queues the work that is new.
func (l *loop) take(e event) {
	if e.from.IsZero() {
		l.takeWork(e)
		return
	}
	d := l.deletions[e.from]
	if d == nil || d.run != e.run {
		return // of a watch that was stopped
	}
	if err := d.take(e); err != nil {
		l.cfg.Logger.Error("the cache refused deletions", zap.Stringer("deployment", e.from), zap.Error(err))
	}
	if e.deletion.EndOfSnapshot {
		l.heard(e.from)
	}
	if e.deletion.EndOfSnapshot || e.lost {
		l.cfg.Observer.WatchPrimed(deletionsWatch, e.from, Primed{
			Done: d.Primed(), Objects: d.Len(),
			Took: time.Since(d.began),
		})
	}
}

func (l *loop) takeWork(e event) {
	fresh, err := l.work.take(e)
	if err != nil {
		l.cfg.Logger.Error("the cache refused outstanding work", zap.Error(err))
	}
	for _, w := range fresh {
		if name := l.cfg.Handlers.Owned.Task(w.Action); name != "" {
			l.task(taskKey{name, w.Deployment}).queue.Add(w.Seq)
		}
	}
	if e.work.EndOfSnapshot || e.lost {
		l.cfg.Observer.WatchPrimed(l.shadowsWatch(), l.cfg.Deployment,
			Primed{Done: l.work.Primed(), Objects: l.work.Len(), Took: time.Since(l.work.began)})
	}
}
