package shadow_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// A deletion counts the resources that it has marked and removed in each deployment, and its end once.
func TestADeletionCountsWhatItDoesInEachDeployment(t *testing.T) {
	t.Parallel()
	var ended atomic.Int32
	b := newBox(t, func(cfg *shadow.Config) {
		cfg.DeletionEnded = func(took time.Duration) {
			if took >= 0 {
				ended.Add(1)
			}
		}
	})
	b.MustPut(target, nil)
	b.MustPut(target+"/children/c", nil)
	b.MustPut(holder, body{"cascade": target})
	b.MustPut(holder2, body{"asyncCascade": target})
	b.MustPut("//"+bEast+"/holders/near", body{"near": body{"cascade": holder}})
	b.MustPut("//"+bWest+"/holders/unset", body{"unset": target})
	b.Settle()

	result, err := b.Stores[b.ID(aWest)].Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t"})
	require.NoError(t, err)
	require.NotEqual(t, uuid.Nil, result.Deletion)
	require.Equal(t, [3]int64{2, 1, 0}, counts(t, b.Stores[b.ID(aWest)], result.Deletion),
		"the child goes at once, the target waits for holders elsewhere")
	running, err := b.Stores[b.ID(aWest)].Progress.RunningDeletions(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, running, 1)
	require.Equal(t, target, running[0].Root)
	require.Zero(t, ended.Load())

	b.Settle()
	require.Equal(t, [3]int64{2, 2, 0}, counts(t, b.Stores[b.ID(aWest)], result.Deletion))
	require.Equal(t, [3]int64{3, 3, 0}, counts(t, b.Stores[b.ID(bEast)], result.Deletion))
	require.Equal(t, [3]int64{0, 0, 1}, counts(t, b.Stores[b.ID(bWest)], result.Deletion))
	require.EqualValues(t, 1, ended.Load())
	running, err = b.Stores[b.ID(aWest)].Progress.RunningDeletions(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, running)

	alone := b.MustPut(target, nil)
	require.NotEqual(t, uuid.Nil, alone.UID)
	result, err = b.Stores[b.ID(aWest)].Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t"})
	require.NoError(t, err)
	require.Equal(t, [3]int64{1, 1, 0}, counts(t, b.Stores[b.ID(aWest)], result.Deletion))
	require.EqualValues(t, 2, ended.Load())
}

// Ended deletions are listed page by page, the last begun first, without the running ones.
func TestEndedDeletionsAreListed(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, want := b.Stores[b.ID(aWest)].Progress, []uuid.UUID(nil)
	for range 3 {
		b.MustPut(target, nil)
		want = append(want, b.MustDelete(target).Deletion)
	}
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	running := b.MustDelete(target).Deletion
	_, err := store.DeletionProgress(t.Context(), running) // it stores the counts
	require.NoError(t, err)

	first, next, err := store.EndedDeletions(t.Context(), "", 2)
	require.NoError(t, err)
	second, none, err := store.EndedDeletions(t.Context(), next, 2)
	require.NoError(t, err)
	require.Empty(t, none)
	var got []uuid.UUID
	for _, d := range append(first, second...) {
		got = append(got, d.ID)
		require.Equal(t, [3]int64{1, 1, 0}, [3]int64{d.Found, d.Removed, d.Unset})
	}
	slices.Reverse(want)
	require.Equal(t, want, got)
	b.Settle()
	_, err = store.DeletionProgress(t.Context(), running)
	require.NoError(t, err)
	first, _, err = store.EndedDeletions(t.Context(), "", 1)
	require.NoError(t, err)
	require.Equal(t, running, first[0].ID)
	_, _, err = store.EndedDeletions(t.Context(), "x", 1)
	require.ErrorAs(t, err, new(*peer.InvalidError))
}

// At a graceful stop, the last transactions of handlers commit behind the end of the counting.
func TestAStopLosesNoCounts(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	deletion := b.MustDelete(target).Deletion
	stopping := b.SecondProcess(bEast, shadow.Config{})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, stopping.Progress.RunProgress(ctx))
	deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
	_, err := stopping.Follow.ActFor(t.Context(), b.ID(aWest), deletions, time.Minute)
	require.NoError(t, err)
	stopping.Close()
	require.Equal(t, [3]int64{1, 1, 0}, counts(t, b.Stores[b.ID(bEast)], deletion))
}

// counts stores the counts of a process, and returns the found, the removed and the unset ones of a deletion.
func counts(t *testing.T, s *shadow.Store, id uuid.UUID) [3]int64 {
	t.Helper()
	require.NoError(t, s.Progress.Flush(context.Background()))
	found, err := s.Progress.DeletionProgress(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, found, 1)
	return [3]int64{found[0].Found, found[0].Removed, found[0].Unset}
}

// A deletion that waits, for a clean-up or for an operator, has no rate.
func TestADeletionThatWaitsHasNoEstimate(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, strings.Replace(services, "kind: Holder\n",
		"kind: Holder\n    finalizers: [{name: clean, holder: user/cleaner}]\n", 1), nil, aWest, bEast)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.MustPut(holder2, body{"cascade": target})
	b.Settle()
	result, err := b.Stores[b.ID(aWest)].Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t"})
	require.NoError(t, err)
	b.Settle()
	store := b.Stores[b.ID(bEast)]
	_, err = store.Write.RemoveFinalizer(t.Context(), "holders/h", b.Get(holder).UID, "clean")
	require.NoError(t, err)
	b.Settle()
	require.Positive(t, progressOf(t, store, result.Deletion).Left)
	_, err = b.Pools[b.ID(bEast)].Exec(t.Context(),
		`UPDATE dbcontroller.deletion_progress SET started_at = started_at - interval '1 h', updated_at = updated_at - interval '2 min'`)
	require.NoError(t, err)
	require.Zero(t, progressOf(t, store, result.Deletion).Left)
}
