package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// outcome is the result of one of several concurrent writes.
type outcome struct {
	saved []peer.Resource
	err   error
}

// occupy starts writes that wait for a row, so that the writes after them are gathered. It returns when all
// of them wait; release lets them go on, and returns when they have ended.
func occupy(t *testing.T, b *harness.Box) (release func()) {
	t.Helper()
	b.MustPut("//"+aWest+"/targets/locked", nil)
	unlock := hold(t, b, aWest, `SELECT FROM dbcontroller.shadow WHERE name = 'targets/locked' FOR UPDATE`)
	var g sync.WaitGroup
	for i := range 4 {
		g.Go(func() {
			b.MustPut(fmt.Sprintf("//%s/targets/locked/children/%d", aWest, i), nil)
		})
	}
	stopped(t, b, aWest, 4)
	return func() { unlock(); g.Wait() }
}

// Writes that run at the same time share a transaction, and each has its own outcome: a write that is
// refused, waits for a lock, or fails, does not fail or delay the others (I20).
func TestGatheredWritesHaveTheirOwnOutcomes_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	b.MustPut(target, nil)
	old := b.MustPut(target2, nil)
	b.MustPut(target2, body{"n": 1.0})
	release := occupy(t, b)

	writes, requests := map[string]peer.Write{
		"update":            {Name: "targets/t", Body: body{"n": 2.0}},
		"old revision":      {Name: "targets/t2", Revision: old.Revision, Body: body{"n": 3.0}},
		"exists":            {Name: "targets/t2", Mode: peer.Create},
		"missing target":    {Name: "targets/x", Body: body{"peer": "targets/missing"}},
		"local reference":   {Name: "targets/y", Body: body{"peer": "targets/t"}},
		"reference, locked": {Name: "targets/z", Body: body{"peer": "targets/locked"}},
	}, map[string]uuid.UUID{}
	for i := range 20 {
		what := fmt.Sprint("create ", i)
		writes[what] = peer.Write{Name: fmt.Sprintf("targets/new%d", i), Labels: map[string]string{"i": fmt.Sprint(i)}}
		requests[what] = uuid.New()
	}
	results := map[string]outcome{}
	var mu sync.Mutex
	var quick, slow sync.WaitGroup
	for what, w := range writes {
		wait := &quick
		if what == "reference, locked" {
			wait = &slow
		}
		wait.Go(func() {
			var o outcome
			if id, asked := requests[what]; asked {
				o.saved, o.err = store.Write.SaveRequested(t.Context(), id, []peer.Write{w})
			} else {
				o.saved, o.err = store.Write.Save(t.Context(), []peer.Write{w})
			}
			mu.Lock()
			defer mu.Unlock()
			results[what] = o
		})
	}
	quick.Wait() // while the row is locked
	release()
	slow.Wait()

	require.ErrorIs(t, results["old revision"].err, peer.ErrConflict)
	require.ErrorIs(t, results["exists"].err, peer.ErrExists)
	require.Equal(t, peer.TargetMissing, refusals(t, results["missing target"].err)[0].Reason)
	require.Len(t, results, 26)
	for what, o := range results {
		switch what {
		case "old revision", "exists", "missing target":
			continue
		}
		require.NoError(t, o.err, what)
		require.Equal(t, writes[what].Name, o.saved[0].Name, what)
		stored := b.Get("//" + aWest + "/" + o.saved[0].Name)
		require.Equal(t, o.saved[0].Revision, stored.Revision, what)
		require.Equal(t, o.saved[0].Labels, stored.Labels, what)
		require.JSONEq(t, string(o.saved[0].Body), string(stored.Body), what)
	}
	for what, id := range requests {
		again, err := store.Write.SaveRequested(t.Context(), id, []peer.Write{writes[what]})
		require.NoError(t, err)
		require.Equal(t, results[what].saved[0].UID, again[0].UID, what)
		require.Equal(t, results[what].saved[0].Revision, again[0].Revision, what)
	}
	var transactions int
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(),
		`SELECT count(DISTINCT xmin::text) FROM dbcontroller.shadow WHERE name LIKE 'targets/new%'`).
		Scan(&transactions))
	require.Less(t, transactions, 20, "the creates shared transactions")
	b.Settle()
	b.Audit()
}

// Two writes of one resource do not share a transaction: neither is lost.
func TestGatheredWritesOfOneResourceLoseNothing_I10(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	b.MustPut(target, nil)
	release := occupy(t, b)
	var g sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	for i := range 8 {
		g.Go(func() {
			_, err := store.Write.Save(ctx, []peer.Write{{
				Name: "targets/t", Mode: peer.Update, Mask: []string{fmt.Sprintf("body.n%d", i)},
				Body: body{fmt.Sprintf("n%d", i): 1.0},
			}})
			require.NoError(t, err)
		})
	}
	g.Wait()
	release()
	got := string(b.Get(target).Body)
	for i := range 8 {
		require.Contains(t, got, fmt.Sprintf(`"n%d"`, i))
	}
	require.EqualValues(t, 9, b.Get(target).Generation)
	b.Audit()
}

