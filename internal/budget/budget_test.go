package budget

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func acquire(t *testing.T, a *Account, pool Pool, bytes int64) *Hold {
	t.Helper()
	h := a.ask(pool, bytes)
	select {
	case <-h.granted:
	default:
		t.Fatalf("%d bytes are not free", bytes)
	}
	return h
}

func waits(t *testing.T, h *Hold) {
	t.Helper()
	select {
	case <-h.granted:
		t.Fatal("it does not wait")
	default:
	}
}

// A caller that has its share waits, and no other caller does.
func TestOneCallerHasItsShareAtMost_I20(t *testing.T) {
	b := New(DefaultTotal)
	hostile, other := b.Open("hostile"), b.Open("other")
	var held []*Hold
	for range 6 {
		held = append(held, acquire(t, hostile, Working, 3<<20))
	}
	more := hostile.ask(Working, 1)
	waits(t, more)
	acquire(t, other, Working, 4<<20).Release()
	acquire(t, hostile, Watching, 4<<20).Release()
	held[0].Set(2 << 20)
	<-more.granted
	more.Release()
	all := hostile.ask(Working, 1<<40)
	waits(t, all)
	for _, h := range held {
		h.Release()
	}
	<-all.granted
	all.Release()
	hostile.Close()
	other.Close()
	require.Empty(t, b.accounts, "callers without memory are forgotten")
	require.Equal(t, New(DefaultTotal).free, b.free)
}

// All together have the total; waiting callers are served in turn, also beside one with most requests.
func TestCallersShareTheTotalInTurn_I20(t *testing.T) {
	b := New(0)
	hostile, other := b.Open("hostile"), b.Open("other")
	first := acquire(t, hostile, Working, 18<<20)
	var many []*Hold
	for range 100 {
		many = append(many, hostile.ask(Working, 18<<20))
	}
	one := other.ask(Working, 18<<20)
	first.Release()
	<-many[0].granted
	waits(t, one)
	many[0].Release()
	<-one.granted
	waits(t, many[1])
	one.Release()
	<-many[1].granted
}

// Calls that a deployment forwards for one person take at most half of the deployment's memory.
func TestAPersonHasHalfOfAForwarder_I20(t *testing.T) {
	b := New(DefaultTotal)
	ann, bob, carl := b.Open("ann", "west"), b.Open("bob", "west"), b.Open("carl", "west")
	acquire(t, ann, Working, 9<<20)
	waits(t, ann.ask(Working, 1))
	h := acquire(t, bob, Working, 9<<20)
	c := carl.ask(Working, 1)
	waits(t, c)
	h.Release()
	<-c.granted
}

// A call that ends its wait takes no memory.
func TestAWaitEndsWithItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(0)
		a := b.Open("a")
		h := acquire(t, a, Working, 18<<20)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := a.Acquire(ctx, Working, 1)
			done <- err
		}()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-done, ErrExhausted)
		h.Release()
		acquire(t, a, Working, 18<<20).Release()
		var none *Account
		h, err := none.Acquire(ctx, Working, 1<<40)
		require.NoError(t, err)
		h.Set(1)
		h.Release()
	})
}
