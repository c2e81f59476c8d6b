package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
)

// alignedTries is the number of tries of each race. With a wrong variant between one in three and, on a busy
// machine, one in twenty-five of them shows the mistake: all would miss it once in 25,000 runs at the worst.
const (
	alignedTries = 250
	wrongTries   = 5000
)

// tries returns a twentieth of the tries in a short run.
func tries(n int) int { return rounds.Of(n, n/20) }

// together runs both functions concurrently, with an offset that varies from try to try.
func together(try int, first, second func()) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	spin := func(n int) {
		for range n * 2000 { // a delay shorter than any timer
		}
	}
	wg.Go(func() { <-start; spin(try % 7); first() })
	wg.Go(func() { <-start; spin(try % 11); second() })
	close(start)
	wg.Wait()
}

// The race of establish against delete: no delete is accepted beside an established reference (I3). remove
// deletes the target in its own way and reports whether that was accepted. There are n tries, and more until
// each of the two has won, but no more than alignedTries.
func establishAgainstDelete(t *testing.T, b *harness.Box, n int,
	remove func(name string) bool,
) (both, established, deleted int) {
	t.Helper()
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	try := 0
	for ; try < n || try < alignedTries && (established == 0 || deleted == 0); try++ {
		name := fmt.Sprintf("targets/r%d", try)
		_, err := store.Write.Save(ctx, []peer.Write{{Name: name}})
		require.NoError(t, err)
		ref := reference("block", schema.Block, uuid.New())
		ref.TargetName = name
		var accepted, removed bool
		together(try, func() {
			_, err := store.Targets.Establish(ctx, b.ID(bEast), newAttempt(), []peer.EstablishReference{ref})
			accepted = err == nil
		}, func() { removed = remove(name) })
		switch {
		case accepted && removed:
			both++
		case accepted:
			established++
		case removed:
			deleted++
		}
	}
	t.Logf("of %d tries: %d established, %d deleted, %d both", try, established, deleted, both)
	return both, established, deleted
}

func TestRaceOfEstablishAgainstDelete_I3(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	b.SetDown(bEast, true) // a delete beside an undecided reference is refused, and does not wait for the decision
	remove := func(name string, patience time.Duration) bool {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: name})
		return err == nil
	}
	// A delete waits for an undecided reference as long as it may. It may take as long as it does on this
	// machine without a race.
	patience := 10 * time.Millisecond
	for n := range 5 {
		name := fmt.Sprintf("targets/alone%d", n)
		_, err := store.Write.Save(t.Context(), []peer.Write{{Name: name}})
		require.NoError(t, err)
		start := time.Now()
		require.True(t, remove(name, time.Minute))
		patience = max(patience, 2*time.Since(start))
	}
	both, established, deleted := establishAgainstDelete(t, b, tries(alignedTries), func(name string) bool {
		return remove(name, patience)
	})
	require.Zero(t, both, "a delete was accepted beside a live reference")
	require.NotZero(t, established)
	require.NotZero(t, deleted)
}

// Lock and check in one statement: the check's snapshot is older than the lock.
func TestRaceOfEstablishAgainstDeleteFindsTheWrongVariant(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	const lockAndCheckSQL = `
WITH gone AS (
    DELETE FROM dbcontroller.shadow s
    WHERE name = $1 AND NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = s.id)
    RETURNING id
) SELECT count(*) FROM gone`
	for range wrongTries / alignedTries {
		both, _, _ := establishAgainstDelete(t, b, alignedTries, func(name string) bool {
			var n int
			return b.Pools[b.ID(aWest)].QueryRow(context.Background(), lockAndCheckSQL, name).Scan(&n) == nil && n == 1
		})
		if both > 0 {
			return
		}
		_, err := b.Pools[b.ID(aWest)].Exec(context.Background(), `TRUNCATE dbcontroller.shadow, dbcontroller.blockade`)
		require.NoError(t, err)
	}
	t.Fatal("the race test did not find a delete that locks and checks in one statement")
}

// The race of a late commit against a resolver: the holder's deployment answers "gone", and the write
// commits, I5.
func lateCommitAgainstResolve(t *testing.T, b *harness.Box, n int,
	answer func(key peer.BlockadeKey) bool,
) (both, committed, gone int) {
	t.Helper()
	ctx, store := context.Background(), b.Stores[b.ID(bEast)]
	targetUID := b.MustPut(target, nil).UID
	wait := time.Millisecond
	errOver := errors.New("the first attempt is over")
	type established struct {
		key  peer.BlockadeKey
		goOn chan struct{}
	}
	first := make(chan established)
	var mu sync.Mutex
	seen := false
	b.OnEstablish = func(_ schema.DeploymentID, attempt peer.AttemptID, refs []peer.EstablishReference) error {
		mu.Lock()
		again := seen
		seen = true
		mu.Unlock()
		if again {
			return errOver
		}
		e := established{peer.BlockadeKey{
			Attempt: attempt, HolderUID: refs[0].HolderUID, Path: refs[0].Path,
			TargetUID: targetUID,
		}, make(chan struct{})}
		first <- e
		<-e.goOn
		return nil
	}
	// the wait does not fit this machine yet
	undecided := func() bool { return both == 0 && (committed == 0 || gone == 0) }
	for try := 0; try < n || undecided() && try < 20*n; try++ {
		mu.Lock()
		seen = false
		mu.Unlock()
		saved := make(chan error)
		name := fmt.Sprintf("holders/r%d", try)
		go func() {
			_, err := store.Write.Save(ctx, []peer.Write{{Name: name, Body: body{"dangling": target}}})
			saved <- err
		}()
		e := <-first
		var isGone bool
		var err error
		together(try, func() { close(e.goOn); err = <-saved }, func() {
			// The question comes earlier after each commit, and later after each attempt that it has aborted:
			// it meets the commit also on a machine that is slow.
			<-time.After(wait)
			isGone = answer(e.key)
		})
		if isGone {
			wait += wait / 4
		} else {
			wait -= wait / 5
		}
		switch {
		case isGone && err == nil:
			both++
		case isGone:
			gone++
		case err == nil:
			committed++
		}
	}
	t.Logf("of %d tries: %d committed, %d gone, %d both", n, committed, gone, both)
	return both, committed, gone
}

const attemptHeldSQL = `SELECT EXISTS (SELECT FROM dbcontroller.reference WHERE attempt = $1)`

func TestRaceOfALateCommitAgainstResolve_I5(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	both, committed, gone := lateCommitAgainstResolve(t, b, tries(alignedTries), func(key peer.BlockadeKey) bool {
		verdicts, err := b.Stores[b.ID(bEast)].Attempts.Answer(context.Background(), b.ID(aWest),
			[]peer.Question{{Key: key, Expired: true}})
		require.NoError(t, err)
		return verdicts.Verdicts[0] == peer.GoneVerdict
	})
	require.Zero(t, both, "an attempt committed after it was answered as gone")
	require.NotZero(t, committed)
	require.NotZero(t, gone)
}

// A wrong resolver, which answers "gone" for each expired attempt without a decision.
func TestRaceOfALateCommitAgainstResolveFindsTheWrongVariant(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	both, _, _ := lateCommitAgainstResolve(t, b, wrongTries/50, func(key peer.BlockadeKey) bool {
		var held bool
		require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(context.Background(), attemptHeldSQL, key.Attempt).Scan(&held))
		return !held
	})
	require.NotZero(t, both, "the race test did not find an answer by time alone")
}
