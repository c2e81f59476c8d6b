package shadow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// occupyDelete starts a delete that waits for a row, so that the deletes after it are gathered. release lets
// it go on.
func occupyDelete(t *testing.T, b *harness.Box) (release func()) {
	t.Helper()
	b.MustPut("//"+aWest+"/targets/locked", nil)
	unlock := hold(t, b, aWest, `SELECT FROM dbcontroller.shadow WHERE name = 'targets/locked' FOR UPDATE`)
	var g sync.WaitGroup
	g.Go(func() {
		_, err := b.Stores[b.ID(aWest)].Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/locked"})
		require.NoError(t, err)
	})
	stopped(t, b, aWest, 1)
	return func() { unlock(); g.Wait() }
}

// deleteAll deletes resources at once, and returns the outcomes by name.
func deleteAll(ctx context.Context, store *shadow.Store,
	requests map[string]shadow.DeleteRequest,
) (map[string]peer.DeleteResult, map[string]error) {
	results, errs := map[string]peer.DeleteResult{}, map[string]error{}
	var mu sync.Mutex
	var g sync.WaitGroup
	for what, req := range requests {
		g.Go(func() {
			result, err := store.Deletions.Delete(ctx, req)
			mu.Lock()
			defer mu.Unlock()
			results[what], errs[what] = result, err
		})
	}
	g.Wait()
	return results, errs
}

// Sixty-four deletes at the same time take a few transactions, each with its own outcome and removal record.
func TestDeletesAtTheSameTimeShareTransactions(t *testing.T) {
	t.Parallel()
	b, c := countedPair(t)
	store := b.Stores[b.ID(aWest)]
	requests := map[string]shadow.DeleteRequest{}
	for i := range 64 {
		name := fmt.Sprintf("targets/n%d", i)
		b.MustPut("//"+aWest+"/"+name, nil)
		requests[name] = shadow.DeleteRequest{Name: name, Actor: "user/" + name}
	}
	release := occupyDelete(t, b)
	c.reset(t, "before")
	results, errs := deleteAll(t.Context(), store, requests)
	transactions := c.with("commit")
	release()
	deletions := map[uuid.UUID]bool{}
	for name, result := range results {
		require.NoError(t, errs[name], name)
		require.True(t, result.Removed, name)
		deletions[result.Deletion] = true
		b.Gone("//" + aWest + "/" + name)
	}
	require.Len(t, deletions, 64)
	require.LessOrEqual(t, transactions, 16, "one for each at most while the first ones arrive, then batches")
	var actors int
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(t.Context(), `SELECT count(*) FROM dbcontroller.removal r JOIN dbcontroller.cause x ON x.id = r.cause_id
		WHERE x.actor = 'user/' || r.name AND x.root_uid = r.uid`).Scan(&actors))
	require.Equal(t, 64, actors)
	b.Settle()
	b.Audit()
}

