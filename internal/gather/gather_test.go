package gather_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/gather"
)

// batches records the batches of a queue, and lets the test end each of them.
type batches struct {
	begun chan []string
	end   chan []error
}

func (b *batches) run(batch []string) []error {
	b.begun <- batch
	return <-b.end
}

func newQueue(cfg gather.Config[string]) (*gather.Queue[string], *batches) {
	b := &batches{begun: make(chan []string, 10), end: make(chan []error)}
	cfg.Run, cfg.Waiting = b.run, 3
	return gather.New(cfg), b
}

// occupied returns a queue in which a request runs by itself until end, so that the requests that arrive
// meanwhile are a batch.
func occupied(t *testing.T, cfg gather.Config[string]) (q *gather.Queue[string], b *batches, end func()) {
	q, b = newQueue(cfg)
	var g sync.WaitGroup
	hold := make(chan struct{})
	g.Go(func() { require.NoError(t, q.Do(t.Context(), nil, "alone", func() error { <-hold; return nil })) })
	synctest.Wait()
	return q, b, func() { close(hold); g.Wait(); synctest.Wait() }
}

var errNever = errors.New("it ran alone")

func never() error { return errNever }

// One request runs at once and by itself; the requests that arrive meanwhile are a batch, and the requests
// that arrive during the batch are the next one.
func TestWhatComesDuringABatchIsTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b, end := occupied(t, gather.Config[string]{Most: 10})
		var g sync.WaitGroup
		do := func(name string) {
			g.Go(func() { require.NoError(t, q.Do(t.Context(), nil, name, never)) })
			synctest.Wait()
		}
		do("first")
		do("second")
		require.Empty(t, b.begun, "a request is under way")
		end()
		require.Equal(t, []string{"first", "second"}, <-b.begun)
		do("third")
		do("fourth")
		require.Empty(t, b.begun, "one batch at a time")
		b.end <- make([]error, 2)
		require.Equal(t, []string{"third", "fourth"}, <-b.begun)
		b.end <- make([]error, 2)
		g.Wait()
		q.Wait()
		require.NoError(t, q.Do(t.Context(), nil, "idle again", func() error { return nil }))
	})
}

// A second batch begins beside a running one when it is large, and as large as that.
func TestASecondBatchIsAsLargeAsTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b, end := occupied(t, gather.Config[string]{Most: 20, Beside: 2})
		var g sync.WaitGroup
		do := func(n int) {
			for range n {
				g.Go(func() { require.NoError(t, q.Do(t.Context(), new(int), "one", never)) })
				synctest.Wait()
			}
		}
		do(1)
		end()
		require.Len(t, <-b.begun, 1)
		do(7)
		require.Empty(t, b.begun, "a small one waits")
		do(1)
		require.Len(t, <-b.begun, 8)
		b.end <- make([]error, 1)
		do(1)
		require.Empty(t, b.begun, "fewer than run")
		do(7)
		require.Len(t, <-b.begun, 8)
		do(20)
		require.Empty(t, b.begun, "two at most")
		b.end <- make([]error, 8)
		require.Len(t, <-b.begun, 20)
		b.end <- make([]error, 8)
		b.end <- make([]error, 20)
		g.Wait()
		q.Wait()
	})
}

// Callers take turns: one with many requests delays another one by its share of a batch.
func TestCallersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b, end := occupied(t, gather.Config[string]{Most: 2})
		var g sync.WaitGroup
		do := func(who, name string) {
			g.Go(func() { require.NoError(t, q.Do(t.Context(), who, name, never)) })
			synctest.Wait()
		}
		do("flood", "0")
		end()
		for i := range 3 {
			do("flood", fmt.Sprint(i+1))
		}
		require.ErrorIs(t, q.Do(t.Context(), "flood", "too many", never), gather.ErrTooMany)
		do("other", "single")
		require.Equal(t, []string{"0"}, <-b.begun)
		b.end <- make([]error, 1)
		require.Equal(t, []string{"1", "single"}, <-b.begun)
		b.end <- make([]error, 2)
		require.Equal(t, []string{"2", "3"}, <-b.begun)
		b.end <- make([]error, 2)
		g.Wait()
	})
}

// Each request has its own outcome; a request that is left out runs alone.
func TestEachRequestHasItsOwnOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b, end := occupied(t, gather.Config[string]{Most: 10})
		refused := errors.New("refused")
		var g sync.WaitGroup
		expect := func(name string, want error) {
			g.Go(func() { require.ErrorIs(t, q.Do(t.Context(), nil, name, never), want) })
			synctest.Wait()
		}
		expect("before", nil)
		end()
		expect("good", nil)
		expect("bad", refused)
		expect("left out", errNever)
		<-b.begun
		b.end <- make([]error, 1)
		require.Equal(t, []string{"good", "bad", "left out"}, <-b.begun)
		b.end <- []error{nil, refused, gather.ErrAlone}
		g.Wait()
	})
}

