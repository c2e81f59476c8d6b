package feed

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/db-controller/db-controller/internal/budget"
	"github.com/db-controller/db-controller/internal/postgres"
)

// sharedPages bounds how many pages a tail keeps for watches that have not delivered them yet. A watch that
// is further behind reads by itself.
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

	bytes int64        // guarded by mu of the tail: the bytes that count as kept
	hold  *budget.Hold // guarded by mu of the tail: of the only caller that has watches
}

// maxKeptBytes bounds the pages that all tails of a log keep.
const maxKeptBytes = 8 << 20

// find returns the page between two positions after a sequence number, which another watch has read or reads.
func (ps *pages[T]) find(from, until string, after int64) (k *keptPage[T], ok bool) {
	for _, k := range ps.kept {
		if k.from == from && k.until == until && k.after == after {
			return k, true
		}
	}
	return nil, false
}

// add adds a page that is not there.
func (ps *pages[T]) add(kept *atomic.Int64, from, until string, after int64) *keptPage[T] {
	if len(ps.kept) >= sharedPages {
		ps.remove(kept, ps.kept[0])
	}
	k := &keptPage[T]{from: from, until: until, after: after, done: make(chan struct{}), err: errLook}
	ps.kept = append(ps.kept, k)
	return k
}

// count counts a page that was read, or removes it when it is too much: for all, or for the only caller that
// has watches.
func (ps *pages[T]) count(kept *atomic.Int64, k *keptPage[T], only *budget.Account) {
	if !slices.Contains(ps.kept, k) {
		return // removed meanwhile
	}
	fits := true
	if only != nil {
		k.hold, fits = only.TakeHalf(budget.Watching, k.page.bytes)
	}
	k.bytes = k.page.bytes
	if kept.Add(k.bytes) > maxKeptBytes || !fits {
		ps.remove(kept, k)
	}
}

func (ps *pages[T]) remove(kept *atomic.Int64, k *keptPage[T]) {
	if i := slices.Index(ps.kept, k); i >= 0 {
		ps.kept = slices.Delete(ps.kept, i, i+1)
		k.hold.Release()
		kept.Add(-k.bytes)
	}
}

// forget removes the pages of all looks but the newest.
func (ps *pages[T]) forget(kept *atomic.Int64, newest string) {
	for _, k := range slices.Clone(ps.kept) {
		if k.until != newest {
			ps.remove(kept, k)
		}
	}
}

// forgetAll removes the pages of a tail without watches.
func (t *tail[T]) forgetAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pages.forget(&t.log.kept, "")
}

// keep keeps the large page of a look for the watches that are not behind.
func (t *tail[T]) keep(of *look[T], p page[T]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.pages.add(&t.log.kept, of.from.Text, of.to.Text, 0)
	k.page, k.err = p, nil
	close(k.done)
	t.pages.count(&t.log.kept, k, t.only())
}

// read returns a page of the feed; of several watches that need it, one reads for all.
func (t *tail[T]) read(ctx context.Context, w window) (page[T], error) {
	if w.most == anySize { // the reader has the memory for it
		return read(ctx, t.log, t.feed, t.state.epoch, w)
	}
	w.most = t.most()
	alone := t.watches.Load() < 2
	t.mu.Lock()
	k, ok := t.pages.find(w.from.Text, w.until, w.after)
	if !ok && !alone {
		k = t.pages.add(&t.log.kept, w.from.Text, w.until, w.after)
	}
	t.mu.Unlock()
	if !ok && alone {
		return read(ctx, t.log, t.feed, t.state.epoch, w)
	}
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
	defer func() {
		close(k.done)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.pages.count(&t.log.kept, k, t.only())
	}()
	// Not cancelled with this watch: other watches wait for the page.
	ctx, cancel := context.WithTimeout(postgres.InControl(context.WithoutCancel(ctx)), lookTimeout)
	defer cancel()
	k.page, k.err = read(ctx, t.log, t.feed, t.state.epoch, w)
	return k.page, k.err
}