// A delete that is refused, finds nothing, or waits for a lock neither fails nor delays its neighbours, and a
// repeated request id takes effect once (I20, I29).
func TestGatheredDeletesHaveTheirOwnOutcomes_I20_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	at := func(name string) string { return "//" + aWest + "/targets/" + name }
	for _, name := range []string{
		"plain", "asked", "old", "uid", "blocked", "cascades", "holds", "far",
		"referred", "waits",
	} {
		b.MustPut(at(name), nil)
	}
	uid := b.Get(at("uid")).UID
	old := b.Get(at("old")).Revision
	b.MustPut(at("old"), body{"n": 1.0})
	b.MustPut("//"+bEast+"/holders/blocks", body{"block": at("blocked")})
	b.MustPut("//"+bEast+"/holders/goes", body{"cascade": at("cascades")})
	b.MustPut("//"+bEast+"/holders/far", body{"cascade": at("far")})
	b.MustPut(at("holds"), body{"peer": at("referred")})
	b.Settle()
	release := occupyDelete(t, b)
	unlock := hold(t, b, aWest, `SELECT FROM dbcontroller.shadow WHERE name = 'targets/waits' FOR UPDATE`)
	late := make(chan error, 1)
	go func() {
		_, err := store.Deletions.Delete(context.Background(), shadow.DeleteRequest{Name: "targets/waits"})
		late <- err
	}()

	request, farRequest := uuid.New(), uuid.New()
	of := func(name string) shadow.DeleteRequest { return shadow.DeleteRequest{Name: "targets/" + name} }
	requests := map[string]shadow.DeleteRequest{
		"plain": of("plain"), "blocked": of("blocked"), "cascades": of("cascades"), "missing": of("missing"),
		"referred":  of("referred"),
		"old":       {Name: "targets/old", Revision: old},
		"wrong uid": {Name: "targets/uid", UID: uuid.New()},
		"asked":     {Name: "targets/asked", RequestID: request},
		"far":       {Name: "targets/far", RequestID: farRequest},
	}
	for i := range 10 {
		name := fmt.Sprintf("more%d", i)
		b.MustPut(at(name), nil)
		requests[name] = of(name)
	}
	results, errs := deleteAll(t.Context(), store, requests)
	require.Empty(t, late, "it waits for its lock")
	unlock()
	require.NoError(t, <-late)
	release()

	var blocked *peer.BlockedError
	require.ErrorAs(t, errs["blocked"], &blocked)
	require.ErrorIs(t, errs["missing"], peer.ErrNotFound)
	require.ErrorIs(t, errs["old"], peer.ErrConflict)
	require.ErrorIs(t, errs["wrong uid"], peer.ErrNotFound)
	require.Equal(t, uid, b.Get(at("uid")).UID)
	for what, err := range errs {
		switch what {
		case "blocked", "missing", "old", "wrong uid":
		case "referred":
			require.Error(t, err, "a local holder blocks it")
		default:
			require.NoError(t, err, what)
		}
	}
	for _, far := range []string{"cascades", "far"} {
		require.False(t, results[far].Removed)
		require.Equal(t, peer.Deleting, results[far].Resource.State)
	}
	for what, id := range map[string]uuid.UUID{"asked": request, "far": farRequest} {
		again, err := store.Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: "targets/" + what, RequestID: id})
		require.NoError(t, err)
		require.Equal(t, results[what].Deletion, again.Deletion, what)
	}
	b.Settle()
	b.Gone(at("plain"), at("asked"), at("cascades"), at("far"), at("waits"), at("more0"), at("more9"),
		"//"+bEast+"/holders/goes", "//"+bEast+"/holders/far")
	b.Audit()
}

// Deletes that mark, since other deployments have to act, run beside deletes that remove: each is answered
// with its own resource, deletion and removal, and its request id with the same again (I20, I29).
func TestGatheredDeletesThatMarkHaveTheirOwnOutcomes_I20_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	requests := map[string]shadow.DeleteRequest{}
	for i := range 24 {
		name := fmt.Sprintf("targets/m%d", i)
		b.MustPut("//"+aWest+"/"+name, nil)
		if i%2 == 1 {
			b.MustPut(fmt.Sprintf("//%s/holders/m%d", bEast, i), body{"cascade": "//" + aWest + "/" + name})
		}
		requests[name] = shadow.DeleteRequest{Name: name, Actor: "user/" + name, RequestID: uuid.New()}
	}
	b.Settle()
	release := occupyDelete(t, b)
	results, errs := deleteAll(t.Context(), store, requests)
	release()
	deletions := map[uuid.UUID]bool{}
	for i := range 24 {
		name := fmt.Sprintf("targets/m%d", i)
		require.NoError(t, errs[name], name)
		deletions[results[name].Deletion] = true
		require.Equal(t, i%2 == 0, results[name].Removed, name)
		if i%2 == 1 {
			require.Equal(t, name, results[name].Resource.Name)
		}
	}
	require.Len(t, deletions, 24)
	marked := map[string]shadow.DeleteRequest{}
	for name, result := range results {
		if !result.Removed {
			marked[name] = shadow.DeleteRequest{Name: name}
		}
	}
	release = occupyDelete(t, b)
	repeated, errs := deleteAll(t.Context(), store, marked)
	release()
	for name := range marked {
		require.NoError(t, errs[name], name)
		require.False(t, repeated[name].Removed, name)
		require.Equal(t, results[name].Deletion, repeated[name].Deletion, "%s is being deleted", name)
	}
	b.Settle()
	for name, req := range requests {
		again, err := store.Deletions.Delete(t.Context(), req)
		require.NoError(t, err, "%s is gone, and the answer is stored", name)
		require.Equal(t, results[name].Deletion, again.Deletion, name)
	}
	b.Audit()
}

