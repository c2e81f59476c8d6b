package shadow_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

func refusals(t *testing.T, err error) []peer.Refusal {
	t.Helper()
	var refused *peer.RefusedError
	require.ErrorAs(t, err, &refused)
	return refused.Refusals
}

func TestSaveWithForeignReferencesIsAllOrNothing_I6(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut("//"+aEast+"/targets/e", nil)

	_, err := b.Put(holder, body{"block": target, "unset": "//" + aEast + "/targets/missing"})
	r := refusals(t, err)
	require.Len(t, r, 1)
	require.Equal(t, peer.TargetMissing, r[0].Reason)
	require.Equal(t, "unset", r[0].Path)
	require.Contains(t, err.Error(), "//a.example.com/eastus2/targets/missing does not exist")
	b.Gone(holder)
	require.Equal(t, 1, b.Count(bEast, "aborted"), "the attempt is decided at once")

	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"), "the established blockades are released")
	b.Audit()

	b.MustPut(holder, body{"block": target, "unset": "//" + aEast + "/targets/e"})
	b.Settle()
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	require.Equal(t, 1, b.Count(aEast, "holder_entry"))
	b.Audit()
}

func TestSaveWhileATargetsDeploymentIsAwayNamesIt(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.SetDown(aWest, true)
	_, err := b.Put(holder, body{"block": target})
	r := refusals(t, err)
	require.Equal(t, peer.TargetUnreadable, r[0].Reason)
	b.Gone(holder)
	b.SetDown(aWest, false)
	b.Settle()
	b.Audit()
}

func TestSaveRefusesBadInputAndChangesNothing(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	for _, c := range []struct {
		name string
		body body
		says string
	}{
		{
			"//" + bEast + "/robots/r", nil,
			`"robots/r" fits no kind of b.example.com@v1: its patterns are holders/{holder}`,
		},
		{holder, body{"block": 5.0}, "field block: want the name of a resource as a string, got a number"},
		{holder, body{"list": "x"}, "field list: want a message, list or map, got a string"},
		{holder, body{"block": "//nowhere"}, `want //service/region/name`},
		{
			holder,
			body{"block": "//c.example.com/us-west2/targets/t"},
			"is not the name of a resource of kind a.example.com/Target",
		},
		{holder, body{"block": "holders/x"}, "is not the name of a resource of kind a.example.com/Target"},
	} {
		_, err := b.Put(c.name, c.body)
		var invalid *peer.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.ErrorContains(t, err, c.says)
	}
	require.Zero(t, b.Count(bEast, "shadow"))
	require.Zero(t, b.Count(bEast, "change"))
}

func TestSaveModesUidsAndRevisions(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, ctx := b.Stores[b.ID(aWest)], context.Background()
	save := func(w peer.Write) error {
		w.Name = "targets/t"
		_, err := store.Write.Save(ctx, []peer.Write{w})
		return err
	}
	require.ErrorIs(t, save(peer.Write{Mode: peer.Update}), peer.ErrNotFound)
	require.ErrorIs(t, save(peer.Write{UID: uuid.New()}), peer.ErrNotFound)
	require.NoError(t, save(peer.Write{Mode: peer.Create}))
	require.ErrorIs(t, save(peer.Write{Mode: peer.Create}), peer.ErrExists)
	r := b.Get(target)
	require.ErrorIs(t, save(peer.Write{UID: uuid.New()}), peer.ErrConflict)
	require.ErrorIs(t, save(peer.Write{Revision: r.Revision + 1}), peer.ErrConflict)
	require.NoError(t, save(peer.Write{
		Mode: peer.Update, UID: r.UID, Revision: r.Revision, Body: body{"x": 1.0},
		Labels: map[string]string{"l": "v"},
	}))
	u := b.Get(target)
	require.Greater(t, u.Revision, r.Revision)
	require.Equal(t, r.Generation+1, u.Generation)
	require.Equal(t, r.UID, u.UID)
	require.Equal(t, map[string]string{"l": "v"}, u.Labels)
	require.NoError(t, save(peer.Write{Body: body{"x": 1.0}}))
	require.Equal(t, u.Generation, b.Get(target).Generation, "the body is the same")
}

