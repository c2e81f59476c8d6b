package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// Schedules that once broke an invariant. Each stops a transaction somewhere by a lock of the test's own.

// hold takes a row lock and returns the function that releases it.
func hold(t *testing.T, b *harness.Box, deployment, sql string, args ...any) (release func()) {
	t.Helper()
	tx, err := b.Pools[b.ID(deployment)].Begin(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // of a test that fails before
	tag, err := tx.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
	require.NotZero(t, tag.RowsAffected())
	return func() { require.NoError(t, tx.Rollback(context.Background())) }
}

// stopped waits until a number of sessions wait for a lock in the database.
func stopped(t *testing.T, b *harness.Box, deployment string, waiting int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var n int
		err := b.Pools[b.ID(deployment)].QueryRow(context.Background(), `SELECT count(*) FROM pg_locks WHERE NOT granted AND
			pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&n)
		return err == nil && n >= waiting
	}, wait.Limit, 5*time.Millisecond)
}

const lockReferencesSQL = `
SELECT FROM dbcontroller.reference r JOIN dbcontroller.shadow s ON s.id = r.holder_id WHERE s.name = $1 FOR UPDATE OF r`

// A blocker drops its reference while the transaction that has read it, and will mark its target, is open:
// the resulting look must wait for the mark.
func TestALookWaitsForAConcurrentMark_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	blocker := "//" + bEast + "/holders/x"
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	b.MustPut(blocker, body{"near": body{"block": "holders/h"}})
	release := hold(t, b, bEast, lockReferencesSQL, "holders/h")
	acted := make(chan error)
	go func() { _, err := b.Act(b.ID(bEast), b.ID(aWest)); acted <- err }()
	stopped(t, b, bEast, 1) // it has read the blockers, and is about to drop the references
	b.MustPut(blocker, nil)
	looked := make(chan error)
	go func() { _, err := b.Do(b.ID(bEast), schema.Finalise); looked <- err }()
	release()
	require.NoError(t, <-acted)
	require.NoError(t, <-looked)
	b.Settle()
	b.Gone(holder)
	b.Audit()
}

// A release of an attempt takes its locks before the attempt's establish has committed: it leaves blockades
// whose targets it did not lock.
func TestAReleaseOfAnAttemptLeavesWhatItDidNotLock(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	other := b.MustPut("//"+bEast+"/holders/y", nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	ctx, store, from := context.Background(), b.Stores[b.ID(bEast)], b.ID(bWest)
	unlockOther := hold(t, b, bEast, `SELECT FROM dbcontroller.shadow WHERE uid = $1 FOR UPDATE`, other.UID)
	attempt := newAttempt()
	released := make(chan error)
	go func() {
		released <- store.Targets.Release(ctx, from, uuid.Nil,
			[]peer.BlockadeKey{{Attempt: newAttempt(), HolderUID: other.UID, Path: "near.block", TargetUID: other.UID}},
			[]peer.AttemptID{attempt})
	}()
	stopped(t, b, bEast, 1)
	ref := reference("near.block", schema.Block, other.UID)
	ref.TargetKind, ref.TargetName = "Holder", "holders/h"
	_, err := store.Targets.Establish(ctx, from, attempt, []peer.EstablishReference{ref})
	require.NoError(t, err)
	unlockReferences := hold(t, b, bEast, lockReferencesSQL, "holders/h")
	acted := make(chan error)
	go func() { _, err := b.Act(b.ID(bEast), b.ID(aWest)); acted <- err }()
	stopped(t, b, bEast, 2) // it has seen the blockade, and will mark its target
	unlockOther()
	require.NoError(t, <-released)
	unlockReferences()
	require.NoError(t, <-acted)
	b.Expire(bEast)
	b.Settle()
	b.Gone(holder)
	b.Audit()
}

const denseServices = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
    references:
      - { path: up, targets: [Target], behaviour: CASCADE_DELETE }
      - { path: later, targets: [Target], behaviour: ASYNC_CASCADE_DELETE }
      - { path: list.*, targets: [Target], behaviour: BLOCK }
      - { path: dangling, targets: [Target], behaviour: ALLOW_DANGLING }
`

// Many references among the members of a deletion do not hide an outside blocker.
func TestABlockerIsFoundBehindManyMembers_I3(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, denseServices, func(c *shadow.Config) { c.Limits.LocalCascade = 8 }, aWest)
	name := func(s string, i int) string { return fmt.Sprintf("//%s/targets/%s%d", aWest, s, i) }
	b.MustPut(name("root", 0), nil)
	var list []any
	for i := range 3 {
		b.MustPut(name("t", i), body{"up": "targets/root0"})
		list = append(list, fmt.Sprint("targets/t", i))
	}
	for i := range 3 {
		b.MustPut(name("h", i), body{"up": "targets/root0", "list": list})
	}
	b.MustPut(name("outsider", 0), body{"list": []any{"targets/t2"}})
	_, err := b.Delete(name("root", 0))
	requireBlocked(t, err, name("outsider", 0))
	b.MustPut(name("outsider", 0), nil)
	b.MustDelete(name("root", 0))
	b.Settle()
	require.Equal(t, 1, b.Count(aWest, "shadow"))
	b.Audit()
}

// A local holder that blocks and cascades later is removed by the deletion.
func TestALocalHolderThatBlocksAndCascadesLaterDoesNotBlock(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, denseServices, nil, aWest)
	b.MustPut(target, nil)
	b.MustPut(target2, body{"list": []any{"targets/t"}, "later": "targets/t"})
	b.MustDelete(target)
	b.Settle()
	b.Gone(target, target2)
	b.Audit()
}

func TestAnUpdateKeepsAValueThatDanglesByPermission(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, denseServices, nil, aWest)
	b.MustPut(target, nil)
	b.MustPut(target2, body{"dangling": "targets/t"})
	b.MustDelete(target)
	b.MustPut(target2, body{"dangling": "targets/t", "note": "changed"})
	_, err := b.Put(target2, body{"dangling": "targets/other"})
	require.Equal(t, peer.TargetMissing, refusals(t, err)[0].Reason)
	b.Audit()
}

