package cascade

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Deletion is the progress of a deletion in this deployment.
type Deletion struct {
	ID   uuid.UUID
	Root string // full name of the resource that was deleted first
	DeletionCounts
	// Expected is Found and the holders that were counted and not found yet: the holders of one resource are
	// found page by page. Resources that are deleted with them are not known before.
	Expected int64
	// ExpectedUnset likewise: Unset, and the references that will be.
	ExpectedUnset int64
	// Left is an estimate of the time until all that is expected is done here, by the rate so far; 0: none,
	// as when nothing was done for a minute: it waits for something.
	Left                 time.Duration
	StartedAt, UpdatedAt time.Time
}

const (
	progressColumnsSQL = `
SELECT p.id, p.root, p.found, p.removed, p.unset, p.found + w.cascades, p.unset + w.unsets,
    GREATEST(w.seconds, CASE WHEN p.removed BETWEEN 1 AND p.found AND p.updated_at > now() - interval '1 min' THEN extract(epoch FROM now() - p.started_at) * (p.found - p.removed) / p.removed END, 0)::float8,
    p.started_at, p.updated_at
FROM dbcontroller.deletion_progress p CROSS JOIN LATERAL (
    SELECT COALESCE(sum(w.cascades), 0)::bigint AS cascades, COALESCE(sum(w.unsets), 0)::bigint AS unsets,
        max(extract(epoch FROM now() - w.started_at) * (w.cascades + w.unsets) / NULLIF(w.passed, 0)) AS seconds
    FROM dbcontroller.deletion_walk w WHERE w.deletion = p.id AND w.updated_at > now() - ` + walkSilence + `
) AS w `

	oneDeletionSQL = progressColumnsSQL + `WHERE p.id = $1`

	// Each part by its own index.
	runningDeletionsSQL = progressColumnsSQL + `WHERE p.id IN (
    SELECT id FROM dbcontroller.deletion_progress WHERE removed < found
    UNION SELECT deletion FROM dbcontroller.deletion_walk WHERE updated_at > now() - ` + walkSilence + `
) ORDER BY p.updated_at DESC LIMIT $1`

	deletionsPageSQL = progressColumnsSQL + `WHERE p.id IN (
    SELECT id FROM dbcontroller.deletion_progress WHERE removed < found
    UNION SELECT deletion FROM dbcontroller.deletion_walk WHERE updated_at > now() - ` + walkSilence + `
) AND ($2::timestamptz IS NULL OR (p.started_at, p.id) < ($2, $3)) ORDER BY p.started_at DESC, p.id DESC LIMIT $1`

	// The ids are in the order of their beginnings (UUID version 7).
	endedDeletionsSQL = progressColumnsSQL + `WHERE p.removed >= p.found AND NOT EXISTS (
    SELECT FROM dbcontroller.deletion_walk r WHERE r.deletion = p.id AND r.updated_at > now() - ` + walkSilence + `
) AND ($2::uuid IS NULL OR p.id < $2) ORDER BY p.id DESC LIMIT $1`

	deletionsLeftSQL = `
WITH marked AS (SELECT id, found - removed AS resources FROM dbcontroller.deletion_progress WHERE removed < found),
walked AS (SELECT deletion, cascades FROM dbcontroller.deletion_walk WHERE updated_at > now() - ` + walkSilence + `)
SELECT (SELECT count(*) FROM (SELECT id FROM marked UNION SELECT deletion FROM walked) AS u),
    (COALESCE((SELECT sum(resources) FROM marked), 0) + COALESCE((SELECT sum(cascades) FROM walked), 0))::bigint`
)

// DeletionProgress returns the progress of one deletion here, with all counts of this process; nothing if it
// has not reached this deployment.
func (b *Book) DeletionProgress(ctx context.Context, id uuid.UUID) ([]Deletion, error) {
	if err := b.Flush(ctx); err != nil {
		return nil, err
	}
	return b.read(ctx, oneDeletionSQL, id)
}

// RunningDeletions returns deletions with resources in DELETING here, or with holders here that were counted
// and not found yet, the newest changes first.
func (b *Book) RunningDeletions(ctx context.Context, limit int) ([]Deletion, error) {
	return b.read(ctx, runningDeletionsSQL, limit)
}

// ListDeletions returns a page of the running deletions, the newest deletion first, and the token of the next
// page. It fails with *peer.InvalidError.
func (b *Book) ListDeletions(ctx context.Context, token string, limit int) (out []Deletion, next string, err error) {
	after, err := db.ParsePage(token)
	if err != nil {
		return nil, "", err
	}
	if out, err = b.read(ctx, deletionsPageSQL, limit, after.After(), after.ID); err == nil && len(out) == limit {
		last := out[limit-1]
		next = db.Page{At: last.StartedAt, ID: last.ID}.Token()
	}
	return out, next, err
}

// EndedDeletions returns a page of the deletions that have ended here and are kept, the newest deletion
// first, and the token of the next page. It fails with *peer.InvalidError.
func (b *Book) EndedDeletions(ctx context.Context, token string, limit int) (out []Deletion, next string, err error) {
	after, err := db.ParsePage(token)
	if err != nil {
		return nil, "", err
	}
	var before *uuid.UUID
	if token != "" {
		before = &after.ID
	}
	if out, err = b.read(ctx, endedDeletionsSQL, limit, before); err == nil && len(out) == limit {
		last := out[limit-1]
		next = db.Page{At: last.StartedAt, ID: last.ID}.Token()
	}
	return out, next, err
}

func (b *Book) read(ctx context.Context, sql string, args ...any) ([]Deletion, error) {
	rows, err := b.Pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read the progress of deletions: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Deletion, err error) {
		var left float64
		err = row.Scan(&d.ID, &d.Root, &d.Found, &d.Removed, &d.Unset, &d.Expected, &d.ExpectedUnset, &left,
			&d.StartedAt, &d.UpdatedAt)
		d.Left = time.Duration(left * float64(time.Second))
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the progress of deletions: %w", err)
	}
	return out, nil
}

// Left sums up the running deletions, as RunningDeletions has them.
type Left struct{ Running, Resources int64 }

// DeletionsLeft sums up the running deletions here.
func (b *Book) DeletionsLeft(ctx context.Context) (left Left, err error) {
	if err := b.Pool.QueryRow(ctx, deletionsLeftSQL).Scan(&left.Running, &left.Resources); err != nil {
		return left, fmt.Errorf("sum up the progress of deletions: %w", err)
	}
	return left, nil
}
