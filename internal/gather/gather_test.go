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

func newQueue(alone, most int) (*gather.Queue[string], *batches) {
	b := &batches{begun: make(chan []string, 10), end: make(chan []error)}
	return gather.New(gather.Config[string]{Run: b.run, Alone: alone, Most: most, Waiting: 3}), b
}

var errNever = errors.New("it ran alone")

func never() error { return errNever }

// Few requests run at once and by themselves; the others are one batch, and what comes meanwhile is the next one.
func TestWhatComesDuringABatchIsTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b := newQueue(2, 10)
		var g sync.WaitGroup
		hold := make(chan struct{})
		for i := range 2 {
			g.Go(func() {
				require.NoError(t, q.Do(t.Context(), nil, fmt.Sprint("alone", i), func() error { <-hold; return nil }))
			})
		}
		synctest.Wait()
		do := func(name string) {
			g.Go(func() { require.NoError(t, q.Do(t.Context(), nil, name, never)) })
			synctest.Wait()
		}
		do("first")
		require.Equal(t, []string{"first"}, <-b.begun)
		do("second")
		do("third")
		require.Empty(t, b.begun, "one batch at a time")
		b.end <- make([]error, 1)
		require.Equal(t, []string{"second", "third"}, <-b.begun)
		b.end <- make([]error, 2)
		close(hold)
		g.Wait()
		q.Wait()
		require.NoError(t, q.Do(t.Context(), nil, "idle again", func() error { return nil }))
	})
}

// Two batches run at once, and what comes meanwhile is the next one of the one that ends first.
func TestTwoBatchesRunAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &batches{begun: make(chan []string, 10), end: make(chan []error)}
		q := gather.New(gather.Config[string]{Run: b.run, Most: 10, Batches: 2, Waiting: 3})
		var g sync.WaitGroup
		for _, name := range []string{"first", "second", "third", "fourth"} {
			g.Go(func() { require.NoError(t, q.Do(t.Context(), nil, name, never)) })
			synctest.Wait()
		}
		require.Equal(t, []string{"first"}, <-b.begun)
		require.Equal(t, []string{"second"}, <-b.begun)
		require.Empty(t, b.begun)
		b.end <- make([]error, 1)
		require.Equal(t, []string{"third", "fourth"}, <-b.begun)
		b.end <- make([]error, 1)
		b.end <- make([]error, 2)
		g.Wait()
		q.Wait()
	})
}

// Callers take turns: one with many requests delays another one by its share of a batch.
func TestCallersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b := newQueue(0, 2)
		var g sync.WaitGroup
		do := func(who, name string) {
			g.Go(func() { require.NoError(t, q.Do(t.Context(), who, name, never)) })
			synctest.Wait()
		}
		do("flood", "0")
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

// Each request has its own outcome; one that is left out runs alone.
func TestEachRequestHasItsOwnOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b := newQueue(0, 10)
		refused := errors.New("refused")
		var g sync.WaitGroup
		expect := func(name string, want error) {
			g.Go(func() { require.ErrorIs(t, q.Do(t.Context(), nil, name, never), want) })
			synctest.Wait()
		}
		expect("before", nil)
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

// A request that waits ends with its context, without effect; one that a batch has taken may take effect.
func TestARequestEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b := newQueue(0, 10)
		ctx, cancel := context.WithCancel(t.Context())
		var g sync.WaitGroup
		g.Go(func() { require.ErrorIs(t, q.Do(ctx, nil, "taken", never), gather.ErrLeft) })
		synctest.Wait()
		g.Go(func() { require.ErrorIs(t, q.Do(ctx, nil, "waiting", never), gather.ErrWaiting) })
		synctest.Wait()
		cancel()
		g.Wait()
		require.Equal(t, []string{"taken"}, <-b.begun)
		b.end <- make([]error, 1)
		q.Wait()
		require.Empty(t, b.begun)
	})
}

// Several requests of one caller are one batch, beside others, and each has its own outcome.
func TestRequestsOfOneCallerAreAddedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b := newQueue(4, 10)
		var g sync.WaitGroup
		refused := errors.New("refused")
		g.Go(func() {
			require.Equal(t, []error{nil, refused, gather.ErrAlone, gather.ErrTooMany}, q.DoAll("caller", []string{"a", "b", "c", "d"}))
		})
		synctest.Wait()
		require.Equal(t, []string{"a", "b", "c"}, <-b.begun)
		b.end <- []error{nil, refused, gather.ErrAlone}
		g.Wait()
		require.Empty(t, q.DoAll("caller", nil))
	})
}

// A batch that takes long delays the next one by the pace, up to so many; the further ones end with what waited for them.
func TestBatchesBeginAtTheirPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &batches{begun: make(chan []string, 10), end: make(chan []error)}
		q := gather.New(gather.Config[string]{Run: b.run, Most: 10, Waiting: 3, Pace: time.Second, Beside: 2})
		began := time.Now()
		var g sync.WaitGroup
		do := func(name string) {
			g.Go(func() { require.NoError(t, q.Do(t.Context(), nil, name, never)) })
			synctest.Wait()
		}
		do("first")
		do("second")
		do("third")
		require.Equal(t, []string{"first"}, <-b.begun)
		require.Empty(t, b.begun)
		require.Equal(t, []string{"second", "third"}, <-b.begun)
		require.Equal(t, time.Second, time.Since(began))
		do("fourth")
		time.Sleep(time.Minute)
		require.Empty(t, b.begun, "two at most")
		b.end <- make([]error, 1)
		synctest.Wait()
		require.Empty(t, b.begun, "what is beside the other one ends")
		require.Equal(t, []string{"fourth"}, <-b.begun)
		b.end <- make([]error, 2)
		b.end <- make([]error, 1)
		g.Wait()
		q.Wait()
	})
}