// A write waits for a row that another transaction has locked until the caller's deadline, also when the
// session's lock_timeout ends several statements.
func TestAWriteWaitsForALockUntilItsDeadline(t *testing.T) {
	t.Parallel()
	timeouts := &timedOut{}
	b := newPair(t, func(cfg *shadow.Config) {
		impatient := cfg.Pool.Config().Copy()
		impatient.ConnConfig.RuntimeParams["lock_timeout"] = "20"
		impatient.ConnConfig.Tracer = timeouts
		pool, err := pgxpool.NewWithConfig(context.Background(), impatient)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		cfg.Pool = pool
	})
	b.MustPut(target, nil)
	release := hold(t, b, aWest, `SELECT FROM dbcontroller.shadow WHERE name = 'targets/t' FOR UPDATE`)
	stored := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
		defer cancel()
		_, err := b.Stores[b.ID(aWest)].Write.Save(ctx, []peer.Write{{Name: "targets/t", Body: body{"n": 1.0}}})
		stored <- err
	}()
	require.Eventually(t, func() bool { return timeouts.n.Load() > 3 }, wait.Limit, time.Millisecond)
	release()
	require.NoError(t, <-stored)
}

// timedOut counts the statements that waited for a lock for too long.
type timedOut struct{ n atomic.Int64 }

func (o *timedOut) count(err error) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "55P03" {
		o.n.Add(1)
	}
}

func (o *timedOut) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (o *timedOut) TraceQueryEnd(_ context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	o.count(d.Err)
}

func (o *timedOut) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (o *timedOut) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	o.count(d.Err)
}

func (o *timedOut) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// A write that makes its transaction fail fails alone: its neighbours are stored (I20). A repeated request
// takes effect once, and of several writes with one id one is stored (I29).
func TestAFailedBatchKeepsItsOtherWrites_I20_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	release := occupy(t, b)
	request, shared := uuid.New(), uuid.New()
	var g sync.WaitGroup
	uids, errs := make([]uuid.UUID, 6), make([]error, 6)
	for i := range uids {
		g.Go(func() { // the same request, several times at once
			saved, err := store.Write.SaveRequested(t.Context(), request, []peer.Write{{Name: "targets/same"}})
			if err == nil {
				uids[i] = saved[0].UID
			}
			require.NoError(t, err)
		})
		g.Go(func() {
			_, errs[i] = store.Write.SaveRequested(t.Context(), shared,
				[]peer.Write{{Name: fmt.Sprintf("targets/shared%d", i)}})
		})
		g.Go(func() {
			_, err := store.Write.Save(t.Context(), []peer.Write{{Name: fmt.Sprintf("targets/other%d", i)}})
			require.NoError(t, err)
		})
	}
	g.Wait()
	release()
	for _, uid := range uids {
		require.Equal(t, b.Get("//"+aWest+"/targets/same").UID, uid)
	}
	stored := 0
	for i, err := range errs {
		if name := fmt.Sprintf("//%s/targets/shared%d", aWest, i); err == nil {
			stored++
			require.NotNil(t, b.Get(name))
		} else {
			require.ErrorIs(t, err, peer.ErrRequestReused)
			b.Gone(name)
		}
	}
	require.Equal(t, 1, stored)
	b.Audit()
}

// A write whose deadline ends while it waits has no effect.
func TestAWriteThatWaitsForATransactionEndsWithItsDeadline(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	release := occupy(t, b)
	defer release()
	_, err := store.Write.Save(ctx, []peer.Write{{Name: "targets/late"}})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, peer.ErrUnknown)
}

// The caller of a write whose shared transaction runs when the deadline passes is told that the write may
// take effect, and it does.
func TestAWriteWhoseTransactionRunsAtItsDeadlineIsUnknown_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	tx, err := b.Pools[b.ID(aWest)].Begin(context.Background())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	// stops transactions before their commit
	_, err = tx.Exec(context.Background(), `LOCK TABLE dbcontroller.resource IN SHARE MODE`)
	require.NoError(t, err)
	save := func(ctx context.Context, name string, waiting int) (answered chan error) {
		answered = make(chan error, 1)
		go func() { _, err := store.Write.Save(ctx, []peer.Write{{Name: name}}); answered <- err }()
		stopped(t, b, aWest, waiting)
		return answered
	}
	first := save(t.Context(), "targets/first", 1) // runs by itself: later writes share transactions
	ctx, cancel := context.WithCancel(t.Context())
	late := save(ctx, "targets/late", 2)
	cancel()
	require.ErrorIs(t, <-late, peer.ErrUnknown)
	require.NoError(t, tx.Rollback(context.Background()))
	require.NoError(t, <-first)
	require.Eventually(t, func() bool {
		var n int
		err := b.Pools[b.ID(aWest)].QueryRow(context.Background(),
			`SELECT count(*) FROM dbcontroller.shadow WHERE name = 'targets/late'`).Scan(&n)
		return err == nil && n == 1
	}, wait.Limit, 5*time.Millisecond)
	b.Audit()
}

