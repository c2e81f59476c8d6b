package feed

import (
	"context"
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/internal/budget"
	"github.com/db-controller/db-controller/schema"
)

// snapshot delivers the rows of a feed, and returns the position of which they are the state. Each page is a
// statement of its own, so that no connection, and no row version, waits for the reader.
func snapshot[T any](ctx context.Context, l *Log, f Feed[T], within deliverer[T]) (st state, at Position, err error) {
	if f.Keyed {
		st, at, err = keyedSnapshot(ctx, l, f, within)
	} else {
		st, at, err = loggedSnapshot(ctx, l, f, within)
	}
	if err != nil {
		return st, at, fmt.Errorf("snapshot of %s: %w", f.Filter, err)
	}
	return st, at, nil
}

type deliverer[T any] func(schema.Event[T]) error

// begin reads the state of the database, and its position, which is on disk.
func (l *Log) begin(ctx context.Context) (st state, at Position, err error) {
	if st, err = l.state(ctx, l.cfg.Pool); err != nil {
		return st, at, err
	}
	if at, err = parsePosition(st.at); err != nil {
		return st, at, err
	}
	return st, at, l.flush(ctx, st)
}

// loggedSnapshot delivers the rows of a table that is nothing but its log, by sequence number. The position
// is taken first: a row that is written after it is left out, because it comes after the snapshot; a row that
// is removed meanwhile is done, and no watch needs it.
func loggedSnapshot[T any](ctx context.Context, l *Log, f Feed[T],
	within deliverer[T],
) (st state, at Position, err error) {
	if st, at, err = l.begin(ctx); err != nil {
		return st, at, err
	}
	size := sizer{most: f.Chunk}
	for p := (page[T]{full: true}); p.full; {
		err := inMemory(ctx, func(m *budget.Hold) (err error) {
			args := append([]any{at.Text, size.next(), p.last}, f.Args...)
			p, err = charged(ctx, func(most int64) (page[T], error) {
				return query(ctx, l, f, st.epoch, size.next(), most, args)
			})
			defer p.forget()
			return handOver(m, p, err, &size, within)
		})
		if err != nil {
			return st, at, err
		}
	}
	return st, at, nil
}

// keyedSnapshot delivers the rows of a table that has its log beside it, by key. Each page is of a newer
// position than the page before. Before it is delivered, the changes between the two positions are, of the
// keys of the pages before: then all that was delivered is the state of those keys at the newer position.
// After the last page it is the state of all keys.
func keyedSnapshot[T any](ctx context.Context, l *Log, f Feed[T],
	within deliverer[T],
) (st state, at Position, err error) {
	if st, at, err = l.begin(ctx); err != nil {
		return st, at, err
	}
	size := sizer{most: f.Chunk}
	for p := (page[T]{full: true}); p.full; {
		err := inMemory(ctx, func(m *budget.Hold) (err error) {
			before := p.key
			args := slices.Concat([]any{size.next()}, f.Args, []any{before.Kind, before.Name}, f.More)
			p, err = charged(ctx, func(most int64) (page[T], error) {
				return query(ctx, l, f, st.epoch, size.next(), most, args)
			})
			if err != nil {
				return err
			}
			defer p.forget()
			to, err := l.reached(ctx, at, p.present)
			if err != nil {
				return err
			}
			if before != (Key{}) {
				if err := meanwhile(ctx, l, f, st.epoch, window{from: at, until: to.Text, upTo: before}, p.memory,
					within); err != nil {
					return err
				}
			}
			at = to
			return handOver(m, p, nil, &size, within)
		})
		if err != nil {
			return st, at, err
		}
	}
	return st, at, nil
}

// inMemory runs a step of a watch, which has a page in memory, when its caller has the memory for it.
func inMemory(ctx context.Context, step func(m *budget.Hold) error) error {
	m, err := budget.FromContext(ctx).Acquire(ctx, budget.Watching, maxPageBytes)
	if err != nil {
		return ctx.Err()
	}
	defer m.Release()
	return step(m)
}

// handOver delivers a page that was read.
func handOver[T any](m *budget.Hold, p page[T], err error, size *sizer, within deliverer[T]) error {
	if err != nil {
		return err
	}
	m.Set(min(p.bytes, maxPageBytes))
	size.saw(p.full, len(p.items))
	if len(p.items) == 0 {
		return nil
	}
	return within(schema.Event[T]{Items: p.items})
}

// reached returns the position of a page, which is on disk and not before another one.
func (l *Log) reached(ctx context.Context, from Position, now state) (Position, error) {
	to, err := parsePosition(now.at)
	if err == nil && from.after(to) {
		err = errBack
	}
	if err != nil {
		return to, err
	}
	return to, l.flush(ctx, now)
}

// meanwhile delivers the changes between two positions of the rows up to a key.
// has: the snapshot has the memory for large rows.
func meanwhile[T any](ctx context.Context, l *Log, f Feed[T], epoch string, w window, has *budget.Hold,
	within deliverer[T],
) error {
	size := sizer{most: f.Chunk}
	next := func(most int64) (page[T], error) {
		w.limit, w.most = size.next(), most
		return read(ctx, l, f, epoch, w)
	}
	for full := true; full; {
		var p page[T]
		var err error
		if has != nil {
			p, err = next(anySize)
		} else {
			p, err = charged(ctx, next)
		}
		if err != nil {
			return err
		}
		if size.saw(p.full, len(p.items)); len(p.items) > 0 {
			err = within(schema.Event[T]{Items: p.items})
		}
		p.memory.Release()
		if err != nil {
			return err
		}
		full, w.after = p.full, p.last
	}
	return nil
}

// sizer decides how many rows a page asks for: after a page that was cut because of its bytes, no more than
// it had, and then more again, since the database has read the cut-off rows for nothing.
type sizer struct{ most, rows int }

func (s *sizer) next() int {
	if s.rows == 0 {
		s.rows = s.most
	}
	return s.rows
}

func (s *sizer) saw(full bool, n int) {
	if full && n < s.rows {
		s.rows = max(1, n)
		return
	}
	s.rows = min(2*s.rows, s.most)
}
