package controller

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Resource is a resource as a deployment sends it. client.Decode makes a typed client.Object of it.
type Resource = resourcev1.Resource

// Kind is the resources of one kind in one deployment.
type Kind struct {
	Deployment schema.DeploymentID
	// Name such as Device; former names (previous_name) mean the same.
	Name string
}

func (k Kind) String() string { return k.Deployment.String() + " " + k.Name }

// id is the kind for comparisons over versions.
func (k Kind) id() schema.KindID { return schema.KindID{Service: k.Deployment.Service, Kind: k.Name} }

// Request asks for a resource to be reconciled, which may not exist any more. Requests of the same name are
// one.
type Request struct{ Name schema.FullName }

// RequestFor returns the request for a resource.
func RequestFor(r *Resource) Request { return Request{nameOf(r)} }

// Result of a successful run; its zero value: the resource is reconciled again after a change only.
type Result struct {
	// RequeueAfter is the time after which the resource is reconciled again at the latest; 0: none.
	RequeueAfter time.Duration
}

// Reconciler brings the world in line with a resource.
type Reconciler interface {
	// Reconcile is repeated after an error. The view is the state of all watched kinds when the run began; it
	// does not change.
	Reconcile(ctx context.Context, req Request, v *View) (Result, error)
}

// Func is a Reconciler.
type Func func(ctx context.Context, req Request, v *View) (Result, error)

// Reconcile implements Reconciler.
func (f Func) Reconcile(ctx context.Context, req Request, v *View) (Result, error) {
	return f(ctx, req, v)
}

// Mapper returns the resources to reconcile because of a resource of another kind. It is called with each
// state of it: with the former one and the new one of a change, so that resources that it no longer concerns
// are reconciled as well, and with the last one of a removal. The view has the present state. A call that
// fails is repeated.
type Mapper func(ctx context.Context, r *Resource, v *View) ([]Request, error)

// Filter reports whether a change matters. before is nil for a new resource, after for a removed one.
type Filter func(before, after *Resource) bool

// GenerationChanged is a Filter for changes of the body. Other changes, such as of labels, owners and state,
// do not pass.
func GenerationChanged(before, after *Resource) bool {
	return before == nil || after == nil || before.GetUid() != after.GetUid() ||
		before.GetGeneration() != after.GetGeneration()
}

// Keys returns the keys of a resource in an index: none, one, or many. It depends on the resource alone. A
// resource for which it fails stays in the cache as it was, and the log has the error.
type Keys func(r *Resource) ([]string, error)

// Source delivers resources: a *client.Client, an *embed.Source, or the Client of a *dbctest.Fake.
type Source interface {
	// Refresh reads the environment: the kinds of each version, and the version of each deployment.
	Refresh(ctx context.Context) (*schema.Environment, error)
	// Watch delivers the resources that q selects, and their changes, as client.Client.Watch does. It goes on
	// until ctx ends, or an error is definite, which is the last one that it yields.
	Watch(ctx context.Context, id schema.DeploymentID, q client.WatchQuery) iter.Seq2[client.Event, error]
}

// Observer receives the data for metrics. Its methods are called by one goroutine at a time, and must not
// block.
type Observer interface {
	// Ran is called after each run: of "reconcile" (also of a clean-up), "map" or "initialise"; err is nil
	// after a success.
	Ran(what string, took time.Duration, err error)
	// Waiting is called with the number of keys that wait for a worker, whenever it may have changed.
	Waiting(keys int)
	// Cached is called with the number of resources in the cache of a deployment, whenever it may have
	// changed.
	Cached(of schema.DeploymentID, resources int)
}

type unobserved struct{}

func (unobserved) Ran(string, time.Duration, error) {}
func (unobserved) Waiting(int)                      {}
func (unobserved) Cached(schema.DeploymentID, int)  {}

// Controller describes the watched kinds and the runs. Its methods return it; Run starts it.
type Controller struct {
	source       Source
	kind         Kind
	watched      []watched // the first is the controlled kind, without a mapper
	indexes      []index
	sources      []customSource
	initialisers []func(ctx context.Context, v *View) error
	workers      int
	resync       time.Duration
	pauses       retry.Backoff
	finalizers   finalizers
	sharing      *Sharing // nil: this process has all resources
	log          *zap.Logger
	observer     Observer
}

// watched is a kind, with the requests that its changes cause.
type watched struct {
	kind    Kind
	mapper  Mapper // nil: the resource itself is reconciled
	filters []Filter
}

