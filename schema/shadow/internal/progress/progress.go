// Package progress counts what each deletion has found and done in this deployment. Transactions only add to counters of their process,
// after their commit; a process adds its counters to the table twice a second, in one statement for all deletions. So a cascade waits for
// no row of its progress, and a process that is killed loses the counts of its last half second.
package progress

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// flushInterval is the pause between two statements of a process.
const flushInterval = 500 * time.Millisecond

// maxNotes bounds the deletions whose counts wait for the table: it may be away for long, and a program that only embeds the store never
// stores them.
const maxNotes = 10_000

// retention is how long the progress of a deletion is kept after its last change.
const retention = 7 * 24 * time.Hour

// Counts of a deletion in one deployment.
type Counts struct {
	Found   int64 // resources that were marked, or removed at once
	Removed int64
	Unset   int64 // references
}

// Deletion is the progress of a deletion in this deployment.
type Deletion struct {
	ID   uuid.UUID
	Root string // full name of the resource that was deleted first
	Counts
	StartedAt, UpdatedAt time.Time
}

// Book has the counts of this process that are not in the table yet.
type Book struct {
	*db.DB
	mu    sync.Mutex
	notes map[uuid.UUID]*note // guarded by mu
}

// Recorder adds to a book what transactions do.
type Recorder struct {
	book  *Book
	ended func(took time.Duration)
}

type note struct {
	Counts
	root string
}

// New returns an empty book, and what cascades record in it with.
func New(d *db.DB) (*Book, *Recorder) {
	ended := d.Cfg.DeletionEnded
	if ended == nil {
		ended = func(time.Duration) {}
	}
	b := &Book{DB: d, notes: map[uuid.UUID]*note{}}
	return b, &Recorder{book: b, ended: ended}
}

// Add adds to the counts of a deletion when a transaction is committed.
func (r *Recorder) Add(tx pgx.Tx, cause *schema.Cause, c Counts) {
	db.AfterCommit(tx, func() {
		r.book.mu.Lock()
		defer r.book.mu.Unlock()
		r.book.add(cause.ID, note{c, cause.Root})
	})
}

// Ended reports when a transaction that removes the root of a deletion is committed.
func (r *Recorder) Ended(tx pgx.Tx, began time.Time) {
	db.AfterCommit(tx, func() { r.ended(r.book.Now().Sub(began)) })
}

// add is called with the lock.
func (b *Book) add(id uuid.UUID, more note) {
	n := b.notes[id]
	if n == nil && len(b.notes) >= maxNotes {
		return
	}
	if n == nil {
		n = &note{root: more.root}
		b.notes[id] = n
	}
	n.Found, n.Removed, n.Unset = n.Found+more.Found, n.Removed+more.Removed, n.Unset+more.Unset
}

const flushSQL = `
INSERT INTO dbcontroller.deletion_progress AS p (id, root, found, removed, unset)
SELECT * FROM unnest(@ids::uuid[], @roots::text[], @found::bigint[], @removed::bigint[], @unset::bigint[]) AS i (id, root, found, removed, unset) ORDER BY id
ON CONFLICT (id) DO UPDATE SET
    found = p.found + EXCLUDED.found, removed = p.removed + EXCLUDED.removed, unset = p.unset + EXCLUDED.unset, updated_at = now()`

// Flush adds the counts to the table.
func (b *Book) Flush(ctx context.Context) error {
	b.mu.Lock()
	notes := b.notes
	b.notes = map[uuid.UUID]*note{}
	b.mu.Unlock()
	if len(notes) == 0 {
		return nil
	}
	var ids []uuid.UUID
	var roots []string
	var found, removed, unset []int64
	for id, n := range notes {
		ids, roots = append(ids, id), append(roots, n.root)
		found, removed, unset = append(found, n.Found), append(removed, n.Removed), append(unset, n.Unset)
	}
	_, err := b.Pool.Exec(ctx, flushSQL, db.Named{"ids": ids, "roots": roots, "found": found, "removed": removed, "unset": unset})
	if err != nil {
		b.putBack(notes)
		return fmt.Errorf("store the progress of deletions: %w", err)
	}
	return nil
}

// putBack adds counts that were not stored to those that have come since.
func (b *Book) putBack(notes map[uuid.UUID]*note) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, n := range notes {
		b.add(id, *n)
	}
}

const tidySQL = `
DELETE FROM dbcontroller.deletion_progress WHERE id IN (
    SELECT id FROM dbcontroller.deletion_progress WHERE updated_at < now() - $1::interval ORDER BY updated_at LIMIT 5000
)`

// RunProgress stores the counts until ctx ends, and once more then. It removes old rows.
func (b *Book) RunProgress(ctx context.Context) error {
	failing, tidied := false, time.Time{}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(flushInterval):
		}
		err := b.flushOnce(ctx)
		if err == nil && time.Since(tidied) > time.Hour && ctx.Err() == nil {
			tidied = time.Now()
			_, err = b.Pool.Exec(ctx, tidySQL, retention)
		}
		if err != nil && !failing && ctx.Err() == nil {
			b.Log.Warn("the progress of deletions could not be stored, retrying", zap.Error(err))
		}
		failing = err != nil
	}
	return nil
}

func (b *Book) flushOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return b.Flush(ctx)
}
