package feed

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

const (
	// stallTimeout ends a snapshot whose reader does not receive a chunk: an open snapshot holds a connection, and keeps
	// PostgreSQL from removing dead rows.
	stallTimeout = 10 * time.Second
	// snapshotTimeout ends a snapshot of resources, which any caller may read, that takes too long altogether. Snapshots of work
	// and notices have no such limit: a large one that begins anew each time would never end.
	snapshotTimeout = time.Minute
)

const fetchSQL = `FETCH FORWARD 100 FROM feed`

// snapshot delivers the rows of one transaction's snapshot, and returns its position. Snapshots of resources, which any caller
// may read, take at most a quarter of the connections.
func snapshot[T any](ctx context.Context, l *Log, f Feed[T], within func(limit time.Duration, e schema.Event[T]) error) (st state, at Position, err error) {
	if f.Aged {
		select {
		case l.snapshots <- struct{}{}:
			defer func() { <-l.snapshots }()
		case <-ctx.Done():
			return st, at, ctx.Err()
		}
	}
	began := time.Now()
	err = pgx.BeginTxFunc(ctx, l.cfg.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if st, err = l.state(ctx, tx); err != nil {
			return err
		}
		if at, err = parsePosition(st.at); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, f.SnapshotSQL, slices.Concat(f.Args, f.More)...); err != nil {
			return err
		}
		for {
			items, err := fetch(ctx, tx, f)
			if err != nil || len(items) == 0 {
				return err
			}
			if f.Aged && time.Since(began) > snapshotTimeout {
				return ErrSlow
			}
			if err := within(stallTimeout, schema.Event[T]{Items: items}); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return st, at, fmt.Errorf("snapshot of %s: %w", f.Filter, err)
	}
	return st, at, l.flush(ctx, st)
}

func fetch[T any](ctx context.Context, tx pgx.Tx, f Feed[T]) ([]T, error) {
	// Described each time: the same text returns other columns for another feed.
	rows, err := tx.Query(ctx, fetchSQL, pgx.QueryExecModeDescribeExec)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (T, error) {
		item, _, err := f.Scan(row)
		return item, err
	})
}