// A request that waits ends with its context, without effect; a request that a batch has taken may take
// effect.
func TestARequestEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b, end := occupied(t, gather.Config[string]{Most: 10})
		ctx, cancel := context.WithCancel(t.Context())
		var g sync.WaitGroup
		g.Go(func() { require.ErrorIs(t, q.Do(ctx, nil, "taken", never), gather.ErrLeft) })
		synctest.Wait()
		end()
		g.Go(func() { require.ErrorIs(t, q.Do(ctx, nil, "waiting", never), gather.ErrWaiting) })
		synctest.Wait()
		var stays sync.WaitGroup
		stays.Go(func() { require.NoError(t, q.Do(t.Context(), nil, "stays", never)) })
		synctest.Wait()
		cancel()
		g.Wait()
		require.Equal(t, []string{"taken"}, <-b.begun)
		b.end <- make([]error, 1)
		require.Equal(t, []string{"stays"}, <-b.begun, "without the one that was answered")
		b.end <- make([]error, 1)
		stays.Wait()
		q.Wait()
		require.Empty(t, b.begun)
	})
}

// Several requests of one caller are one batch, beside others, and each has its own outcome.
func TestRequestsOfOneCallerAreAddedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b, end := occupied(t, gather.Config[string]{Most: 10})
		var g sync.WaitGroup
		refused := errors.New("refused")
		g.Go(func() {
			require.Equal(t, []error{nil, refused, gather.ErrAlone, gather.ErrTooMany},
				q.DoAll("caller", []string{"a", "b", "c", "d"}))
		})
		synctest.Wait()
		end()
		require.Equal(t, []string{"a", "b", "c"}, <-b.begun)
		b.end <- []error{nil, refused, gather.ErrAlone}
		g.Wait()
		require.Empty(t, q.DoAll("caller", nil))
	})
}

// A request or a batch that takes long delays the next batch by the pace, up to so many batches.
func TestBatchesBeginAtTheirPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b, end := occupied(t, gather.Config[string]{Most: 10, Pace: time.Second, Beside: 2})
		began := time.Now()
		var g sync.WaitGroup
		do := func(name string) {
			g.Go(func() { require.NoError(t, q.Do(t.Context(), nil, name, never)) })
			synctest.Wait()
		}
		do("first")
		do("second")
		require.Empty(t, b.begun)
		require.Equal(t, []string{"first", "second"}, <-b.begun,
			"nobody waits for the request that runs by itself any more")
		require.Equal(t, time.Second, time.Since(began))
		end()
		do("third")
		require.Empty(t, b.begun)
		require.Equal(t, []string{"third"}, <-b.begun)
		require.Equal(t, 2*time.Second, time.Since(began))
		do("fourth")
		time.Sleep(time.Minute)
		require.Empty(t, b.begun, "two at most")
		b.end <- make([]error, 2)
		synctest.Wait()
		require.Empty(t, b.begun, "a batch beside another one begins at the pace")
		require.Equal(t, []string{"fourth"}, <-b.begun)
		require.Equal(t, time.Second*3+time.Minute, time.Since(began))
		b.end <- make([]error, 1)
		b.end <- make([]error, 1)
		g.Wait()
		q.Wait()
	})
}

// Requests that are made together are one batch: the first of them waits for the others, and a millisecond at
// most.
func TestRequestsInCompanyAreOneBatch(t *testing.T) {
	for name, missing := range map[string]int{"all come": 0, "one does not come": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, b := newQueue(gather.Config[string]{Most: 10})
				began := time.Now()
				var g sync.WaitGroup
				for i := range 3 {
					ctx := gather.WithCompany(t.Context(), 3+missing)
					g.Go(func() { require.NoError(t, q.Do(ctx, nil, fmt.Sprint(i), never)) })
				}
				require.ElementsMatch(t, []string{"0", "1", "2"}, <-b.begun)
				require.Equal(t, time.Duration(missing)*time.Millisecond, time.Since(began))
				b.end <- make([]error, 3)
				g.Wait()
				synctest.Wait() // the batch has ended for the queue too
				require.NoError(t, q.Do(t.Context(), nil, "later", func() error {
					return nil
				}), "one that comes without company waits for nobody")
			})
		})
	}
}
