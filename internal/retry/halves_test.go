package retry_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/retry"
)

var errWhole = errors.New("the whole batch")

func TestAFailingElementKeepsNoOtherBack_I20(t *testing.T) {
	t.Parallel()
	ids := []int64{1, 2, 3, 4, 5, 6, 7}
	var done, failed []int64
	h := retry.Halves[int64]{
		Run: func(part []int64) error {
			if slices.Contains(part, 3) || slices.Contains(part, 6) {
				return errCut
			}
			done = append(done, part...)
			return nil
		},
		Whole:  func(err error) bool { return errors.Is(err, errWhole) },
		Failed: func(id int64, err error) error { failed = append(failed, id); return nil },
	}
	left, err := h.Do(ids)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Equal(t, []int64{3, 6}, failed)
	require.Equal(t, []int64{1, 2, 4, 5, 7}, done)

	done, failed = nil, nil
	h.Stop = func() bool { return len(failed) > 0 }
	left, err = h.Do(ids)
	require.NoError(t, err)
	require.Equal(t, []int64{4, 5, 6, 7}, left[len(left)-4:], "no half is begun after the end")
	require.ElementsMatch(t, ids, slices.Concat(done, failed, left))
}

func TestAnErrorOfTheWholeBatchEndsIt(t *testing.T) {
	t.Parallel()
	runs := 0
	h := retry.Halves[int64]{
		Run:   func([]int64) error { runs++; return errWhole },
		Whole: func(err error) bool { return errors.Is(err, errWhole) },
	}
	_, err := h.Do([]int64{1, 2, 3})
	require.ErrorIs(t, err, errWhole)
	require.Equal(t, 1, runs)
	h.Whole = func(error) bool { return false }
	_, err = h.Do(nil)
	require.ErrorIs(t, err, errWhole, "nothing can be halved")
	h.Failed = func(int64, error) error { return errCut }
	_, err = h.Do([]int64{1, 2, 3})
	require.ErrorIs(t, err, errCut)
	require.Equal(t, 4, runs, "the first element ended it")
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := retry.Backoff{First: time.Hour, Max: time.Hour}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.Wait(ctx), context.Canceled)
	b = retry.Backoff{First: time.Millisecond}
	require.NoError(t, b.Wait(t.Context()))
}
