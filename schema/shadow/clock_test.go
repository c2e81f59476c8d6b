package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// exec runs a statement of a test at a deployment's database.
func exec(t *testing.T, b *harness.Box, deployment, sql string, args ...any) {
	t.Helper()
	_, err := b.Pools[b.ID(deployment)].Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

// abandoned returns a function that makes the target's deployment expire and remove the first attempt's
// blockade. Then the clock of the holder's database jumps ahead by more than a day, the ABORTED decision is
// removed by its age, and the clock comes back. Later calls do nothing but count.
func abandoned(t *testing.T, b *harness.Box, tries *int) func() {
	return func() {
		if *tries++; *tries > 1 {
			return
		}
		b.Expire(aWest)
		require.NoError(t, b.Resolve(b.ID(aWest)))
		require.Zero(t, b.Count(aWest, "blockade"))
		require.Equal(t, 1, b.Count(bEast, "aborted"))
		exec(t, b, bEast, `UPDATE dbcontroller.attempt SET decided_at = decided_at - interval '26 hours'`)
		_, err := b.Stores[b.ID(bEast)].Admin.Tidy(context.Background())
		require.NoError(t, err)
		require.Zero(t, b.Count(bEast, "aborted"))
	}
}

// An ABORTED decision is forgotten because the clock jumps ahead and back, while its attempt is young by
// every clock: the attempt still cannot commit, and the write is tried under another attempt.
func TestAForgottenDecisionHoldsAgainstALateCommit_I5_I8(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	tries := 0
	b.AfterEstablish = abandoned(t, b, &tries)
	b.MustPut(holder, body{"block": target})
	require.Equal(t, 2, tries)
	b.Settle()
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	b.Audit()
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// The same for a reference that is established again at a target's database that has lost it.
func TestAForgottenDecisionHoldsAgainstALateRepair_I5_I8(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.Settle()
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore()
	b.Recover(aWest)
	tries := 0
	b.AfterEstablish = abandoned(t, b, &tries)
	b.Settle()
	require.Equal(t, 2, tries)
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	b.Audit()
	_, err := b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// An attempt older than the retention of decisions does not commit, with or without a decision.
func TestAnOldAttemptCannotCommit_I5(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	store.SetClock(func() time.Time { return time.Now().Add(-peer.MaxAttemptAge - time.Minute) })
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := store.Write.Save(soon, []peer.Write{{Name: "targets/t"}})
	require.ErrorIs(t, err, peer.ErrAborted)
	require.Nil(t, b.Get(target))
	store.SetClock(time.Now)
	_, err = store.Write.Save(t.Context(), []peer.Write{{Name: "targets/t"}})
	require.NoError(t, err)
}

// Rows that are old by the database's clock but not by the process's are kept: one of the clocks has jumped.
func TestOneClockForgetsNothing_I5_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	store := b.Stores[b.ID(aWest)]
	_, err := store.Attempts.Answer(t.Context(), b.ID(bEast),
		[]peer.Question{{Key: peer.BlockadeKey{Attempt: newAttempt(), Path: "block"}, Expired: true}})
	require.NoError(t, err)
	require.NoError(t, store.Targets.Release(t.Context(), b.ID(bEast), uuid.Max, nil, []peer.AttemptID{newAttempt()}))
	id := uuid.New()
	_, err = store.Write.SaveRequested(t.Context(), id, []peer.Write{{Name: "targets/t", Body: body{}}})
	require.NoError(t, err)
	exec(t, b, aWest,
		`INSERT INTO dbcontroller.attempt SELECT (jsonb_populate_record(a, jsonb_build_object('id', gen_random_uuid(), 'committed', true))).* FROM dbcontroller.attempt a`)
	left := func() (n int) {
		require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(), `SELECT (SELECT count(*) FROM dbcontroller.attempt)
			+ (SELECT count(*) FROM dbcontroller.closed_attempt) + (SELECT count(*) FROM dbcontroller.request)`).Scan(&n))
		return n
	}
	require.Equal(t, 4, left())
	exec(t, b, aWest, `UPDATE dbcontroller.attempt SET decided_at = decided_at - interval '26 hours'`)
	exec(t, b, aWest, `UPDATE dbcontroller.closed_attempt SET closed_at = closed_at - interval '26 hours'`)
	exec(t, b, aWest, `UPDATE dbcontroller.request SET created_at = created_at - interval '26 hours'`)
	store.SetClock(func() time.Time { return time.Now().Add(-26 * time.Hour) })
	_, err = store.Admin.Tidy(t.Context())
	require.NoError(t, err)
	require.Equal(t, 4, left())
	store.SetClock(time.Now)
	_, err = store.Admin.Tidy(t.Context())
	require.NoError(t, err)
	require.Zero(t, left())
}

