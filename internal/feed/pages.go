package feed

import (
	"context"
	"slices"

	"github.com/db-controller/db-controller/internal/postgres"
)

// sharedPages bounds how many pages a tail keeps for watches that have not delivered them yet. A watch that is further behind
// reads by itself.
const sharedPages = 20

// pages are the pages after the first one of a look; each is read once for all watches that need it.
type pages[T any] struct {
	kept []*keptPage[T] // oldest first
}

type keptPage[T any] struct {
	from, until string
	after       int64

	done chan struct{} // closed when the fields below are set; they do not change afterwards
	page page[T]
	err  error
}

// of returns the page between two positions after a sequence number, and whether another watch reads it already.
func (ps *pages[T]) of(from, until string, after int64) (k *keptPage[T], ok bool) {
	for _, k := range ps.kept {
		if k.from == from && k.until == until && k.after == after {
			return k, true
		}
	}
	if len(ps.kept) >= sharedPages {
		ps.kept = slices.Delete(ps.kept, 0, 1)
	}
	k = &keptPage[T]{from: from, until: until, after: after, done: make(chan struct{}), err: errLook}
	ps.kept = append(ps.kept, k)
	return k, false
}

// forget removes all pages but those of the newest look.
func (ps *pages[T]) forget(newest string) {
	ps.kept = slices.DeleteFunc(ps.kept, func(k *keptPage[T]) bool { return k.until != newest })
}

// read returns a page of the feed; of several watches that need it, one reads for all.
func (t *tail[T]) read(ctx context.Context, w window) (page[T], error) {
	if t.watches.Load() < 2 {
		return read(ctx, t.log, t.feed, t.state.epoch, w)
	}
	t.mu.Lock()
	k, ok := t.pages.of(w.from.Text, w.until, w.after)
	t.mu.Unlock()
	if ok {
		select {
		case <-k.done:
		case <-ctx.Done():
			return page[T]{}, ctx.Err()
		}
		if k.err == nil {
			return k.page, nil
		}
		return read(ctx, t.log, t.feed, t.state.epoch, w) // the error may concern the other watch only
	}
	defer close(k.done)
	// Not cancelled with this watch: other watches wait for the page.
	ctx, cancel := context.WithTimeout(postgres.InControl(context.WithoutCancel(ctx)), lookTimeout)
	defer cancel()
	k.page, k.err = read(ctx, t.log, t.feed, t.state.epoch, w)
	return k.page, k.err
}