func TestAReferenceToAnUnknownDeploymentLeavesNothingOutstanding_I28(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	_, err := b.Put(holder, body{"block": "//a.example.com/nowhere/targets/t"})
	require.Equal(t, peer.TargetUnreadable, refusals(t, err)[0].Reason)
	require.Zero(t, b.Count(bEast, "work"))
	require.Zero(t, b.Count(bEast, "aborted"))
}

func fewConnections(c *shadow.Config) {
	pool, err := postgres.Connect(context.Background(), c.Pool.Config().ConnString(), "few connections",
		postgres.MinConnections)
	if err != nil {
		panic(err)
	}
	c.Pool = postgres.NewLanes(pool) // of one connection each
}

// I22: the documented minimum of connections is enough for new names, writes and deletes at once.
func TestTheMinimumOfConnectionsIsEnough_I22(t *testing.T) {
	t.Parallel()
	b := newPair(t, fewConnections)
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	b.MustPut(target, nil)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 10 {
				name := fmt.Sprintf("holders/n%d-%d", g, i)
				if _, err := b.Stores[b.ID(bEast)].Write.Save(ctx,
					[]peer.Write{{Name: name, Body: body{"unset": target}}}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for i := range 10 {
				unseen := schema.DeploymentID{Service: "c.example.com", Region: fmt.Sprintf("r%d-%d", g, i)}
				err := b.Stores[b.ID(bEast)].Read.WatchDeletions(ctx, unseen, "",
					func(schema.Event[schema.Deletion]) error {
						return errors.New("enough")
					})
				if ctx.Err() != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.Settle()
	b.Audit()
}

func TestStalledReadersHoldNoConnections(t *testing.T) {
	t.Parallel()
	b := newPair(t, fewConnections)
	ctx, cancel := context.WithCancel(context.Background())
	b.MustPut(target, nil)
	block, reading := make(chan struct{}), make(chan struct{}, 10)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			_ = b.Stores[b.ID(aWest)].Read.WatchResources(ctx, "", "", "", func(schema.Event[peer.Resource]) error {
				reading <- struct{}{}
				<-block
				return nil
			})
		})
	}
	<-reading
	for range 10 {
		b.MustPut(target2, nil)
	}
	cancel()
	close(block)
	wg.Wait()
}