// Of two deletes of one name in one batch one removes the resource, and the other finds nothing.
func TestTwoDeletesOfOneNameRemoveItOnce_I2_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	release := occupyDelete(t, b)
	errs := make([]error, 16)
	results := make([]peer.DeleteResult, len(errs))
	for i := range len(errs) / 2 {
		b.MustPut(fmt.Sprintf("//%s/targets/n%d", aWest, i), nil)
	}
	var g sync.WaitGroup
	for i := range errs {
		g.Go(func() {
			results[i], errs[i] = b.Stores[b.ID(aWest)].Deletions.Delete(t.Context(),
				shadow.DeleteRequest{Name: fmt.Sprintf("targets/n%d", i/2)})
		})
	}
	g.Wait()
	release()
	for i := 0; i < len(errs); i += 2 {
		first, second := errs[i], errs[i+1]
		if first != nil {
			first, second = second, first
		}
		require.NoError(t, first)
		require.ErrorIs(t, second, peer.ErrNotFound)
		require.NotEqual(t, results[i].Removed, results[i+1].Removed)
	}
	b.Settle()
	b.Audit()
}

// Deletes that share a transaction see the blockades that were committed before they got their locks.
func TestGatheredDeletesLookAfterTheLock_I3(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	requests := map[string]shadow.DeleteRequest{}
	for i := range 4 {
		name := fmt.Sprintf("targets/n%d", i)
		b.MustPut("//"+aWest+"/"+name, nil)
		b.MustPut(holderNumber(i), body{"block": "//" + aWest + "/" + name})
		requests[name] = shadow.DeleteRequest{Name: name}
	}
	b.Settle()
	conn, err := b.Pools[b.ID(aWest)].Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(ctx,
		`CREATE TEMPORARY TABLE late AS SELECT * FROM dbcontroller.blockade; DELETE FROM dbcontroller.blockade`)
	require.NoError(t, err)
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, `LOCK TABLE dbcontroller.shadow IN EXCLUSIVE MODE`) // stops locks of rows, and no reading
	require.NoError(t, err)
	var errs map[string]error
	var g sync.WaitGroup
	g.Go(func() { _, errs = deleteAll(t.Context(), store, requests) })
	stopped(t, b, aWest, 2) // one by itself, and the others together
	_, err = tx.Exec(ctx, `INSERT INTO dbcontroller.blockade SELECT * FROM late`)
	require.NoError(t, err)
	require.NoError(t, tx.Commit(ctx))
	g.Wait()
	for name, err := range errs {
		require.ErrorAs(t, err, new(*peer.BlockedError), name)
	}
	b.Audit()
}

// The same request several times at once takes effect once. A delete that makes its transaction fail fails
// alone: its neighbours are carried out, and of several deletes with one id one is carried out.
func TestAFailedBatchKeepsItsOtherDeletes_I20_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(aWest)]
	request := uuid.New()
	b.MustPut(target, nil)
	for i := range 6 {
		b.MustPut(fmt.Sprintf("//%s/targets/other%d", aWest, i), nil)
	}
	for i := range 6 {
		b.MustPut(fmt.Sprintf("//%s/targets/shared%d", aWest, i), nil)
	}
	release := occupyDelete(t, b)
	var g sync.WaitGroup
	shared, errs := uuid.New(), make([]error, 6)
	for i := range errs {
		g.Go(func() {
			_, errs[i] = store.Deletions.Delete(t.Context(),
				shadow.DeleteRequest{Name: fmt.Sprintf("targets/shared%d", i), RequestID: shared})
		})
	}
	ids := make([]uuid.UUID, 6)
	for i := range ids {
		g.Go(func() {
			result, err := store.Deletions.Delete(t.Context(), shadow.DeleteRequest{
				Name:      "targets/t",
				RequestID: request,
			})
			require.NoError(t, err)
			ids[i] = result.Deletion
		})
		g.Go(func() {
			_, err := store.Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: fmt.Sprintf("targets/other%d", i)})
			require.NoError(t, err)
		})
	}
	g.Wait()
	release()
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
	removed := 0
	for i, err := range errs {
		if name := fmt.Sprintf("//%s/targets/shared%d", aWest, i); err == nil {
			removed++
			b.Gone(name)
		} else {
			require.ErrorIs(t, err, peer.ErrRequestReused)
			require.NotNil(t, b.Get(name))
		}
	}
	require.Equal(t, 1, removed)
	b.Audit()
}

// A delete whose deadline ends while it waits has no effect.
func TestADeleteThatWaitsForATransactionEndsWithItsDeadline(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	release := occupyDelete(t, b)
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Stores[b.ID(aWest)].Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t"})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, peer.ErrUnknown)
	require.NotNil(t, b.Get(target))
}