func TestResourcesOfOneBatchMayReferToOneAnotherInAnyOrder(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store := b.Stores[b.ID(bEast)]
	_, err := store.Write.Save(context.Background(), []peer.Write{
		{Name: "holders/x", Body: body{"near": body{"block": "holders/y"}}},
		{Name: "holders/y", Body: body{"near": body{"cascade": "holders/x", "unset": "holders/y"}}},
	})
	require.NoError(t, err)
	require.Equal(t, 3, b.Count(bEast, "reference"))
	_, err = store.Write.Save(context.Background(), []peer.Write{
		{Name: "holders/p", Body: body{"near": body{"block": "holders/q"}}},
		{Name: "holders/r", Body: body{"near": body{"block": "holders/none"}}},
	})
	require.Equal(t, peer.TargetMissing, refusals(t, err)[0].Reason)
	require.Len(t, refusals(t, err), 2)
	require.Equal(t, 2, b.Count(bEast, "shadow"))
	b.Audit()
}

func TestSaveWithinAnApplicationsTransaction(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	store, pool, ctx := b.Stores[b.ID(bEast)], b.Pools[b.ID(bEast)], context.Background()
	_, err := pool.Exec(ctx, `CREATE TABLE public.mine (id text PRIMARY KEY)`)
	require.NoError(t, err)
	write := func(w peer.Write, commit bool) error {
		_, err := store.Write.SaveIn(ctx, &shadow.UserTransaction{Pool: pool, Also: func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO public.mine VALUES ($1)`, w.Name)
			if err == nil && !commit {
				err = errors.New("changed my mind")
			}
			return err
		}}, []peer.Write{w})
		return err
	}
	require.NoError(t, write(peer.Write{Name: "holders/x"}, true))
	require.ErrorContains(t, write(peer.Write{Name: "holders/y"}, false), "changed my mind")
	require.NoError(t, write(peer.Write{Name: "holders/z", Body: body{"near": body{"block": "holders/x"}}}, true))
	require.NoError(t, write(peer.Write{Name: "holders/v", Body: body{"block": target}}, true))
	require.ErrorContains(t, write(peer.Write{Name: "holders/w", Body: body{"block": target}}, false),
		"changed my mind")
	b.Gone("//"+bEast+"/holders/y", "//"+bEast+"/holders/w")
	_, err = b.Delete("//" + bEast + "/holders/x")
	require.ErrorContains(t, err, "holders/z (near.block)")

	b.MustPut(holder, body{"block": target})
	require.NoError(t, write(peer.Write{Name: "holders/h", Body: body{"block": target, "note": "mine"}}, true))
	b.Settle()
	b.Audit()
}

func TestAnUpdateReleasesWhatItDroppedAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"block": target, "unset": target, "list": []any{target, target2}})
	b.Settle()
	b.Audit()
	b.MustPut(holder, body{"block": target2, "list": []any{target2, target2}})
	b.Settle()
	b.Audit()
	require.True(t, b.MustDelete(target).Removed || b.Get(target).State == peer.Deleting)
	b.Settle()
	b.Gone(target)
	_, err := b.Delete(target2)
	require.ErrorContains(t, err, holder+" (block)")
	b.Audit()
}

func TestConcurrentWritersOfOneResourceLoseNothing(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, body{"n": 0.0})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				for {
					r := b.Get(target)
					var v struct{ N float64 }
					if err := json.Unmarshal(r.Body, &v); err != nil {
						t.Error(err)
						return
					}
					_, err := b.Stores[b.ID(aWest)].Write.Save(context.Background(),
						[]peer.Write{{Name: "targets/t", Revision: r.Revision, Body: body{"n": v.N + 1}}})
					if err == nil {
						break
					}
					if !errors.Is(err, peer.ErrConflict) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	require.JSONEq(t, `{"n": 80}`, string(b.Get(target).Body))
}

func TestAWriteValidatedBeforeASwitchIsRetried(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	ctx, store := context.Background(), b.Stores[b.ID(bEast)]
	calls := 0
	b.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error {
		if calls++; calls == 1 {
			// Another process switches the version while the reference is being established.
			_, err := b.Pools[b.ID(bEast)].Exec(ctx,
				`UPDATE dbcontroller.meta SET version = 'v2', generation = generation + 1`)
			require.NoError(t, err)
			require.NoError(t, store.Admin.Switch(ctx, store.Model()))
		}
		return nil
	}
	b.MustPut(holder, body{"block": target})
	require.Equal(t, 2, calls)
	b.Settle()
	require.Equal(t, 1, b.Count(aWest, "blockade"))
	b.Audit()
}

func TestADatabaseBelongsToOneDeployment(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	_, err := shadow.Open(context.Background(), shadow.Config{Pool: b.Pools[b.ID(aWest)], Deployment: b.ID(aEast)})
	require.ErrorContains(t, err, "this database belongs to a.example.com/us-west2, not to a.example.com/eastus2")
}

// I29: the same request id returns the one result, in any later state; a refused request never commits.
func TestARequestIDGivesTheSameAnswer_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store := context.Background(), b.Stores[b.ID(bEast)]
	create := []peer.Write{{Mode: peer.Create, Name: "holders/h", Body: body{"block": target}}}
	refusedID, id := uuid.New(), uuid.New()

	_, err := store.Write.SaveRequested(ctx, refusedID, create)
	require.Equal(t, peer.TargetMissing, refusals(t, err)[0].Reason)
	b.MustPut(target, nil)
	_, again := store.Write.SaveRequested(ctx, refusedID, create)
	require.Equal(t, err, again, "it was refused, though it would be accepted now")

	b.SetDown(aWest, true)
	_, err = store.Write.SaveRequested(ctx, id, create)
	require.Equal(t, peer.TargetUnreadable, refusals(t, err)[0].Reason)
	b.SetDown(aWest, false)
	first, err := store.Write.SaveRequested(ctx, id, create)
	require.NoError(t, err, "an undecided request can be repeated")
	b.MustPut(holder, body{"note": "changed"})
	second, err := store.Write.SaveRequested(ctx, id, create)
	require.NoError(t, err)
	require.Equal(t, first[0].UID, second[0].UID)
	require.Equal(t, first[0].Revision, second[0].Revision)
	require.JSONEq(t, `{"note": "changed"}`, string(b.Get(holder).Body), "it took effect once")

	_, err = store.Write.SaveRequested(ctx, id, []peer.Write{{Mode: peer.Create, Name: "holders/other"}})
	require.ErrorIs(t, err, peer.ErrRequestReused)
	exists := uuid.New()
	for range 2 {
		_, err = store.Write.SaveRequested(ctx, exists, []peer.Write{{Mode: peer.Create, Name: "holders/h"}})
		require.ErrorIs(t, err, peer.ErrExists)
	}
	b.Settle()
	b.Audit()
}

func TestConcurrentWritesWithOneRequestIDTakeEffectOnce_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	id, store := uuid.New(), b.Stores[b.ID(bEast)]
	uids := make([]uuid.UUID, 8)
	var wg sync.WaitGroup
	for i := range uids {
		wg.Go(func() {
			saved, err := store.Write.SaveRequested(context.Background(), id,
				[]peer.Write{{Name: "holders/h", Body: body{"block": target}}})
			if err != nil {
				t.Error(err)
				return
			}
			uids[i] = saved[0].UID
		})
	}
	wg.Wait()
	for _, uid := range uids {
		require.Equal(t, uids[0], uid)
	}
	require.Equal(t, int64(1), b.Get(holder).Generation)
	require.Equal(t, 1, b.Count(bEast, "change"))
	b.Settle()
	b.Audit()
}
