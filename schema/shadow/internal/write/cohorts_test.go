package write

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
	"github.com/db-controller/db-controller/schema"
)

// writers refer to one deployment, and record when each of them begins.
type writers struct {
	cohorts cohorts
	began   time.Time
	all     sync.WaitGroup

	mu sync.Mutex
	at map[string]time.Duration // since began; guarded by mu
}

var elsewhere = schema.DeploymentID{Service: "a.example.com", Region: "eu"}

func newWriters() *writers {
	return &writers{
		cohorts: cohorts{at: map[schema.DeploymentID]*gather.Queue[*member]{}}, began: time.Now(),
		at: map[string]time.Duration{},
	}
}

// write begins a write that lasts for some time.
func (w *writers) write(ctx context.Context, name string, lasts time.Duration, outcome error) (ended chan error) {
	ended = make(chan error, 1)
	w.all.Go(func() {
		ended <- w.cohorts.join(ctx, elsewhere, func(ctx context.Context) error {
			w.mu.Lock()
			w.at[name] = time.Since(w.began)
			w.mu.Unlock()
			select {
			case <-time.After(lasts):
				return outcome
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	synctest.Wait()
	return ended
}

func (w *writers) beganAt(name string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, began := w.at[name]; began {
		return at
	}
	return -1
}

// The first writes do not wait. Of the writes beyond them, one is a cohort, and the writes that come
// meanwhile are the next one.
func TestWritesThatComeTogetherEstablishTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriters()
		for i := range fewWrites {
			w.write(t.Context(), fmt.Sprint("few", i), time.Second, nil)
			require.Zero(t, w.beganAt(fmt.Sprint("few", i)))
		}
		w.write(t.Context(), "first", 4*time.Millisecond, nil)
		require.Zero(t, w.beganAt("first"))
		failure := errors.New("refused")
		second, third := w.write(t.Context(), "second", time.Millisecond, nil),
			w.write(t.Context(), "third", time.Millisecond, failure)
		require.Negative(t, w.beganAt("second"))
		require.NoError(t, <-second)
		require.ErrorIs(t, <-third, failure, "each has its own outcome")
		require.Equal(t, 4*time.Millisecond, w.beganAt("second"))
		require.Equal(t, 4*time.Millisecond, w.beganAt("third"))
		w.all.Wait()
		w.cohorts.wait()
		require.Zero(t, w.cohorts.underWay.Load())
	})
}

// Writes that wait for a lock, or for a deployment that is far away, hold up others no longer than the pace.
func TestAWriteThatWaitsHoldsUpNoCohort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriters()
		for i := range fewWrites {
			w.write(t.Context(), fmt.Sprint("few", i), time.Minute, nil)
		}
		for i := range 20 * cohortsBeside {
			began := time.Since(w.began)
			w.write(t.Context(), fmt.Sprint("stuck", i), time.Minute, nil)
			time.Sleep(cohortPace)
			synctest.Wait()
			require.LessOrEqual(t, w.beganAt(fmt.Sprint("stuck", i)), began+cohortPace)
			require.GreaterOrEqual(t, w.beganAt(fmt.Sprint("stuck", i)), began)
		}
		w.all.Wait()
		w.cohorts.wait()
	})
}

// A write whose deadline passes before its cohort begins has not begun; one whose deadline passes afterwards
// has an outcome.
func TestADeadlineEndsTheWaitForACohort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriters()
		for i := range fewWrites + 1 {
			w.write(t.Context(), fmt.Sprint("before", i), 8*time.Millisecond, nil)
		}
		soon, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, <-w.write(soon, "late", 0, nil), context.DeadlineExceeded)
		require.Negative(t, w.beganAt("late"))
		later, cancelLater := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancelLater()
		require.ErrorIs(t, <-w.write(later, "during", time.Second, nil), context.DeadlineExceeded)
		require.Positive(t, w.beganAt("during"))
		w.all.Wait()

		for i := range fewWrites + 1 {
			w.write(t.Context(), fmt.Sprint("again", i), 8*time.Millisecond, nil)
		}
		hastyUntil, cancelHasty := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancelHasty()
		hasty, patient := w.write(hastyUntil, "hasty", time.Second, nil),
			w.write(t.Context(), "patient", 100*time.Millisecond, nil)
		require.ErrorIs(t, <-hasty, context.DeadlineExceeded)
		require.NoError(t, <-patient, "its neighbour's deadline is not its own")
		require.Equal(t, w.beganAt("hasty"), w.beganAt("patient"), "in one cohort")
		w.all.Wait()
		w.cohorts.wait()
	})
}

// A cohort counts as ended after some time, for the sake of the writes behind it. A write that goes on has
// its own outcome.
func TestAWriteThatOutlastsItsCohortHasItsOwnOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriters()
		for i := range fewWrites {
			w.write(t.Context(), fmt.Sprint("few", i), time.Minute, nil)
		}
		refused := errors.New("refused")
		w.write(t.Context(), "first", time.Millisecond, nil)
		long, short := w.write(t.Context(), "long", 2*cohortLasts, refused),
			w.write(t.Context(), "short", time.Millisecond, nil)
		require.NoError(t, <-short)
		require.ErrorIs(t, <-long, refused)
		require.Equal(t, w.beganAt("short"), w.beganAt("long"), "in one cohort")
		w.all.Wait()
		w.cohorts.wait()
	})
}
