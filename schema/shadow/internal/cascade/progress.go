package cascade

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

// flushInterval is the time for which a process collects changes before it stores them.
const flushInterval = 500 * time.Millisecond

// maxNotes bounds the deletions whose counts wait for the table: it may be away for long, and a program that
// only embeds the store never stores them.
const maxNotes = 10_000

// progressKept is the time for which the progress of a deletion is kept after its last change.
const progressKept = 7 * 24 * time.Hour

// DeletionCounts of a deletion in one deployment.
type DeletionCounts struct {
	Found   int64 // resources that were marked, or removed at once
	Removed int64
	Unset   int64 // references
}

// Book counts the resources of each deletion in this deployment: found, removed, unset. Transactions only add
// to counters of their process, after their commit; a process adds its counters to the table half a second
// after a change, in one statement for all deletions. So a cascade waits for no row of its progress, and a
// process that is killed loses the counts of its last half second. A Book has the counts of this process that
// are not in the table yet.
type Book struct {
	*db.DB
	stores  atomic.Bool
	storing chan struct{} // one place, for one store at a time: an earlier state of a walk may not follow a later one
	changed chan struct{} // one place: counts or walks have been added since the last store began
	mu      sync.Mutex
	notes   map[uuid.UUID]*deletionCounts // guarded by mu
	walks   map[uuid.UUID]Walk            // guarded by mu; the changed ones, by the uids of their targets
}

// Recorder adds the changes of transactions to a book.
type Recorder struct {
	book  *Book
	ended func(took time.Duration)
}

type deletionCounts struct {
	DeletionCounts
	root string
}

// NewBook returns an empty book, and the recorder with which cascades write to it.
func NewBook(d *db.DB) (*Book, *Recorder) {
	ended := d.Cfg.DeletionEnded
	if ended == nil {
		ended = func(time.Duration) {}
	}
	b := &Book{
		DB: d, storing: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		notes: map[uuid.UUID]*deletionCounts{}, walks: map[uuid.UUID]Walk{},
	}
	return b, &Recorder{book: b, ended: ended}
}

// deletionTally has the counts of a transaction by deletion, and the begins of the deletions whose root it
// removes.
type deletionTally struct {
	notes map[uuid.UUID]*deletionCounts
	began []time.Time
}

func (t *deletionTally) add(cause *schema.Cause, c DeletionCounts) {
	n := t.notes[cause.ID]
	if n == nil {
		n = &deletionCounts{root: cause.Root}
		t.notes[cause.ID] = n
	}
	n.DeletionCounts = n.plus(c)
}

func (c DeletionCounts) plus(more DeletionCounts) DeletionCounts {
	return DeletionCounts{Found: c.Found + more.Found, Removed: c.Removed + more.Removed, Unset: c.Unset + more.Unset}
}

// decided adds the effects of a decision to the counts of its deletions when the transaction is committed.
func (r *Recorder) decided(ctx context.Context, tx pgx.Tx, c *plan.Closure, v plan.Verdict) error {
	t := &deletionTally{notes: map[uuid.UUID]*deletionCounts{}}
	var marked []int64 // earlier, and removed now
	for _, id := range v.Mark {
		t.member(c.Members[id], DeletionCounts{Found: 1})
	}
	for _, id := range v.Remove {
		if m := c.Members[id]; m.State == peer.Active {
			t.member(m, DeletionCounts{Found: 1, Removed: 1})
		} else {
			marked = append(marked, id)
		}
	}
	for _, e := range v.Unset {
		t.member(c.Members[e.TargetID], DeletionCounts{Unset: 1})
	}
	if len(marked) > 0 {
		b := &pgx.Batch{}
		t.queueFinalised(b, marked)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return fmt.Errorf("count removals: %w", err)
		}
	}
	r.record(tx, t)
	return nil
}

func (t *deletionTally) member(m *plan.Member, c DeletionCounts) {
	if m.State != peer.Active || m.Why.Cause == nil {
		return // counted when it was marked
	}
	t.add(m.Why.Cause, c)
	if m.Why.How == peer.Requested && c.Removed > 0 {
		t.began = append(t.began, m.Why.Cause.At)
	}
}

// A row for each cause: thousands of resources have one, and are joined with it once.
var finalisedSQL = db.Codes(`
SELECT x.deletion_id, x.root, going.n, CASE WHEN x.how = {requested} THEN x.at END
FROM (
    SELECT r.cause_id, count(*) AS n FROM dbcontroller.shadow s JOIN dbcontroller.removal r ON r.name = s.name AND r.uid = s.uid
    WHERE s.id = ANY ($1) GROUP BY 1
) AS going JOIN dbcontroller.cause x ON x.id = going.cause_id`)

// queueFinalised adds resources in DELETING that are about to be removed, when the batch is sent.
func (t *deletionTally) queueFinalised(b *pgx.Batch, free []int64) {
	b.Queue(finalisedSQL, free).Query(func(rows pgx.Rows) error {
		var cause schema.Cause
		var n int64
		var began *time.Time
		_, err := pgx.ForEachRow(rows, []any{&cause.ID, &cause.Root, &n, &began}, func() error {
			t.add(&cause, DeletionCounts{Removed: n})
			if began != nil {
				t.began = append(t.began, *began)
			}
			return nil
		})
		return err
	})
}

// queueFinalised adds resources in DELETING that are about to be removed to the counts of their deletions,
// when the transaction is committed. It reads them in a batch of statements, before the statements that
// remove them.
func (r *Recorder) queueFinalised(tx pgx.Tx, b *pgx.Batch, free []int64) {
	if len(free) == 0 {
		return
	}
	t := &deletionTally{notes: map[uuid.UUID]*deletionCounts{}}
	t.queueFinalised(b, free)
	r.record(tx, t)
}

