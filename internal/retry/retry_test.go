package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/retry"
)

func TestPausesDoubleUpToTheirMaximumWithJitter(t *testing.T) {
	t.Parallel()
	for _, b := range []retry.Backoff{{}, {First: 100 * time.Millisecond, Max: 5 * time.Second}} {
		first, longest := b.First, b.Max
		if first == 0 {
			first, longest = 50*time.Millisecond, 10*time.Second
		}
		other, differ := b, false
		require.True(t, b.Fresh())
		for nominal := first; nominal < 4*longest; nominal *= 2 {
			pause := b.Next()
			require.LessOrEqual(t, pause, min(nominal, longest))
			require.GreaterOrEqual(t, pause, min(nominal, longest)/2)
			differ = differ || other.Next() != pause
			require.False(t, b.Fresh())
		}
		require.True(t, differ, "processes that failed together do not come back together")
		b.Reset()
		require.True(t, b.Fresh())
		require.LessOrEqual(t, b.Next(), first)
	}
}

var errCut = errors.New("cut")

func TestAStreamThatIsHeardGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := retry.Watch(t.Context(), func(ctx context.Context, heard func()) error {
			for range 20 {
				time.Sleep(retry.Silence - time.Second)
				heard()
			}
			return errors.Join(errCut, ctx.Err())
		})
		require.ErrorIs(t, err, errCut)
		require.NotErrorIs(t, err, retry.ErrSilent)
		require.NotErrorIs(t, err, context.Canceled)
		require.Equal(t, 20*(retry.Silence-time.Second), time.Since(began))
	})
}

func TestASilentStreamIsEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := retry.Watch(t.Context(), func(ctx context.Context, heard func()) error {
			heard()
			<-ctx.Done()
			return errCut
		})
		require.ErrorIs(t, err, retry.ErrSilent)
		require.ErrorIs(t, err, errCut)
		require.Equal(t, retry.Silence, time.Since(began))
	})
}

func TestAStreamEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	err := retry.Watch(ctx, func(ctx context.Context, _ func()) error {
		cancel()
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, retry.ErrSilent)
}

// failure is a call of Forever's failed function.
type failure struct {
	err      error
	repeated bool
}

func TestATryIsRepeatedUntilTheContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var failures []failure
		tries, began := 0, time.Now()
		retry.Forever(ctx, retry.Backoff{}, func(context.Context) error {
			switch tries++; tries {
			case 3:
				time.Sleep(retry.Stable + time.Second)
			case 5:
				cancel()
			}
			return errCut
		}, func(err error, pause time.Duration, repeated bool) {
			require.LessOrEqual(t, pause, 100*time.Millisecond)
			failures = append(failures, failure{err, repeated})
		})
		require.Equal(t, []failure{{errCut, false}, {errCut, true}, {errCut, false}, {errCut, true}}, failures,
			"the third try was stable")
		require.Equal(t, 5, tries)
		require.Less(t, time.Since(began), retry.Stable+2*time.Second)
	})
}

func TestAPauseEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		retry.Forever(ctx, retry.Backoff{First: time.Hour, Max: time.Hour}, func(context.Context) error {
			return errCut
		},
			func(error, time.Duration, bool) { cancel() })
		require.Equal(t, began, time.Now())
	})
}