// Attempts that arrive in one call share a transaction, each by itself: an attempt that is refused, closed,
// too late, or whose target is locked, neither fails nor delays its neighbours, and the call may be repeated
// (I7, I8, I20).
func TestAttemptsOfOneCallHaveTheirOwnOutcomes_I7_I8_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store, from := t.Context(), b.Stores[b.ID(aWest)], b.ID(bEast)
	uid := b.MustPut(target, nil).UID
	b.MustPut(target2, nil)
	unlock := sync.OnceFunc(hold(t, b, aWest, `SELECT FROM dbcontroller.shadow WHERE name = 'targets/t2' FOR UPDATE`))
	defer unlock()
	attempt := func(change func(*peer.EstablishReference)) peer.EstablishAttempt {
		ref := reference("block", schema.Block, uuid.New())
		if change != nil {
			change(&ref)
		}
		return peer.EstablishAttempt{Attempt: newAttempt(), Refs: []peer.EstablishReference{ref}}
	}
	good, missing, other := attempt(nil), attempt(func(r *peer.EstablishReference) {
		r.TargetName = "targets/none"
	}), attempt(nil)
	locked := attempt(func(r *peer.EstablishReference) { r.TargetName = "targets/t2" })
	replaced, kind := attempt(func(r *peer.EstablishReference) {
		r.TargetUID = uuid.New()
	}), attempt(func(r *peer.EstablishReference) { r.TargetKind = "Robot" })
	closed, late, large := attempt(nil), attempt(nil), attempt(nil)
	late.Until = time.Now().Add(-time.Second)
	for range peer.MaxTogether {
		large.Refs = append(large.Refs, reference("block", schema.Block, uuid.New()))
	}
	require.NoError(t, store.Targets.Release(ctx, from, uuid.Nil, nil, []peer.AttemptID{closed.Attempt}))
	other.Until = time.Now().Add(time.Minute)

	asked := []peer.EstablishAttempt{closed, good, missing, locked, replaced, kind, late, large, other}
	for range 2 { // and repeated
		out := store.Targets.EstablishTogether(ctx, from, asked)
		refusedOnes := []error{out[2].Err, out[3].Err, out[7].Err} // a missing target may be a locked one
		for _, err := range refusedOnes {
			require.ErrorIs(t, err, peer.ErrLeftOut)
		}
		require.Equal(t, peer.AttemptClosed, refusals(t, out[0].Err)[0].Reason)
		require.Equal(t, peer.TargetReplaced, refusals(t, out[4].Err)[0].Reason)
		require.Equal(t, peer.UnknownKind, refusals(t, out[5].Err)[0].Reason)
		require.ErrorIs(t, out[6].Err, context.DeadlineExceeded)
		for _, i := range []int{1, 8} {
			require.NoError(t, out[i].Err)
			require.Equal(t, []uuid.UUID{uid}, out[i].Established.UIDs)
		}
		var established []peer.AttemptID
		var transactions int
		require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(ctx,
			`SELECT array_agg(attempt), count(DISTINCT xmin::text) FROM dbcontroller.blockade`).
			Scan(&established, &transactions))
		require.ElementsMatch(t, []peer.AttemptID{good.Attempt, other.Attempt}, established)
		require.Equal(t, 1, transactions)
	}
	unlock()
	_, err := store.Targets.Establish(ctx, from, locked.Attempt, locked.Refs)
	require.NoError(t, err)
	require.Empty(t, store.Targets.EstablishTogether(ctx, from, nil))
}

// An attempt whose values PostgreSQL refuses makes the transaction fail that it shares: none of the attempts
// counts as established, and each can be repeated by itself (I8, I20).
func TestAFailedBatchKeepsItsOtherAttempts_I8_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store, from := t.Context(), b.Stores[b.ID(aWest)], b.ID(bEast)
	b.MustPut(target, nil)
	asked := make([]peer.EstablishAttempt, 3)
	for i := range asked {
		asked[i] = peer.EstablishAttempt{
			Attempt: newAttempt(),
			Refs:    []peer.EstablishReference{reference("block", schema.Block, uuid.New())},
		}
	}
	asked[1].Refs[0].HolderName = "holders/\x00"
	established := func() (attempts []peer.AttemptID) {
		require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(ctx,
			`SELECT array_agg(attempt) FROM dbcontroller.blockade`).Scan(&attempts))
		return attempts
	}
	for _, o := range store.Targets.EstablishTogether(ctx, from, asked) {
		require.ErrorIs(t, o.Err, peer.ErrLeftOut)
	}
	require.Empty(t, established())
	for i, a := range asked {
		_, err := store.Targets.Establish(ctx, from, a.Attempt, a.Refs)
		require.Equal(t, i == 1, err != nil, "%d: %v", i, err)
	}
	require.ElementsMatch(t, []peer.AttemptID{asked[0].Attempt, asked[2].Attempt}, established())
}
