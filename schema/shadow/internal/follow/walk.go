package follow

import (
	"sync"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// actingBehaviours is the order in which a walk pages through a target's holders.
var actingBehaviours = []schema.Behaviour{schema.CascadeDelete, schema.Unset, schema.AsyncCascadeDelete, schema.AsyncUnset}

// deletionKey names one notice of a deletion. A notice that comes again has a new seq, and may concern holders that a walk has
// passed. In another epoch of the database ids and seqs may be of other rows.
type deletionKey struct {
	seq   int64
	epoch uuid.UUID
}

// walk is the progress of acting on the holders of one deleted resource.
type walk struct {
	deletion  deletionKey
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

func (w *walks) has(target int64, deletion deletionKey) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.byTarget[target]
	return ok && p.deletion == deletion
}

// take removes and returns the interrupted walk of a deletion, or returns a new one.
func (w *walks) take(target int64, deletion deletionKey) walk {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.byTarget[target]
	delete(w.byTarget, target)
	if p.deletion != deletion {
		return walk{deletion: deletion}
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