// The clock of the target's database goes back by an hour: expiries that crashed writers and a crashed delete
// left behind are then further ahead than any valid one, and delay no delete.
func TestAClockThatGoesBackKeepsNoDeleteWaiting_I28(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.Settle()
	ref := reference("block", schema.Block, uuid.New())
	for _, name := range []string{"targets/t", "targets/t2"} {
		ref.TargetName = name
		_, err := b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), newAttempt(),
			[]peer.EstablishReference{ref})
		require.NoError(t, err)
	}
	exec(t, b, aWest,
		`INSERT INTO dbcontroller.closing SELECT id, gen_random_uuid(), now() + interval '6 s' FROM dbcontroller.shadow`)
	exec(t, b, aWest, `UPDATE dbcontroller.blockade SET expires_at = expires_at + interval '1 hour'`)
	exec(t, b, aWest, `UPDATE dbcontroller.closing SET until = until + interval '1 hour'`)
	_, err := b.Delete(target)
	require.NoError(t, err)
	require.NoError(t, b.Resolve(b.ID(aWest)))
	require.Zero(t, b.Count(aWest, "blockade"))
	b.MustPut(holder, body{"block": target2}) // the row of closing does not count
	b.MustPut("//"+aWest+"/targets/local", body{"peer": target2})
	_, err = b.Stores[b.ID(aWest)].Admin.Tidy(t.Context())
	require.NoError(t, err)
	var closing int
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.closing`).Scan(
		&closing))
	require.Zero(t, closing, "the clock would reach their times again")
	b.Settle()
	b.Audit()
}

// A process that crashed before the clock went back does not keep its shards until the clock has caught up.
func TestAClockThatGoesBackKeepsNoShards_I18_I28(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	dead := store.Leases("dead", time.Second)
	_, err := dead.Renew(t.Context(), uuid.Nil, true)
	require.NoError(t, err)
	exec(t, b, aWest, `UPDATE dbcontroller.member SET expires_at = expires_at + interval '1 hour'`)
	grant, err := store.Leases("living", time.Second).Renew(t.Context(), uuid.Nil, true)
	require.NoError(t, err)
	require.Len(t, grant.Shards, schema.RingSize)
}

// The clock of the database goes back by an hour: a value without a right that was postponed is due
// impossibly late, and is asked for all the same.
func TestAClockThatGoesBackKeepsNoValueWaiting_I28(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id) VALUES (1)`)
	a.Capture(a.ID(shop)) // its target does not exist yet
	require.Equal(t, []string{`customer_id ["1"] missing`}, a.noted())
	a.exec(a.crm, `INSERT INTO customers VALUES (1, 'c')`)
	exec(t, a.Box, shop, `UPDATE dbcontroller.lacking SET due = due + interval '1 hour'`)
	process := a.SecondProcess(shop, shadow.Config{Delegations: true})
	_, err := process.DeletedRows.DeleteRows(t.Context()) // which reads the attached tables
	require.NoError(t, err)
	_, err = process.RightRequests.AcquireForRows(t.Context())
	require.NoError(t, err)
	a.Settle() // the answer to the confirm
	require.Empty(t, a.noted())
}