// matters reports whether no filter drops a change; so it does when a filter panics.
func (w watched) matters(before, after *Resource) (matters bool, err error) {
	if len(w.filters) == 0 {
		return true, nil
	}
	matters, before, after = true, copyOf(before), copyOf(after)
	err = guarded(func() error {
		matters = !slices.ContainsFunc(w.filters, func(keep Filter) bool { return !keep(before, after) })
		return nil
	})
	return matters, err
}

type index struct {
	name  string
	keys  Keys
	kinds []Kind
}

type customSource struct {
	name string
	run  func(ctx context.Context, enqueue func(...Request)) error
}

// New returns a controller of a kind, the controlled one. A change of its resources that one of the filters
// drops causes no run.
func New(source Source, kind Kind, filters ...Filter) *Controller {
	return &Controller{
		source: source, kind: kind, watched: []watched{{kind: kind, filters: filters}}, workers: 1,
		log: zap.NewNop(), observer: unobserved{},
	}
}

// Watches reconciles the resources that the mapper names, whenever one of another kind changes.
func (c *Controller) Watches(kind Kind, m Mapper, filters ...Filter) *Controller {
	c.watched = append(c.watched, watched{kind: kind, mapper: m, filters: filters})
	return c
}

// Owns watches another kind: whenever one of its resources changes, the owners of the controlled kind are
// reconciled.
func (c *Controller) Owns(kind Kind, filters ...Filter) *Controller {
	return c.Watches(kind, nil, filters...)
}

// Index adds an index for View.By: it has the resources of the controlled kind, or of the watched kinds that
// are named.
func (c *Controller) Index(name string, keys Keys, kinds ...Kind) *Controller {
	if len(kinds) == 0 {
		kinds = []Kind{c.kind}
	}
	c.indexes = append(c.indexes, index{name, keys, kinds})
	return c
}

// From runs a source of requests beside the watches: a timer, a queue, a webhook. A source that returns is
// started again after a pause; the log has the reason.
func (c *Controller) From(name string, run func(ctx context.Context, enqueue func(...Request)) error) *Controller {
	c.sources = append(c.sources, customSource{name, run})
	return c
}

// Initialise runs a function after the caches are complete, and before anything else. One that fails is
// repeated.
func (c *Controller) Initialise(f func(ctx context.Context, v *View) error) *Controller {
	c.initialisers = append(c.initialisers, f)
	return c
}

// Workers sets the number of runs at a time, of different resources (default, and at least, 1).
func (c *Controller) Workers(n int) *Controller {
	c.workers = max(n, 1)
	return c
}

// Resync reconciles each resource again after some time without a run, give or take a tenth (default 0:
// never).
func (c *Controller) Resync(every time.Duration) *Controller {
	c.resync = every
	return c
}

// Backoff sets the first and the longest pause after runs that failed (default 50 ms and 10 s).
func (c *Controller) Backoff(first, longest time.Duration) *Controller {
	c.pauses = retry.Backoff{First: first, Max: longest}
	return c
}

// Logger sets the log (default: none).
func (c *Controller) Logger(log *zap.Logger) *Controller {
	c.log = log
	return c
}

// Observe sets the observer (default: none).
func (c *Controller) Observe(o Observer) *Controller {
	c.observer = o
	return c
}

// Run reconciles until ctx ends, and returns nil after every run has ended. It fails when the declarations
// contradict one another, with ErrUnknown when there is no such kind, and with the error of a watch that is
// refused, such as client.ErrDenied. A controller can be run again.
func (c *Controller) Run(ctx context.Context, r Reconciler) error {
	if err := c.check(); err != nil {
		return err
	}
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	kinds, err := c.describe(running)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	if err := c.checkFinalizers(kinds); err != nil {
		return err
	}
	newLoop(c, r, kinds, cancel).run(running)
	if err := context.Cause(running); err != context.Cause(ctx) { //nolint:errorlint // the same error, not one of its class
		return err
	}
	return nil
}

func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// check refuses wrong declarations.
func (c *Controller) check() error {
	kinds, names := map[Kind]bool{}, map[string]bool{}
	for _, w := range c.watched {
		if kinds[w.kind] {
			return fmt.Errorf("the kind %s is watched twice", w.kind)
		}
		kinds[w.kind] = true
	}
	for _, i := range c.indexes {
		if names[i.name] || i.name == kindIndex || i.name == ownerIndex {
			return fmt.Errorf("there are two indexes %q", i.name)
		}
		names[i.name] = true
		for _, k := range i.kinds {
			if !kinds[k] {
				return fmt.Errorf("the index %q is of %s, which is not watched", i.name, k)
			}
		}
	}
	return nil
}
