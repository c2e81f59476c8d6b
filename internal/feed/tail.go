package feed

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/db-controller/db-controller/internal/budget"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
)

const (
	// coalesce is the least time between two reads of a single watch. Each further watch adds a little, since
	// the rows of a read are sent to all of them: many small events cost more than few larger ones.
	coalesce        = 4 * time.Millisecond
	coalesceOfWatch = 100 * time.Microsecond
	coalesceMost    = 50 * time.Millisecond
	// lookTimeout bounds a look, which many watches may wait for and none can cancel.
	lookTimeout = time.Minute
)

// tail is the end of one feed, read once for all watches that have come so far. (The idea comes from etcd's
// synced and unsynced watchers.) A watch that is behind reads by itself, up to where the tail is, and has
// caught up then.
type tail[T any] struct {
	log   *Log
	feed  Feed[T]
	state state // of the first watch

	watches atomic.Int32

	mu    sync.Mutex
	of    map[*budget.Account]int // guarded by mu; watches by their callers
	last  *look[T]                // guarded by mu
	pages pages[T]                // guarded by mu
}

// look is one read of the tail: the rows between two positions.
type look[T any] struct {
	began time.Time
	from  Position
	// woken is closed by the first commit after the look began.
	woken <-chan struct{}

	done  chan struct{} // closed when the fields below are set; they do not change afterwards
	to    Position
	page  page[T] // the first one, unless it is large
	large bool
	token string // of to
	err   error
}

// tails are the tails that have watches.
type tails struct {
	mu    sync.Mutex
	byKey map[tailKey]counted // guarded by mu
}

type tailKey struct {
	filter, sql, epoch string
	item               reflect.Type
	form               any
}

// counted is a *tail[T] of some T.
type counted interface {
	count(of *budget.Account, n int) int32
	forgetAll()
}

func (t *tail[T]) count(of *budget.Account, n int) int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[of] += n; t.of[of] == 0 {
		delete(t.of, of)
	}
	return t.watches.Add(int32(n)) //nolint:gosec // 1 or -1
}

// only returns the account of the caller that has all watches of the tail; nil when there are several. It is
// called with mu.
func (t *tail[T]) only() *budget.Account {
	for of := range t.of {
		if len(t.of) == 1 {
			return of
		}
	}
	return nil
}

// most is the size of the rows that the tail reads for all its watches. If they are all of one caller, each
// waits for the memory of a large row itself.
func (t *tail[T]) most() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.only() != nil {
		return maxPageBytes
	}
	return anySize
}

// pause returns how long to wait between two looks.
func (t *tail[T]) pause() time.Duration {
	return min(coalesce+time.Duration(t.watches.Load()-1)*coalesceOfWatch, coalesceMost)
}

// join returns the tail of a feed to a watch at some position; the watch calls leave when it ends.
func join[T any](ctx context.Context, l *Log, f Feed[T], st state, at Position) (t *tail[T], leave func()) {
	key := tailKey{f.Filter, f.FirstSQL, st.epoch, reflect.TypeFor[T](), f.Form}
	l.tails.mu.Lock()
	defer l.tails.mu.Unlock()
	c, ok := l.tails.byKey[key]
	if !ok {
		c = newTail(l, f, st, at)
		l.tails.byKey[key] = c
	}
	of := budget.FromContext(ctx)
	c.count(of, 1)
	return c.(*tail[T]), func() {
		l.tails.mu.Lock()
		defer l.tails.mu.Unlock()
		if c.count(of, -1) == 0 {
			c.forgetAll()
			if l.tails.byKey[key] == c {
				delete(l.tails.byKey, key)
			}
		}
	}
}

// newTail begins at a position; its first look is due.
func newTail[T any](l *Log, f Feed[T], st state, at Position) *tail[T] {
	ready := make(chan struct{})
	close(ready)
	return &tail[T]{of: map[*budget.Account]int{}, log: l, feed: f, state: st, last: &look[T]{
		from: at, to: at,
		woken: ready, done: ready,
	}}
}

