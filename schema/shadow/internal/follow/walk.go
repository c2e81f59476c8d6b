package follow

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// actingBehaviours is the order in which a walk pages through a target's holders.
var actingBehaviours = [...]schema.Behaviour{
	schema.CascadeDelete, schema.Unset, schema.AsyncCascadeDelete,
	schema.AsyncUnset,
}

// deletionKey names one notice of a deletion. A notice that comes again has a new seq, and may concern
// holders that a walk has passed. In another epoch of the database ids and seqs may be of other rows.
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
	meet      bool  // its batches run one after the other
	tally
}

// tally has the numbers of a walk for people.
type tally struct {
	began   time.Time
	paused  time.Time                    // the end of the last run, or zero
	passed  int64                        // references acted upon
	ahead   [len(actingBehaviours)]int64 // references of each behaviour that are not passed yet; zero when not counted
	counted bool
}

// resume begins a tally, or continues it. Behind a long pause it is begun anew: another process may have
// continued the walk meanwhile.
func (t *tally) resume(now time.Time) {
	if t.began.IsZero() || !t.paused.IsZero() && now.Sub(t.paused) > cascade.WalkSilence {
		*t = tally{began: now}
	}
}

// countAheadSQL is answered from the index.
const countAheadSQL = `SELECT count(*) FROM dbcontroller.reference WHERE target_id = $1 AND behaviour = $2 AND holder_id > $3`

// countTimeoutSQL bounds a count whose rows are not in memory: it is only for people.
const countTimeoutSQL = `SET LOCAL statement_timeout = '3s'`

// advance moves a walk behind a page, and notes its progress. Its references are counted once, behind a page
// that is not the last one: most walks are short.
func (a *acting) advance(ctx context.Context, id int64, w *walk, passed int, last int64, more bool) {
	w.passed += int64(passed)
	w.ahead[w.behaviour] = max(0, w.ahead[w.behaviour]-int64(passed))
	if w.after = last; !more {
		w.ahead[w.behaviour] = 0 // some have gone by themselves
		w.behaviour, w.after = w.behaviour+1, 0
	}
	if !w.counted && more {
		w.counted = true
		if err := a.count(ctx, id, w); err != nil {
			a.store.Log.Debug("the holders of a deleted resource were not counted: no estimate of the end",
				requestid.Field(ctx), zap.Error(err))
		}
	}
	a.tellOf(id, w)
}

func (a *acting) count(ctx context.Context, id int64, w *walk) error {
	return a.store.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		var ahead [len(actingBehaviours)]int64
		b := &pgx.Batch{}
		b.Queue(countTimeoutSQL)
		for i := w.behaviour; i < len(actingBehaviours); i++ {
			after := int64(0)
			if i == w.behaviour {
				after = w.after
			}
			b.Queue(countAheadSQL, id, int16(actingBehaviours[i]), after).QueryRow(func(row pgx.Row) error {
				return row.Scan(&ahead[i])
			})
		}
		err := db.CommitWith(ctx, tx, b)
		if err == nil {
			w.ahead = ahead
		}
		return err
	})
}

func (a *acting) tellOf(id int64, w *walk) {
	so := cascade.Walk{Passed: w.passed, Began: w.began}
	for i, n := range w.ahead {
		if actingBehaviours[i].Cascades() {
			so.Cascades += n
		} else {
			so.Unsets += n
		}
	}
	t := a.targets[id]
	a.store.progress.Walked(a.cause(t), t.UID, so)
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
