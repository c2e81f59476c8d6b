package controller

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
)

// does is the action that a key stands for.
type does int

const (
	reconcile  does = iota // the resource
	mapping                // the resource of the n-th watched kind, to requests
	initialise             // the n-th initialiser
)

func (d does) String() string { return [...]string{"reconcile", "map", "initialise"}[d] }

// key is a piece of work.
type key struct {
	does does
	n    int
	name schema.FullName
}

func (k key) String() string {
	switch k.does {
	case mapping:
		return "map " + k.name.String()
	case initialise:
		return fmt.Sprint("initialise ", k.n)
	case reconcile:
	}
	return k.name.String()
}

// ended is the result of a worker.
type ended struct {
	key      key
	result   Result
	requests []Request   // of a mapper
	unmapped []*Resource // the states for which the mapper failed
	view     *View       // of the run
	wrote    map[schema.FullName]client.Written
	err      error
	took     time.Duration
}

// startWorker does a piece of work in a goroutine of its own, with the present state and a context for it.
func (l *loop) startWorker(ctx, during context.Context, k key) {
	v, wrote := l.present(), &writes{}
	e := ended{key: k, view: v}
	during = client.OnWrite(during, wrote.add)
	work := l.work(k, v)
	l.runners.Add(1)
	l.workers.Go(func() {
		defer l.runners.Done()
		err, began := errExited, time.Now() // unless the call returns
		defer func() {
			e.err, e.took, e.wrote = errors.Join(e.err, err), time.Since(began), wrote.take()
			select {
			case l.done <- e:
			case <-ctx.Done():
			}
		}()
		err = guarded(func() error { return work(during, &e) })
	})
}

// errExited: a call ended its goroutine, as a test that fails does.
var errExited = errors.New("it called runtime.Goexit")

func (l *loop) work(k key, v *View) func(ctx context.Context, e *ended) error {
	switch k.does {
	case initialise:
		return func(ctx context.Context, _ *ended) error { return l.c.initialisers[k.n](ctx, v) }
	case mapping:
		return l.mapped(k, v)
	case reconcile:
	}
	if r, ok := v.Get(k.name); ok && l.c.finalizers.left(r) {
		return func(ctx context.Context, _ *ended) error { return l.c.finalizers.cleanUp(ctx, r, v) }
	}
	return func(ctx context.Context, e *ended) (err error) {
		e.result, err = l.reconciler.Reconcile(ctx, Request{k.name}, v)
		return err
	}
}

// mapped returns the call of a mapper with the former states of a resource and the present one.
func (l *loop) mapped(k key, v *View) func(ctx context.Context, e *ended) error {
	states := l.unmapped[k]
	delete(l.unmapped, k)
	w := l.c.watched[k.n]
	if o, ok := v.get(k.name); ok && o.kind == w.kind {
		states = append(states, o.resource)
	}
	m := w.mapper
	if m == nil {
		m = l.owners
	}
	return func(ctx context.Context, e *ended) error {
		for _, state := range states {
			err := guarded(func() error {
				found, err := m(ctx, copyOf(state), v)
				e.requests = append(e.requests, found...)
				return err
			})
			if err != nil {
				e.err, e.unmapped = err, append(e.unmapped, state)
			}
		}
		return nil
	}
}

// owners is the Mapper of Owns.
func (l *loop) owners(_ context.Context, r *Resource, _ *View) (requests []Request, err error) {
	for _, o := range r.GetOwnerReferences() {
		name, err := ownerOf(r, o.GetName())
		if err != nil {
			return nil, err
		}
		if kind, ok := l.kinds.of(name.Deployment, o.GetKind()); ok && kind == l.c.kind &&
			!slices.Contains(requests, Request{name}) {
			requests = append(requests, Request{name})
		}
	}
	return requests, nil
}

// ByIndex is the Mapper for an index whose keys are full names: of the controlled resources that have the
// name of the changed one.
func ByIndex(index string) Mapper {
	return func(_ context.Context, r *Resource, v *View) (requests []Request, err error) {
		found, err := v.By(index, nameOf(r).String())
		if err != nil {
			return nil, err
		}
		for o := range found {
			requests = append(requests, RequestFor(o))
		}
		return requests, nil
	}
}

// guarded makes a panic an error.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}
