package shadow

import (
	"sync"

	"github.com/db-controller/db-controller/schema"
)

// actingBehaviours is the order in which a walk pages through a target's holders.
var actingBehaviours = []schema.Behaviour{schema.CascadeDelete, schema.Unset, schema.AsyncCascadeDelete, schema.AsyncUnset}

// walk is the progress of acting on the holders of one deleted resource.
type walk struct {
	seq       int64 // of the deletion's notice; a notice that comes again has a new one, and may concern holders that this walk has passed
	behaviour int   // index into actingBehaviours
	after     int64 // id of the last holder handled
	failed    error // joined errors of holders that could not be handled
}

// walks keeps interrupted walks in memory. Losing one costs only a walk from the beginning.
type walks struct {
	mu       sync.Mutex
	byTarget map[int64]walk // guarded by mu
}

// mostWalks bounds the interrupted walks: one stays when another process continues its deletion.
const mostWalks = 10_000

func (w *walks) has(target, seq int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.byTarget[target]
	return ok && p.seq == seq
}

// take removes and returns the interrupted walk of a deletion, or returns a new one.
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

// forget drops all walks, after a failover or a restore: ids may mean other rows.
func (w *walks) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.byTarget = nil
}
