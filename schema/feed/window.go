package feed

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// page is some of what lies between two positions, in order.
type page[T any] struct {
	items []T
	// last is the sequence number of the last item; when the page is full there may be more behind it.
	last int64
	full bool
	// now is of the statement.
	now state
}

// read reads what lies between a position and another one, or the present when that is empty: behind the sequence number
// that the page before it ended with, 0 for the first page.
func read[T any](ctx context.Context, l *Log, f Feed[T], timeline string, from Position, until string, after int64) (p page[T], err error) {
	sql, args := f.FirstSQL, append([]any{from.xmax, from.xip, f.Chunk}, f.Args...)
	switch {
	case after > 0:
		sql, args = f.NextSQL, append(args, until, after)
	case until == "":
		args = append(args, nil)
	default:
		args = append(args, until)
	}
	rows, err := l.cfg.Pool.Query(ctx, sql, append(args, f.More...)...)
	if err != nil {
		return p, fmt.Errorf("follow %s: %w", f.Filter, err)
	}
	defer rows.Close()
	for rows.Next() {
		item, seq, err := f.Scan(&withSnapshot{rows, []any{&p.now.at, &p.now.lsn, &p.now.flushed, &p.now.timeline, &p.now.compacted}})
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
	// Of the statement itself: a pool replaces a connection that was lost, whoever answers at the address now, and what was
	// compacted away is seen as compacted.
	if p.now.timeline != timeline {
		return p, fmt.Errorf("%w: the database failed over", ErrReset)
	}
	if f.Aged && p.now.compactedBeyond(from) {
		return p, fmt.Errorf("%w: the reader paused longer than changes are kept", ErrReset)
	}
	p.full = len(p.items) >= f.Chunk
	return p, nil
}

// withSnapshot takes the first columns, which tell about the statement, away from the scan.
type withSnapshot struct {
	pgx.CollectableRow
	first []any
}

func (r *withSnapshot) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append(slices.Clone(r.first), dest...)...)
}