// Unset adds a reference that is unset to the counts of a deletion when the transaction is committed.
func (r *Recorder) Unset(tx pgx.Tx, cause *schema.Cause) { r.Add(tx, cause, DeletionCounts{Unset: 1}) }

// Add adds to the counts of a deletion when the transaction is committed.
func (r *Recorder) Add(tx pgx.Tx, cause *schema.Cause, c DeletionCounts) {
	t := &deletionTally{notes: map[uuid.UUID]*deletionCounts{}}
	t.add(cause, c)
	r.record(tx, t)
}

func (r *Recorder) record(tx pgx.Tx, t *deletionTally) {
	report := func() {
		r.book.take(t.notes)
		for _, began := range t.began {
			r.ended(r.book.Now().Sub(began))
		}
	}
	db.AfterCommit(tx, report)
}

// take adds counts that are not in the table yet.
func (b *Book) take(notes map[uuid.UUID]*deletionCounts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, more := range notes {
		n := b.notes[id]
		if n == nil && len(b.notes) >= maxNotes {
			continue
		}
		if n == nil {
			n = &deletionCounts{root: more.root}
			b.notes[id] = n
		}
		n.DeletionCounts = n.plus(more.DeletionCounts)
	}
	if len(notes) > 0 {
		b.wakeStore()
	}
}

// wakeStore makes RunProgress store the changes.
func (b *Book) wakeStore() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

const flushSQL = `
INSERT INTO dbcontroller.deletion_progress AS p (id, root, found, removed, unset)
SELECT * FROM unnest(@ids::uuid[], @roots::text[], @found::bigint[], @removed::bigint[], @unset::bigint[]) AS i (id, root, found, removed, unset) ORDER BY id
ON CONFLICT (id) DO UPDATE SET
    found = p.found + EXCLUDED.found, removed = p.removed + EXCLUDED.removed, unset = p.unset + EXCLUDED.unset, updated_at = now()`

// Flush adds the counts to the table, and stores the walks, in one transaction with the states of one moment:
// a page that a walk has passed is in the counts, or else expected.
func (b *Book) Flush(ctx context.Context) error {
	select {
	case b.storing <- struct{}{}:
		defer func() { <-b.storing }()
	case <-ctx.Done():
		return fmt.Errorf("store the progress of deletions: %w", ctx.Err())
	}
	b.mu.Lock()
	notes, walks := b.notes, b.walks
	// also empty maps: counts that are added later are no part of this store
	b.notes, b.walks = map[uuid.UUID]*deletionCounts{}, map[uuid.UUID]Walk{}
	b.mu.Unlock()
	batch := &pgx.Batch{}
	queueNotes(batch, notes)
	queueWalks(batch, walks)
	if batch.Len() == 0 {
		return nil
	}
	if err := b.Pool.SendBatch(ctx, batch).Close(); err != nil {
		b.take(notes)
		b.putBack(walks)
		return fmt.Errorf("store the progress of deletions: %w", err)
	}
	return nil
}

func queueNotes(b *pgx.Batch, notes map[uuid.UUID]*deletionCounts) {
	if len(notes) == 0 {
		return
	}
	var ids []uuid.UUID
	var roots []string
	var found, removed, unset []int64
	for id, n := range notes {
		ids, roots = append(ids, id), append(roots, n.root)
		found, removed, unset = append(found, n.Found), append(removed, n.Removed), append(unset, n.Unset)
	}
	b.Queue(flushSQL, db.Named{"ids": ids, "roots": roots, "found": found, "removed": removed, "unset": unset})
}

const tidyProgressSQL = `
DELETE FROM dbcontroller.deletion_progress WHERE id IN (
    SELECT id FROM dbcontroller.deletion_progress WHERE updated_at < now() - $1::interval ORDER BY updated_at LIMIT 5000
)`

// RunProgress stores the counts until ctx ends; Close stores the last ones. It removes old rows.
func (b *Book) RunProgress(ctx context.Context) error {
	b.stores.Store(true)
	failing := false
	var store <-chan time.Time // nil: nothing has changed
	for tidy := time.After(flushInterval); ; {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-b.changed:
			if store == nil {
				store = time.After(flushInterval)
			}
			continue
		case <-store:
			store = nil
			err = b.flushOnce(ctx)
		case <-tidy:
			tidy = time.After(time.Hour)
			if err = b.tidy(ctx); err != nil {
				tidy = time.After(flushInterval)
			}
		}
		if err != nil && !failing && ctx.Err() == nil {
			b.Log.Warn("the progress of deletions could not be stored, retrying", zap.Error(err))
		}
		failing = err != nil
	}
}

func (b *Book) tidy(ctx context.Context) error {
	_, err := b.Pool.Exec(ctx, tidyProgressSQL, progressKept)
	if err == nil {
		_, err = b.Pool.Exec(ctx, tidyWalksSQL)
	}
	return err
}

// Close stores the last counts, in a process that stores its counts: behind the end of RunProgress,
// transactions of handlers and of calls still commit. Call it when they have ended.
func (b *Book) Close() {
	if !b.stores.Load() {
		return
	}
	if err := b.flushOnce(context.Background()); err != nil {
		b.Log.Warn("the last counts of deletions could not be stored: their progress lacks them", zap.Error(err))
	}
}

func (b *Book) flushOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return b.Flush(ctx)
}
