package retry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/test/wait"
)

func TestARingReachesEachListener(t *testing.T) {
	t.Parallel()
	var b retry.Bell[string]
	b.Ring("nobody listens")
	ctx, cancel := context.WithCancel(t.Context())
	first, second := b.Listen(t.Context()), b.Listen(ctx)
	b.Ring("a")
	b.Ring("b")
	for _, heard := range []<-chan string{first, second} {
		require.Equal(t, "a", <-heard)
		require.Equal(t, "b", <-heard)
	}
	cancel()
	require.Eventually(t, func() bool {
		b.Ring("c")
		return <-first == "c" && len(second) < 2
	}, wait.Limit, time.Millisecond)
}

// A listener that is busy misses no ring: it is told that everything is meant.
func TestABusyListenerIsToldOfEverything(t *testing.T) {
	t.Parallel()
	var b retry.Bell[int]
	heard := b.Listen(t.Context())
	for k := 1; k <= 100; k++ {
		b.Ring(k)
	}
	var told []int
	for len(heard) > 0 {
		told = append(told, <-heard)
	}
	require.Contains(t, told, 0)
}

// A loop that waits by a back-off goes on at once, and its back-off begins anew.
func TestAWaitEndsAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	now, tries := make(chan struct{}, 1), 0
	var repeated []bool
	retry.Forever(ctx, retry.Backoff{First: time.Hour, Max: time.Hour, AtOnce: now}, func(context.Context) error {
		if tries++; tries == 3 {
			cancel()
		}
		now <- struct{}{}
		return errCut
	}, func(_ error, _ time.Duration, again bool) { repeated = append(repeated, again) })
	require.Equal(t, 3, tries)
	require.Equal(t, []bool{false, false}, repeated)
}