// A delete ends although new references arrive as fast as old ones are settled.
func TestABusyTargetCanBeDeleted(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(c *shadow.Config) { c.Times.DeleteTimeout = 20 * time.Second })
	b.MustPut(target, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	first := make(chan struct{}, 8)
	for g := range 8 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, err := b.Stores[b.ID(bEast)].Write.Save(ctx,
					[]peer.Write{{Name: fmt.Sprintf("holders/z%d-%d", g, i), Body: body{"unset": target}}})
				if i == 0 {
					first <- struct{}{}
				}
				if err != nil {
					return // refused: the target is on its way out
				}
			}
		})
	}
	for range 8 {
		<-first
	}
	b.MustDelete(target)
	cancel()
	wg.Wait()
	b.Expire(aWest)
	b.Settle()
	b.Gone(target)
	b.Audit()
}

func TestForeignTargetsWithoutReferencesAreRemoved(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"block": target, "unset": target2})
	b.MustPut(holder, body{"unset": target2})
	b.Settle()
	_, err := b.Stores[b.ID(bEast)].Admin.Tidy(context.Background())
	require.NoError(t, err)
	require.Equal(t, 1, b.Count(bEast, "foreign_target"))
	b.Audit()
}

func TestABodyThatPostgreSQLCannotStoreIsBadInput(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	_, err := b.Put(target, body{"x": "a\x00b"})
	var invalid *peer.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.ErrorContains(t, err, "NUL character")
	b.MustPut(target, body{"x": `a\u0000b`}) // six characters that only look like one
	require.Contains(t, string(b.Get(target).Body), `a\\u0000b`)
}

// z is removed later because of b, and blocks a, which is removed now: z is ACTIVE until then and may still
// drop its reference to b, so a waits.
func TestAMemberWaitsForABlockerThatIsRemovedLater_I2(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, denseServices, nil, aWest)
	name := func(s string) string { return "//" + aWest + "/targets/" + s }
	b.MustPut(name("b"), nil)
	b.MustPut(name("other"), nil)
	b.MustPut(name("a"), body{"up": "targets/b"})
	b.MustPut(name("z"), body{"later": "targets/b", "list": []any{"targets/a"}})
	release := hold(t, b, aWest, `SELECT FROM dbcontroller.shadow WHERE name = 'targets/other' FOR UPDATE`)
	saved := make(chan error)
	go func() {
		// does not cascade with b any more
		_, err := b.Put(name("z"), body{"list": []any{"targets/a", "targets/other"}})
		saved <- err
	}()
	stopped(t, b, aWest, 1) // it was compared with the stored resource, and is about to be written
	b.MustDelete(name("b"))
	require.NotNil(t, b.Get(name("a")), "z refers to it")
	release()
	// a busy machine came later than the lock_timeout: the user tries again
	if err := <-saved; errors.Is(err, peer.ErrAborted) {
		b.MustPut(name("z"), body{"list": []any{"targets/a", "targets/other"}})
	} else {
		require.NoError(t, err)
	}
	b.Settle()
	b.Gone(name("b"))
	require.Equal(t, peer.Deleting, b.Get(name("a")).State)
	b.MustDelete(name("z"))
	b.Settle()
	b.Gone(name("a"))
	b.Audit()
}

// Only blockers from before the look-ahead are excused.
func TestABlockerThatComesAfterTheLookAheadIsNotExcused_I3(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.AfterPlan = func() {
		b.AfterPlan = nil
		b.MustPut(holder, body{"block": target}) // does not cascade any more
		_, err := b.Do(b.ID(bEast), schema.Confirm)
		require.NoError(t, err)
	}
	_, err := b.Delete(target)
	requireBlocked(t, err, holder)
	b.Settle()
	require.Equal(t, peer.Active, b.Get(target).State)
	b.Audit()
}

// The same for a blocker in the database of the target: it has no blockade, and is found under the lock
// alone.
func TestALocalBlockerThatComesAfterTheLookAheadIsNotExcused_I3(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	local := "//" + aWest + "/targets/local"
	b.MustPut(local, nil)
	b.Settle()
	b.AfterPlan = func() {
		b.AfterPlan = nil
		b.MustPut(local, body{"peer": "targets/t"})
	}
	_, err := b.Delete(target)
	requireBlocked(t, err, local)
	b.Settle()
	require.Equal(t, peer.Active, b.Get(target).State)
	b.Audit()
}

