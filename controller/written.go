package controller

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/schema"
)

// awaitLimit bounds how long a key waits for the caches to have the writes of its last run. They may never
// have one: the caller may not read the resource, or somebody else has replaced it while a watch was
// interrupted.
const awaitLimit = 10 * time.Second

// Await tells the controller of resources that a run has written by other means than a client.Client or an
// embed.Application, as a deployment answered them: the next run of the same resource sees them. It returns
// at once.
func Await(ctx context.Context, written ...*Resource) {
	for _, r := range written {
		client.Wrote(ctx, client.WrittenOf(r))
	}
}

// writes are the effects of the writes of one run, the newest of each resource.
type writes struct {
	mu sync.Mutex
	of map[schema.FullName]client.Written // guarded by mu
}

// add is called by any goroutine of the run.
func (w *writes) add(one client.Written) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[schema.FullName]client.Written{}
	}
	if old, ok := w.of[one.Name]; ok && old.UID == one.UID && (old.Gone || !one.Gone && old.Revision > one.Revision) {
		return
	}
	w.of[one.Name] = one
}

// take returns the effects until now; later ones of goroutines that the run has left behind do not count.
func (w *writes) take() map[schema.FullName]client.Written {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.of
	w.of = nil
	return of
}

// awaited are the writes of the last run of a key that the caches do not have yet.
type awaited struct {
	key    key
	writes map[schema.FullName]expected
	until  time.Time
	wanted bool // a run of the key waits for them
}

// expected is a write, with the uid that its resource had in the view of the run; empty: there was none.
type expected struct {
	client.Written
	before string
}

// isIn reports whether a cache has the write: r is the resource of its name there, nil for none.
func (x expected) isIn(r *Resource) bool {
	switch {
	case x.Gone:
		return r == nil || r.GetUid() != cmp.Or(x.UID, x.before)
	case r == nil:
		return false
	}
	return r.GetUid() == x.UID && r.GetRevision() >= x.Revision
}

// cached returns the resource of a name in the caches, nil for none.
func (l *loop) cached(name schema.FullName) *Resource {
	if o, ok := l.caches[name.Deployment].View().Get(name.Name); ok {
		return o.resource
	}
	return nil
}

// watches reports whether a resource of this name is delivered.
func (l *loop) watches(name schema.FullName) bool {
	return slices.ContainsFunc(l.c.watched, func(w watched) bool { return l.kinds.canBe(name, w.kind) })
}

// await holds the next run of a key back until the caches have what the run that has ended wrote.
func (l *loop) await(e ended) {
	a := &awaited{key: e.key, writes: map[schema.FullName]expected{}, until: time.Now().Add(awaitLimit)}
	for name, w := range e.wrote {
		if !l.watches(name) {
			continue
		}
		x := expected{Written: w}
		if o, ok := e.view.get(name); ok {
			x.before = o.resource.GetUid()
		}
		if x.isIn(l.cached(name)) {
			continue
		}
		a.writes[name] = x
		l.awaiting[name] = append(l.awaiting[name], a)
	}
	if len(a.writes) > 0 {
		l.awaited[e.key] = a
		l.patience = append(l.patience, a)
	}
}

// held reports whether a key waits for the writes of its last run; it is queued again when the caches have
// them.
func (l *loop) held(k key) bool {
	a := l.awaited[k]
	if a != nil {
		a.wanted = true
	}
	return a != nil
}

// seen notes a change of a cache: after is the new state, nil after the removal of the incarnation removed.
func (l *loop) seen(name schema.FullName, after *Resource, removed string) {
	l.awaiting[name] = slices.DeleteFunc(l.awaiting[name], func(a *awaited) bool {
		x := a.writes[name]
		if !x.isIn(after) && (removed == "" || x.UID != removed) {
			return false
		}
		l.met(a, name)
		return true
	})
	if len(l.awaiting[name]) == 0 {
		delete(l.awaiting, name)
	}
}

// met notes that a write is awaited no more. The last one of a key frees its run.
func (l *loop) met(a *awaited, name schema.FullName) {
	if delete(a.writes, name); len(a.writes) > 0 {
		return
	}
	delete(l.awaited, a.key)
	if a.wanted {
		l.queue.Add(a.key)
	}
}

// losePatience frees the keys that have waited for too long, and returns when the next one has.
func (l *loop) losePatience(now time.Time) (next time.Time, waits bool) {
	for len(l.patience) > 0 {
		a := l.patience[0]
		if len(a.writes) > 0 && now.Before(a.until) {
			return a.until, true
		}
		l.patience = l.patience[1:]
		for name := range a.writes {
			l.c.log.Warn("a run does not wait any longer for what the run before it wrote", zap.Stringer("key", a.key),
				zap.Stringer("name", name))
			l.awaiting[name] = slices.DeleteFunc(l.awaiting[name], func(b *awaited) bool { return a == b })
			if len(l.awaiting[name]) == 0 {
				delete(l.awaiting, name)
			}
			l.met(a, name)
		}
	}
	return time.Time{}, false
}
