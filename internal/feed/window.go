package feed

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/budget"
)

// maxPageBytes is the size of the rows of a page, beyond its first row: a watch has a page in memory.
const maxPageBytes = 256 << 10

// rowCopies is how often a row is in memory: in its item, and in the encoded item that watches share.
const rowCopies = 2

// anySize is for rows of any size.
const anySize = math.MaxInt64

// page is a part of the rows between two positions, in order.
type page[T any] struct {
	items []T
	// last is the sequence number of the last item, key its key; after a full page there may be more.
	last int64
	key  Key
	full bool
	// xid is the transaction that has written all of its rows, when that was one; several says that they are
	// of more than one.
	xid     string
	several bool
	// bytes is the size of its rows.
	bytes int64
	// needs is the size of the row that comes next, which is too large for the memory of the reader; there
	// are no items then.
	needs int64
	// memory is for a page of a large row, until it is delivered; nil for others.
	memory *budget.Hold
	// present is the position of the statement.
	present state
}

// forget drops the rows of a page that is delivered, and releases their memory: the reader may wait for the
// memory of the next page, and holds nothing meanwhile.
func (p *page[T]) forget() {
	p.memory.Release()
	p.items, p.memory = nil, nil
}

// Key is the key of a row of a snapshot by key.
type Key struct {
	Kind int32
	Name string
}

// everyKey is not before any key.
var everyKey = Key{Kind: math.MaxInt32}

// window selects the rows of a read: the rows between a position and another one, or the present when that is
// empty; behind the sequence number that the page before it ended with, 0 for the first page; of the keys up
// to one.
type window struct {
	from  Position
	until string
	after int64
	upTo  Key
	limit int
	most  int64 // the size of the first row
}

// meanwhileBytes is for a large row that has changed since the page before, which is delivered before a page
// of a snapshot.
const meanwhileBytes = 2 << 20

// charged reads a page of which the first row may be large: its reader waits for the memory, and not with a
// connection. Release the memory of the page when it is delivered.
func charged[T any](ctx context.Context, read func(most int64) (page[T], error)) (page[T], error) {
	p, err := read(maxPageBytes)
	if err != nil || p.needs == 0 {
		return p, err
	}
	memory, err := budget.FromContext(ctx).Acquire(ctx, budget.Converting, p.needs+meanwhileBytes)
	if err != nil {
		return p, ctx.Err()
	}
	if p, err = read(anySize); err != nil {
		memory.Release()
		return p, err
	}
	p.memory = memory
	return p, nil
}

// walkSQL is for the statements of the same batch, which is one transaction: they walk along the index on seq
// and end at their limit. The newest rows of a log are newer than the planner's statistics: it would expect
// few of them, and collect and sort all of them for each page (measured: 60,000 changes of one writer came
// with 4,800/s instead of 33,000/s).
const walkSQL = `SELECT set_config('enable_bitmapscan', 'off', true)`

// read reads a page of a window.
func read[T any](ctx context.Context, l *Log, f Feed[T], epoch string, w window) (p page[T], err error) {
	sql, args := f.FirstSQL, append([]any{w.from.xmax, w.from.xip, w.limit}, f.Args...)
	if f.Keyed {
		args = append(args, w.upTo.Kind, w.upTo.Name)
	}
	switch {
	case w.after > 0:
		sql, args = f.NextSQL, append(args, w.until, w.after)
	case w.until == "":
		args = append(args, nil)
	default:
		args = append(args, w.until)
	}
	b := &pgx.Batch{}
	if w.after > 0 {
		b.Queue(walkSQL)
	}
	b.Queue(sql, append(args, f.More...)...)
	p, err = send(ctx, l, f, b, w.limit, w.most, false)
	if err == nil {
		err = p.check(epoch)
	}
	if err == nil && f.Aged && p.present.compactedBeyond(w.from) {
		err = fmt.Errorf("%w: the reader paused for longer than the retention of changes", ErrReset)
	}
	return p, err
}

// query reads a page of a snapshot.
func query[T any](ctx context.Context, l *Log, f Feed[T], epoch string, limit int, most int64,
	args []any,
) (p page[T], err error) {
	b := &pgx.Batch{}
	b.Queue(f.SnapshotSQL, args...)
	if p, err = send(ctx, l, f, b, limit, most, f.Keyed); err == nil {
		err = p.check(epoch)
	}
	return p, err
}

// check compares the epoch of the statement itself: a pool replaces a broken connection, perhaps by one to
// another server at the same address.
func (p *page[T]) check(epoch string) error {
	if p.present.epoch != epoch {
		return fmt.Errorf("%w: the database failed over", ErrReset)
	}
	return nil
}

// send reads the rows of the last statement of a batch.
func send[T any](ctx context.Context, l *Log, f Feed[T], b *pgx.Batch, limit int, most int64,
	keyed bool,
) (p page[T], err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("follow %s: %w", f.Filter, err)
		}
	}()
	answers := l.cfg.Pool.SendBatch(ctx, b)
	defer func() { _ = answers.Close() }() // the rows return its errors
	for range b.Len() - 1 {
		if _, err := answers.Exec(); err != nil {
			return p, err
		}
	}
	rows, err := answers.Query()
	if err != nil {
		return p, err
	}
	defer rows.Close()
	var kind *int32
	var name, xid *string
	first := []any{&p.present.at, &p.present.lsn, &p.present.flushed, &p.present.epoch, &p.present.compacted}
	if keyed {
		first = append(first, &kind, &name)
	} else if f.Written {
		first = append(first, &xid)
	}
	for rows.Next() && !p.full {
		bytes := int64(0)
		for _, value := range rows.RawValues() {
			bytes += rowCopies * budget.EncodedBytes(value)
		}
		switch {
		case p.bytes+bytes > maxPageBytes && len(p.items) > 0:
			p.full = true
			return p, nil
		case bytes > most:
			p.full, p.needs = true, bytes
			return p, rows.Scan(append(slices.Clone(first), make([]any, len(rows.RawValues())-len(first))...)...)
		}
		item, seq, err := f.Scan(&withSnapshot{rows, first})
		if err != nil {
			return p, err
		}
		p.bytes += bytes
		if seq == 0 {
			continue
		}
		if p.items, p.last = append(p.items, item), seq; kind != nil {
			p.key = Key{*kind, *name}
		}
		p.wrote(xid)
	}
	p.full = p.full || len(p.items) >= limit
	return p, rows.Err()
}

// wrote records the transaction that has written a row; nil when it is not known.
func (p *page[T]) wrote(xid *string) {
	switch {
	case xid == nil || p.xid != "" && p.xid != *xid:
		p.several = true
	default:
		p.xid = *xid
	}
}

// withSnapshot scans the first columns, which describe the statement, and passes the others on.
type withSnapshot struct {
	pgx.CollectableRow
	first []any
}

func (r *withSnapshot) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append(slices.Clone(r.first), dest...)...)
}