func TestABlockerIsExcusedThough(t *testing.T) {
	t.Parallel()
	both := body{"cascade": target, "block": target}
	t.Run("it is not confirmed yet", func(t *testing.T) {
		t.Parallel()
		b := newBox(t, nil)
		b.MustPut(target, nil)
		b.MustPut(holder, both)
		b.MustDelete(target)
		b.Settle()
		b.Gone(target, holder)
		b.Audit()
	})
	t.Run("there are more than can be asked about", func(t *testing.T) {
		t.Parallel()
		b := newBox(t, nil)
		b.MustPut(target, nil)
		var writes []peer.Write
		for i := range 1100 {
			writes = append(writes, peer.Write{Name: fmt.Sprintf("holders/h%d", i), Body: both})
		}
		_, err := b.Stores[b.ID(bEast)].Write.Save(context.Background(), writes)
		require.NoError(t, err)
		b.Settle()
		b.MustDelete(target)
		b.Settle()
		b.Gone(target)
		require.Zero(t, b.Count(bEast, "shadow"))
		b.Audit()
	})
	t.Run("it is here and goes by way of another deployment", func(t *testing.T) {
		t.Parallel()
		b := newBox(t, nil)
		there := "//" + aEast + "/targets/h"
		b.MustPut(target, nil)
		b.MustPut(there, body{"next": target})
		b.MustPut(target2, body{"next": there, "peer": "targets/t"})
		b.Settle()
		b.MustDelete(target)
		b.Settle()
		b.Gone(target, target2, there)
		b.Audit()
	})
}

// A reader that pauses longer than the retention of changes gets a reset, never a gap.
func TestAPausedReaderIsResetWhenItsChangesAreGone_I24(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	paused, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		ended <- store.Read.WatchResources(ctx, "", "", "", func(e schema.Event[peer.Resource]) error {
			if e.EndOfSnapshot {
				close(paused)
				<-goOn
			}
			return nil
		})
	}()
	<-paused
	b.MustPut(target, nil)
	_, err := b.Pools[b.ID(aWest)].Exec(ctx, `UPDATE dbcontroller.change SET changed_at = now() - interval '25 hours'`)
	require.NoError(t, err)
	_, err = store.Admin.Tidy(ctx)
	require.NoError(t, err)
	b.MustPut(target2, nil)
	close(goOn)
	require.ErrorIs(t, <-ended, peer.ErrReset)
}

// Watches look up a kind that another process has stored without a second connection.
func TestAKindUnknownToTheProcessBlocksNoWatch_I22(t *testing.T) {
	t.Parallel()
	b := newPair(t, fewConnections)
	b.MustPut(target, nil)
	ctx, cancel := context.WithCancel(context.Background())
	store := b.Stores[b.ID(aWest)]
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	const watches = 32
	primed, seen := make(chan struct{}, watches), make(chan struct{}, watches)
	for range watches {
		wg.Go(func() {
			_ = store.Read.WatchResources(ctx, "", "", "", func(e schema.Event[peer.Resource]) error {
				if e.EndOfSnapshot {
					primed <- struct{}{}
				}
				for _, r := range e.Items {
					if r.Kind == "Fresh" {
						seen <- struct{}{}
					}
				}
				return nil
			})
		})
	}
	for range watches {
		<-primed
	}
	newer := strings.Replace(services, "  - kind: Child\n",
		"  - kind: Fresh\n    patterns: [\"fresh/{fresh}\"]\n  - kind: Child\n", 1)
	file, err := schema.ParseFile("services.yaml", strings.NewReader(newer))
	require.NoError(t, err)
	model, err := schema.NewModel(file.Services[0].ServiceVersion, file.Services)
	require.NoError(t, err)
	other := b.SecondProcess(aWest, shadow.Config{})
	require.NoError(t, other.Admin.Switch(ctx, model))
	_, err = other.Write.Save(ctx, []peer.Write{{Name: "fresh/f"}})
	require.NoError(t, err)
	store.Wake()
	for range watches {
		select {
		case <-seen:
		case <-time.After(wait.Limit):
			t.Fatal("a watch hangs")
		}
	}
}
