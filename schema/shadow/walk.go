package shadow

import (
	"sync"

	"github.com/db-controller/db-controller/schema"
)

// actingBehaviours are in the order in which a target's holders are paged through.
var actingBehaviours = []schema.Behaviour{schema.CascadeDelete, schema.Unset, schema.AsyncCascadeDelete, schema.AsyncUnset}

// walk over the holders of a deleted resource: where it has come to, and what failed on the way.
type walk struct {
	seq       int64 // of the deletion. One that is told again is about holders that a walk may have passed
	behaviour int   // of actingBehaviours
	after     int64 // the last holder
	failed    error
}

// walks are those that ended in the middle. A lost one costs no more than to begin again.
type walks struct {
	mu       sync.Mutex
	byTarget map[int64]walk // guarded by mu
}

// mostWalks are kept. Other processes may go on with a deletion, so that its walk here stays.
const mostWalks = 10_000

func (w *walks) has(target, seq int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.byTarget[target]
	return ok && p.seq == seq
}

// take is the walk of a deletion that ended in the middle, or a new one.
func (w *walks) take(target, seq int64) walk {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.byTarget[target]
	delete(w.byTarget, target)
	if p.seq != seq {
		return walk{seq: seq}
	}
	return p
}

func (w *walks) put(target int64, p walk) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byTarget == nil {
		w.byTarget = map[int64]walk{}
	}
	w.byTarget[target] = p
	for other := range w.byTarget {
		if len(w.byTarget) <= mostWalks {
			break
		}
		delete(w.byTarget, other)
	}
}

// forget them: the database is another one.
func (w *walks) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.byTarget = nil
}
