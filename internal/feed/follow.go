package feed

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/db-controller/db-controller/schema"
)

const (
	// bookmarkInterval keeps an idle stream alive, and its token young.
	bookmarkInterval = 5 * time.Second
	// stuckAtEnd is how long a watch that has to end waits for a call of deliver that does not return.
	stuckAtEnd = time.Second
)

// Follow delivers the rows and their changes meanwhile, one end of snapshot, at which that is the state at
// one cut, and then everything after it: ordered, each once, without gap; or, with a token, everything after
// the token's position. It returns when deliver fails, ctx ends, or the database does; a token that cannot be
// resumed is ErrReset. A reader that is slow is served from the tables: it costs a chunk of memory and delays
// no other reader. Items are shared with other watches: deliver must not change them.
//
// deliver is called in its own goroutine, one call at a time. When a call takes too long Follow returns
// ErrSlow without it, so that the caller ends the stream that it sends on; a watch that ends otherwise first
// finishes the delivery in progress, unless that is stuck.
func Follow[T any](ctx context.Context, l *Log, f Feed[T], token string, deliver func(schema.Event[T]) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	slow := make(chan struct{})
	patience := time.AfterFunc(time.Hour, sync.OnceFunc(func() { close(slow) }))
	patience.Stop()
	done := make(chan error, 1) // one place: the receiver may have returned
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("watch of %s panicked: %v\n%s", f.Filter, p, debug.Stack())
			}
		}()
		done <- follow(ctx, l, f, token, func(e schema.Event[T]) error {
			patience.Reset(l.cfg.SlowTimeout)
			defer patience.Stop()
			return deliver(e)
		})
	}()
	select {
	case err := <-done:
		return err
	case <-slow:
		return ErrSlow
	case <-ctx.Done():
		select {
		case err := <-done:
			return err
		case <-time.After(stuckAtEnd):
			return ctx.Err()
		}
	}
}

func follow[T any](ctx context.Context, l *Log, f Feed[T], token string, deliver deliverer[T]) error {
	st, at, err := begin(ctx, l, f, token, deliver)
	if err != nil {
		return err
	}
	t, leave := join(ctx, l, f, st, at)
	defer leave()
	bookmark := time.NewTimer(l.untilBookmark())
	defer bookmark.Stop()
	poll := time.NewTimer(l.due())
	defer poll.Stop()
	for reached := time.Now(); ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k, err := t.newest(ctx)
		if err != nil {
			return err
		}
		switch {
		case k.to.Text == at.Text: // nothing newer yet
		case at.after(k.to) && k.began.After(reached):
			return errBack
		case at.after(k.to): // the watch is newer than the last read of the tail
			t.advance(ctx, k)
			continue
		default:
			if err := t.deliver(ctx, at, k, deliver); err != nil {
				return err
			}
			at, reached = k.to, time.Now()
			continue // another watch may have read again meanwhile
		}
		poll.Reset(l.due())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.woken:
			// At once after a pause; under load one read returns the rows of several commits.
			if err := sleep(ctx, t.pause()-time.Since(k.began)); err != nil {
				return err
			}
			t.advance(ctx, k)
		case <-poll.C:
			l.beat(ctx)
		case <-bookmark.C:
			bookmark.Reset(l.untilBookmark())
			young := at
			if rested, ok := l.pulse.rested(f.Topic, st.epoch, at); ok {
				young = rested
			}
			if err := deliver(schema.Event[T]{Token: l.token(st, young, f.Filter)}); err != nil {
				return err
			}
		}
	}
}

// untilBookmark returns the time until the next bookmark, which is the same for all watches: an idle process
// is woken once for all.
func (l *Log) untilBookmark() time.Duration {
	return bookmarkInterval - time.Since(l.began)%bookmarkInterval
}

// begin delivers the snapshot and its end, or reads the token. It returns the state that tokens are made
// from.
func begin[T any](ctx context.Context, l *Log, f Feed[T], token string,
	deliver deliverer[T],
) (st state, at Position, err error) {
	if token == "" {
		if st, at, err = snapshot(ctx, l, f, deliver); err != nil {
			return st, at, err
		}
		return st, at, deliver(schema.Event[T]{EndOfSnapshot: true, Token: l.token(st, at, f.Filter)})
	}
	if st, err = l.state(ctx, l.cfg.Pool); err != nil {
		return st, at, err
	}
	if at, err = l.open(ctx, st, token, f.Filter); err != nil {
		return st, at, err
	}
	if st.compactedBeyond(at) {
		return st, at, errCompacted
	}
	return st, at, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
