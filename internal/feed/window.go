package feed

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// page is a part of the rows between two positions, in order.
type page[T any] struct {
	items []T
	// last is the sequence number of the last item; after a full page there may be more.
	last int64
	full bool
	// present is the position of the statement.
	present state
}

// walkSQL is for the statements of the same batch, which is one transaction: they walk along the index on seq and end at their
// limit. The newest rows of a log are newer than the planner's statistics: it would expect few of them, and collect and sort all
// of them for each page (measured: 60,000 changes of one writer came with 4,800/s instead of 33,000/s).
const walkSQL = `SELECT set_config('enable_bitmapscan', 'off', true)`

// read reads the rows between a position and another one (empty: the present), after the last sequence number of the page before
// (0: the first page).
func read[T any](ctx context.Context, l *Log, f Feed[T], epoch string, from Position, until string, after int64) (p page[T], err error) {
	sql, args := f.FirstSQL, append([]any{from.xmax, from.xip, f.Chunk}, f.Args...)
	switch {
	case after > 0:
		sql, args = f.NextSQL, append(args, until, after)
	case until == "":
		args = append(args, nil)
	default:
		args = append(args, until)
	}
	b := &pgx.Batch{}
	if after > 0 {
		b.Queue(walkSQL)
	}
	b.Queue(sql, append(args, f.More...)...)
	answers := l.cfg.Pool.SendBatch(ctx, b)
	defer func() { _ = answers.Close() }() // errors are those of the rows
	if after > 0 {
		if _, err := answers.Exec(); err != nil {
			return p, fmt.Errorf("follow %s: %w", f.Filter, err)
		}
	}
	rows, err := answers.Query()
	if err != nil {
		return p, fmt.Errorf("follow %s: %w", f.Filter, err)
	}
	defer rows.Close()
	for rows.Next() {
		item, seq, err := f.Scan(&withSnapshot{rows, []any{&p.present.at, &p.present.lsn, &p.present.flushed, &p.present.epoch, &p.present.compacted}})
		if err != nil {
			return p, fmt.Errorf("follow %s: %w", f.Filter, err)
		}
		if seq > 0 {
			p.items, p.last = append(p.items, item), seq
		}
	}
	if err := rows.Err(); err != nil {
		return p, fmt.Errorf("follow %s: %w", f.Filter, err)
	}
	// The values of the statement itself: a pool replaces a broken connection, perhaps by one to another server at the same
	// address; and rows that were compacted meanwhile are noticed.
	if p.present.epoch != epoch {
		return p, fmt.Errorf("%w: the database failed over", ErrReset)
	}
	if f.Aged && p.present.compactedBeyond(from) {
		return p, fmt.Errorf("%w: the reader paused for longer than the retention of changes", ErrReset)
	}
	p.full = len(p.items) >= f.Chunk
	return p, nil
}

// withSnapshot scans the first columns, which describe the statement, and passes the others on.
type withSnapshot struct {
	pgx.CollectableRow
	first []any
}

func (r *withSnapshot) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append(slices.Clone(r.first), dest...)...)
}
