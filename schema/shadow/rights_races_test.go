package shadow_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// waitsForLock returns when a session of the database waits for a lock.
func waitsForLock(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waits bool
		err := pool.QueryRow(context.Background(),
			`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
		return err == nil && waits
	}, wait.Limit, time.Millisecond)
}

// A write under the right commits between the look and the lock of the row: the look is repeated under the
// lock, and the right stays.
func TestALookIsRepeatedUnderTheLock_I2_I3_I8(t *testing.T) {
	t.Parallel()
	b := blocking(t)
	idleRight(t, b)
	b.MustPut(holderNumber(3), nil)
	ctx, pool, store := t.Context(), b.Pools[b.ID(bEast)], b.Stores[b.ID(bEast)]
	_, err := pool.Exec(ctx, `UPDATE dbcontroller.foreign_target SET kept_until = NULL`)
	require.NoError(t, err)
	paused, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = paused.Rollback(ctx) }()
	_, err = paused.Exec(ctx, `SELECT FROM dbcontroller.foreign_target FOR KEY SHARE`)
	require.NoError(t, err)
	_, err = paused.Exec(ctx, `
INSERT INTO dbcontroller.reference (holder_id, target_id, attempt, field_id, behaviour, delegated)
SELECT s.id, f.id, $1, (SELECT id FROM dbcontroller.field WHERE path = 'block'), 1, true FROM dbcontroller.foreign_target f, dbcontroller.shadow s WHERE s.name = 'holders/d3'`, newAttempt())
	require.NoError(t, err)
	var committed atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for again := true; again; again = !committed.Load() { // the lock may not be had in time
			_, _ = store.Admin.Tidy(ctx)
		}
	}()
	waitsForLock(t, pool)
	require.NoError(t, paused.Commit(ctx))
	committed.Store(true)
	<-done
	rights, proxies := blockRights(t, b, bEast)
	require.Equal(t, []int{1, 1}, []int{rights, proxies})
}

// Two batches of a large deletion end early, each in its middle: holders that the first one has not reached
// are not passed over.
func TestHoldersThatABatchDidNotReachAreNotPassed_I1(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Limits.Batch = 10 })
	b.MustPut(target, nil)
	for n := range 40 {
		b.MustPut(holderNumber(n), body{"cascade": target})
	}
	b.Settle()
	// A transaction of more than five fails, as after meeting another transaction; none of its holders does
	// by itself.
	_, err := b.Pools[b.ID(bEast)].Exec(t.Context(), `
CREATE FUNCTION few() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT count(*) FROM gone) > 5 THEN RAISE EXCEPTION 'too many' USING ERRCODE = '40P01'; END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER few AFTER DELETE ON dbcontroller.shadow REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION few()`)
	require.NoError(t, err)
	b.MustDelete(target)
	deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
	require.Len(t, deletions, 1)
	for failed := map[uuid.UUID]error{deletions[0].UID: nil}; len(failed) > 0; {
		failed, err = b.Stores[b.ID(bEast)].Follow.ActFor(t.Context(), b.ID(aWest), deletions, 1)
		require.NoError(t, err)
		for _, err := range failed {
			require.ErrorIs(t, err, schema.ErrUnfinished)
		}
	}
	require.Zero(t, b.Count(bEast, "reference"))
}

// granted reads a confirm of an acting reference, and the answer that grants the right.
func granted(t *testing.T, b *harness.Box) *peer.Messages {
	t.Helper()
	var seqs []int64
	for _, w := range b.Work(b.ID(bEast)) {
		seqs = append(seqs, w.Seq)
	}
	m, err := b.Stores[b.ID(bEast)].Targets.Messages(t.Context(), b.ID(aWest), seqs)
	require.NoError(t, err)
	m.Confirmed, err = b.Stores[b.ID(aWest)].Targets.Confirm(t.Context(), b.ID(bEast),
		peer.Confirm{Epoch: m.Epoch, Attempts: m.Confirm, References: m.References, Delegable: true})
	require.NoError(t, err)
	require.Len(t, m.Confirmed.Delegated, 1)
	return m
}

// A close changes the turn of the row also where there is no right yet: an answer on its way grants none.
func TestACloseRefusesTheAnswerOnItsWay_I31(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(1), body{"dangling": target}) // keeps the row
	b.Settle()
	b.MustPut(holderNumber(0), body{"unset": target})
	m := granted(t, b)
	b.MustDelete(target)
	b.Settle()
	require.NoError(t, b.Stores[b.ID(bEast)].Targets.Delivered(t.Context(), m))
	require.Zero(t, rights(t, b, bEast))
}

// A right that was asked for in one epoch of the own database, and is taken in the next, does not count.
func TestARightThatWasAskedForInAnotherEpochDoesNotCount_I30(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	m := granted(t, b)
	b.Renew(bEast)
	require.NoError(t, b.Stores[b.ID(bEast)].Targets.Delivered(t.Context(), m))
	held, err := b.Stores[b.ID(bEast)].Targets.Delegations(t.Context())
	require.NoError(t, err)
	require.Empty(t, held)
}

// Between the question for a right and its answer the deployment of the target is decommissioned, or a
// process joins that gives and takes none: the right is not taken.
func TestARightIsNotTakenBesideADecommissioningOrAProcessWithoutRights_I30_I31(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(t *testing.T, b *harness.Box){
		"decommissioned": func(t *testing.T, b *harness.Box) { decommission(t, b, bEast, aWest, schema.Unset) },
		"a process without rights": func(t *testing.T, b *harness.Box) {
			_, err := b.Pools[b.ID(bEast)].Exec(t.Context(),
				`INSERT INTO dbcontroller.member (id, name, expires_at) VALUES (gen_random_uuid(), 'without', now() + interval '1 hour')`)
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := blocking(t)
			b.MustPut(target, nil)
			b.MustPut(holderNumber(0), body{"dangling": target})
			b.Settle()
			var id int64
			require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(),
				`SELECT id FROM dbcontroller.foreign_target`).Scan(&id))
			asked := false
			b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error {
				if !asked {
					asked = true
					meanwhile(t, b)
				}
				return nil
			}
			_ = b.Stores[b.ID(bEast)].Rights.Acquire(t.Context(), b.ID(aWest), []int64{id})
			require.True(t, asked)
			rights, proxies := blockRights(t, b, bEast)
			require.Zero(t, rights+proxies)
		})
	}
}

// A close that finds another epoch under the lock answers nothing: its answer would be about a lost database.
func TestACloseIsOfTheEpochOfItsQuestion_I31(t *testing.T) {
	t.Parallel()
	for _, ask := range []func(uuid.UUID) peer.Recall{peer.Close, peer.IfUnused} {
		b := delegating(t)
		uid := b.MustPut(target, nil).UID
		b.MustPut(holderNumber(0), body{"dangling": target, "unset": target})
		b.Settle()
		b.MustPut(holderNumber(0), body{"dangling": target})
		b.Settle()
		require.Equal(t, 1, rights(t, b, bEast))
		ctx, pool := t.Context(), b.Pools[b.ID(bEast)]
		paused, err := pool.Begin(ctx)
		require.NoError(t, err)
		_, err = paused.Exec(ctx, `SELECT FROM dbcontroller.foreign_target FOR KEY SHARE`)
		require.NoError(t, err)
		closed, changed := make(chan bool, 1), make(chan struct{})
		go func() {
			for { // a recall waits for a lock for some hundred milliseconds, and may end before the epoch does
				answer, err := b.Stores[b.ID(bEast)].Rights.Recall(ctx, b.ID(aWest), []peer.Recall{ask(uid)})
				done := err == nil && answer.Answers[0].Closed
				select {
				case <-changed:
					closed <- done
					return
				default:
				}
				if done {
					closed <- true
					return
				}
			}
		}()
		waitsForLock(t, pool)
		_, err = pool.Exec(ctx, `UPDATE dbcontroller.meta SET epoch = gen_random_uuid()`)
		require.NoError(t, err)
		close(changed)
		require.NoError(t, paused.Rollback(ctx))
		require.False(t, <-closed)
	}
}