// newest returns the last complete look.
func (t *tail[T]) newest(ctx context.Context) (*look[T], error) {
	t.mu.Lock()
	k := t.last
	t.mu.Unlock()
	select {
	case <-k.done:
		return k, k.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// advance reads again, unless another watch has since the given look.
func (t *tail[T]) advance(ctx context.Context, since *look[T]) {
	t.mu.Lock()
	if t.last != since {
		t.mu.Unlock()
		return
	}
	k := &look[T]{began: time.Now(), from: since.to, done: make(chan struct{})}
	k.woken = t.log.cfg.Wake.Wait(t.feed.Topic) // before the read, so that a commit after it wakes the watch
	t.last = k
	t.pages.forget(&t.log.kept, since.to.Text)
	t.mu.Unlock()

	k.err = errLook
	defer func() {
		if k.err != nil {
			t.log.tails.drop(t)
		}
		close(k.done)
	}()
	// Not cancelled with the watch that was first: the others wait for it.
	ctx, cancel := context.WithTimeout(postgres.InControl(context.WithoutCancel(ctx)), lookTimeout)
	defer cancel()
	p, err := read(ctx, t.log, t.feed, t.state.epoch, window{
		from: k.from, upTo: everyKey, limit: t.feed.Chunk,
		most: t.most(),
	})
	if err == nil {
		k.to, err = parsePosition(p.present.at)
	}
	if err == nil && k.from.after(k.to) {
		err = errBack
	}
	if err == nil {
		k.token = t.log.token(t.state, k.to, t.feed.Filter)
		if !p.isOwn(&t.log.own, k.to) {
			err = t.log.flush(ctx, p.present)
		}
	}
	if k.large = p.bytes > keptBytes || p.needs > 0; k.large && err == nil {
		if t.most() == anySize {
			t.keep(k, p)
		}
		p = page[T]{}
	}
	k.page, k.err = p, err
}

// keptBytes is the size of a page that a tail keeps as long as it is the newest, for each of the watches that
// it may have.
const keptBytes = 16 << 10

var (
	errLook = errors.New("a read of the feed did not complete")
	// errBack: positions of one timeline go back only over a crash that lost log that was not on disk.
	errBack = fmt.Errorf("%w: the database crashed and lost transactions that it had begun", ErrReset)
)

// drop removes a tail that has failed: no watch joins it, and its watches end.
func (ts *tails) drop(t counted) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for key, c := range ts.byKey {
		if c == t {
			delete(ts.byKey, key)
		}
	}
}

// deliver brings a watch from its position to the end of a look. The last event has the token; without events
// nothing is delivered.
func (t *tail[T]) deliver(ctx context.Context, at Position, k *look[T], deliver deliverer[T]) error {
	p, n := page[T]{full: true}, 0
	if k.from.Text == at.Text && !k.large {
		p, n = k.page, len(k.page.items)
		if n == 0 {
			return nil
		}
		if err := t.hand(k, p, deliver); err != nil || !p.full {
			return err
		}
	}
	size := sizer{most: t.feed.Chunk}
	for p.full {
		err := inMemory(ctx, func(m *budget.Hold) (err error) {
			w := window{from: at, until: k.to.Text, after: p.last, upTo: everyKey, limit: size.next()}
			p, err = charged(ctx, func(most int64) (page[T], error) {
				w.most = most
				return t.read(ctx, w)
			})
			if err != nil {
				return err
			}
			defer p.forget()
			m.Set(min(p.bytes, maxPageBytes))
			size.saw(p.full, len(p.items))
			if n += len(p.items); n == 0 {
				p.full = false
				return nil
			}
			return t.hand(k, p, deliver)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hand delivers a page, with the token of the look when it is the last one.
func (t *tail[T]) hand(k *look[T], p page[T], deliver deliverer[T]) error {
	if p.full {
		return deliver(schema.Event[T]{Items: p.items})
	}
	return deliver(schema.Event[T]{Items: p.items, Token: k.token})
}
