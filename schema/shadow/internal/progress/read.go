package progress

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	columnsSQL = `SELECT id, root, found, removed, unset, started_at, updated_at FROM dbcontroller.deletion_progress `
	oneSQL     = columnsSQL + `WHERE id = $1`
	runningSQL = columnsSQL + `WHERE removed < found ORDER BY updated_at DESC LIMIT $1`
)

// DeletionProgress returns the progress of one deletion here, with all counts of this process; nothing if it has not reached this
// deployment.
func (b *Book) DeletionProgress(ctx context.Context, id uuid.UUID) ([]Deletion, error) {
	if err := b.Flush(ctx); err != nil {
		return nil, err
	}
	return b.read(ctx, oneSQL, id)
}

// RunningDeletions returns deletions with resources in DELETING here, those with the newest changes first.
func (b *Book) RunningDeletions(ctx context.Context, limit int) ([]Deletion, error) {
	return b.read(ctx, runningSQL, limit)
}

func (b *Book) read(ctx context.Context, sql string, arg any) ([]Deletion, error) {
	rows, err := b.Pool.Query(ctx, sql, arg)
	if err != nil {
		return nil, fmt.Errorf("read the progress of deletions: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Deletion, err error) {
		return d, row.Scan(&d.ID, &d.Root, &d.Found, &d.Removed, &d.Unset, &d.StartedAt, &d.UpdatedAt)
	})
	if err != nil {
		return nil, fmt.Errorf("read the progress of deletions: %w", err)
	}
	return out, nil
}

// Left sums up the running deletions.
type Left struct{ Running, Resources int64 }

const leftSQL = `SELECT count(*), COALESCE(sum(found - removed), 0)::bigint FROM dbcontroller.deletion_progress WHERE removed < found`

// DeletionsLeft sums up the running deletions here.
func (b *Book) DeletionsLeft(ctx context.Context) (left Left, err error) {
	if err := b.Pool.QueryRow(ctx, leftSQL).Scan(&left.Running, &left.Resources); err != nil {
		return left, fmt.Errorf("sum up the progress of deletions: %w", err)
	}
	return left, nil
}
