package shadow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// The holders of one resource are found page by page. They are counted after the first page, so that a
// deletion has an estimate; a process that takes the walk over, and walks anew, does not count them twice.
func TestTheHoldersOfOneResourceAreExpectedBeforeTheyAreFound(t *testing.T) {
	t.Parallel()
	const cascades, unsets, batch = 900, 300, 20
	pages := func(cfg *shadow.Config) { cfg.Limits.Batch = batch }
	b := newPair(t, pages)
	b.MustPut(target, nil)
	from, here := b.ID(aWest), b.ID(bEast)
	var writes []peer.Write
	for i := range cascades {
		writes = append(writes, peer.Write{Name: fmt.Sprintf("holders/c%d", i), Body: body{"cascade": target}})
	}
	for i := range unsets {
		writes = append(writes, peer.Write{Name: fmt.Sprintf("holders/u%d", i), Body: body{"unset": target}})
	}
	for len(writes) > 0 {
		n := min(len(writes), 100)
		_, err := b.Stores[here].Write.Save(t.Context(), writes[:n])
		require.NoError(t, err)
		writes = writes[n:]
	}
	b.Settle()
	result, err := b.Stores[from].Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t"})
	require.NoError(t, err)
	deletions, _ := b.Seen(here, from)

	for turn, store := range []*shadow.Store{b.Stores[here], b.SecondProcess(bEast, shadowConfig(pages))} {
		failed, err := store.Follow.ActFor(t.Context(), from, deletions, 1)
		require.NoError(t, err)
		require.ErrorIs(t, failed[deletions[0].UID], schema.ErrUnfinished)
		so := progressOf(t, store, result.Deletion)
		require.EqualValues(t, cascades, so.Expected, "turn %d", turn)
		require.EqualValues(t, unsets, so.ExpectedUnset, "turn %d", turn)
		require.Positive(t, so.Removed)
		require.Equal(t, so.Found, so.Removed, "page by page")
		require.Positive(t, so.Left)

		running, err := store.Progress.RunningDeletions(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, running, 1, "between two pages as well")
		left, err := store.Progress.DeletionsLeft(t.Context())
		require.NoError(t, err)
		require.Equal(t, shadow.DeletionsLeft{Running: 1, Resources: cascades - so.Removed}, left)
	}

	b.Settle()
	so := progressOf(t, b.Stores[here], result.Deletion)
	require.Equal(t, shadow.DeletionProgress{
		ID: so.ID, Root: target, DeletionCounts: so.DeletionCounts, Expected: cascades, ExpectedUnset: unsets,
		StartedAt: so.StartedAt, UpdatedAt: so.UpdatedAt,
	}, so, "nothing is left, in no time")
	require.EqualValues(t, cascades, so.Removed)
	require.EqualValues(t, unsets, so.Unset)
	left, err := b.Stores[here].Progress.DeletionsLeft(t.Context())
	require.NoError(t, err)
	require.Zero(t, left)
	b.Gone(target)
}

// The counts and the walks are stored together: while several people look, each expected resource is among
// the found or among the remaining ones.
func TestWhatIsExpectedDoesNotShrinkWhileSomebodyLooks(t *testing.T) {
	t.Parallel()
	const cascades, batch = 1500, 20
	b := newPair(t, func(cfg *shadow.Config) { cfg.Limits.Batch = batch })
	b.MustPut(target, nil)
	from, here := b.ID(aWest), b.ID(bEast)
	for i := 0; i < cascades; i += 100 {
		var writes []peer.Write
		for j := range 100 {
			writes = append(writes, peer.Write{Name: fmt.Sprintf("holders/c%d", i+j), Body: body{"cascade": target}})
		}
		_, err := b.Stores[here].Write.Save(t.Context(), writes)
		require.NoError(t, err)
	}
	b.Settle()
	result, err := b.Stores[from].Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/t"})
	require.NoError(t, err)

	done := make(chan struct{})
	var look errgroup.Group
	for range 4 {
		look.Go(func() error {
			for counted := false; ; {
				so, err := b.Stores[here].Progress.DeletionProgress(context.Background(), result.Deletion)
				if err != nil {
					return err
				}
				counted = counted || len(so) > 0 && so[0].Expected >= cascades
				// Two batches that run at a time can have removed resources that the walk still expects.
				if counted && (so[0].Expected < cascades || so[0].Expected > cascades+2*batch) {
					return fmt.Errorf("%d of %d are expected, %d of them removed", so[0].Expected, cascades,
						so[0].Removed)
				}
				select {
				case <-done:
					return nil
				default:
				}
			}
		})
	}
	_, err = b.Act(here, from)
	require.NoError(t, err)
	b.Settle() // on a slow machine an act ends with its patience
	close(done)
	require.NoError(t, look.Wait())
	require.EqualValues(t, cascades, progressOf(t, b.Stores[here], result.Deletion).Removed)
}

// A process that is killed leaves the row of its walk. The rest of the holders may then be too few for
// another walk, which would replace the row: it ends by its age.
func TestAWalkThatNobodyContinuesIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	result := b.MustDelete(target)
	here := b.Stores[b.ID(bEast)]
	b.Settle()
	const row = `INSERT INTO dbcontroller.deletion_walk (target, deletion, cascades, unsets, passed, started_at, updated_at)
VALUES (gen_random_uuid(), $1, 7, 2, 1, now(), now() - $2::interval)`
	pool := b.Pools[b.ID(bEast)]
	_, err := pool.Exec(t.Context(), row, result.Deletion, 30*time.Second)
	require.NoError(t, err)
	require.EqualValues(t, 8, progressOf(t, here, result.Deletion).Expected)
	_, err = pool.Exec(t.Context(), `UPDATE dbcontroller.deletion_walk SET updated_at = now() - interval '61 s'`)
	require.NoError(t, err)
	require.EqualValues(t, 1, progressOf(t, here, result.Deletion).Expected)
	left, err := here.Progress.DeletionsLeft(t.Context())
	require.NoError(t, err)
	require.Zero(t, left)
}

func shadowConfig(configure func(*shadow.Config)) (cfg shadow.Config) {
	configure(&cfg)
	return cfg
}

func progressOf(t *testing.T, s *shadow.Store, id uuid.UUID) shadow.DeletionProgress {
	t.Helper()
	require.NoError(t, s.Progress.Flush(context.Background()))
	found, err := s.Progress.DeletionProgress(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}
