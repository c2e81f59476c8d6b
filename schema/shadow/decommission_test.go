package shadow_test

import (
	"context"
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
)

func decommission(t *testing.T, b *harness.Box, at, gone string, blocking schema.Behaviour) {
	t.Helper()
	err := b.Stores[b.ID(at)].Admin.Decommission(t.Context(), shadow.Decommissioned{
		Deployment: b.ID(gone),
		Blocking:   blocking, Reason: "burnt down", By: "operator/ann",
	})
	require.NoError(t, err)
}

// A deletion that waits for an unreachable deployment waits exactly until an operator decommissions it.
func TestWhatADecommissionedDeploymentHeldIsLetGo_I15(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Times.DeleteTimeout = 200 * time.Millisecond })
	t3, t4, t5 := targetName("t3"), targetName("t4"), targetName("t5")
	for _, name := range []string{target, target2, t3, t4, t5} {
		b.MustPut(name, nil)
	}
	b.MustPut(holder, body{"block": target})
	b.MustPut(holder2, body{"cascade": target2})
	mustOwn(t, b, "//"+bEast+"/holders/owned", nil, owner(t, t3, "Target"))
	b.Settle()
	b.MustPut("//"+bEast+"/holders/h4", body{"unset": t4}) // not confirmed
	_, err := b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), newAttempt(),
		[]peer.EstablishReference{{
			HolderUID: uuid.New(), HolderKind: "Holder", HolderName: "holders/h5", Path: "block", TargetKind: "Target",
			TargetName: "targets/t5", Behaviour: schema.Block,
		}})
	require.NoError(t, err)
	b.SetDown(bEast, true)
	b.MustDelete(target2)
	b.MustDelete(t3)
	b.Expire(aWest)
	onlyHere := func() {
		for action := schema.Confirm; action <= schema.CleanUpDecommissioned; action++ {
			_, _ = b.Do(b.ID(aWest), action)
		}
		_, err := b.Do(b.ID(aWest), schema.Finalise)
		require.NoError(t, err)
	}
	onlyHere()
	for _, name := range []string{target, t4, t5} {
		_, err := b.Delete(name)
		require.Error(t, err, name)
	}
	for _, name := range []string{target2, t3} {
		require.Equal(t, peer.Deleting, b.Get(name).State, name)
	}

	decommission(t, b, aWest, bEast, schema.Unset)
	decommission(t, b, aWest, bEast, schema.CascadeDelete) // the first decision counts
	onlyHere()
	b.Gone(target2, t3)
	for _, name := range []string{target, t4, t5} {
		require.True(t, b.MustDelete(name).Removed, name)
	}
	said, err := b.Stores[b.ID(aWest)].Gate.Decommissioned(t.Context())
	require.NoError(t, err)
	require.Len(t, said, 1)
	require.Equal(t, schema.Unset, said[0].Blocking)
	require.Equal(t, "burnt down", said[0].Reason)
	require.False(t, said[0].Working)
	for _, table := range []string{"blockade", "holder_entry", "notice", "ownee_entry", "work", "shadow"} {
		require.Zero(t, b.Count(aWest, table), table)
	}
}

func TestReferencesToADecommissionedDeploymentAct_I1(t *testing.T) {
	t.Parallel()
	for _, blocking := range []schema.Behaviour{schema.Unset, schema.CascadeDelete} {
		t.Run(blocking.String(), func(t *testing.T) {
			t.Parallel()
			b := newBox(t, nil)
			in := func(name string) string { return "//" + bEast + "/holders/" + name }
			west, east := target, "//"+aEast+"/targets/t"
			b.MustPut(west, nil)
			b.MustPut(east, nil)
			b.MustPut(in("blocks"), body{"block": west, "list": []any{west, east}})
			b.MustPut(in("cascades"), body{"cascade": west})
			b.MustPut(in("dangles"), body{"dangling": west})
			b.MustPut(in("elsewhere"), body{"block": east})
			b.MustPut(in("last"), body{"near": body{"block": in("cascades")}})
			mustOwn(t, b, in("owned"), nil, owner(t, west, "Target"))
			mustOwn(t, b, in("both"), nil, owner(t, west, "Target"), owner(t, east, "Target"))
			kept := owner(t, west, "Target")
			kept.UnsetOnDelete = true
			mustOwn(t, b, in("kept"), nil, kept)
			b.Settle()
			mustOwn(t, b, in("unchecked"), nil, owner(t, "//"+aWest+"/targets/nobody", "Target"))
			b.SetDown(aWest, true)
			b.Settle()
			require.NotNil(t, b.Get(in("owned")), "unreachable is not gone")

			// blocks has two references to west, of which list unsets
			plan := map[schema.Behaviour]shadow.DecommissionPlan{
				schema.Unset: {Deleted: 1, Unset: 2, Dangling: 1, Owned: 4}, schema.CascadeDelete: {
					Deleted: 2,
					Unset:   1, Dangling: 1, Owned: 4,
				},
			}[blocking]
			planned, err := b.Stores[b.ID(bEast)].Admin.PlanDecommission(t.Context(), b.ID(aWest), blocking)
			require.NoError(t, err)
			require.Equal(t, plan, planned)
			planned, err = b.Stores[b.ID(aWest)].Admin.PlanDecommission(t.Context(), b.ID(bEast), blocking)
			require.NoError(t, err)
			require.Equal(t, shadow.DecommissionPlan{Released: int64(b.Count(aWest, "blockade"))}, planned)
			require.NotZero(t, planned.Released)

			decommission(t, b, bEast, aWest, blocking)
			b.Settle()
			b.Gone(in("owned"), in("unchecked"))
			require.Equal(t, peer.Deleting, b.Get(in("cascades")).State,
				"as with any cascade, another holder blocks it")
			if blocking == schema.Unset {
				require.JSONEq(t, fmt.Sprintf(`{"list": [%q]}`, east), string(b.Get(in("blocks")).Body))
			} else {
				b.Gone(in("blocks"))
			}
			require.Len(t, b.Get(in("both")).Owners, 1)
			require.Empty(t, b.Get(in("kept")).Owners)
			require.Contains(t, string(b.Get(in("dangles")).Body), "dangling")
			require.Contains(t, string(b.Get(in("elsewhere")).Body), "block")
			b.MustPut(in("last"), nil)
			b.Settle()
			b.Gone(in("cascades"))
			require.Zero(t, b.Count(bEast, "work"))
			pointed, err := b.Stores[b.ID(bEast)].Attempts.ReferencedDeployments(t.Context())
			require.NoError(t, err)
			require.NotContains(t, pointed, b.ID(aWest))
		})
	}
}

func TestADecommissionedDeploymentIsRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, nil)
	attempt := newAttempt()
	decommission(t, b, aWest, bEast, schema.Unset)
	decommission(t, b, bEast, aWest, schema.Unset)
	b.Settle()
	// Also in a process that has not read the decommissioning yet.
	for _, store := range []*shadow.Store{b.Stores[b.ID(aWest)], b.SecondProcess(aWest, shadow.Config{})} {
		_, err := store.Targets.Establish(t.Context(), b.ID(bEast), attempt,
			[]peer.EstablishReference{reference("block", schema.Block, uuid.New())})
		require.ErrorContains(t, err, "decommissioned")
		_, err = store.Owners.CheckOwners(t.Context(), b.ID(bEast),
			[]peer.OwnerQuestion{{Kind: "Target", Name: "targets/t"}})
		require.ErrorIs(t, err, peer.ErrDecommissioned)
	}
	_, err := b.Put(holder, body{"block": target})
	require.ErrorContains(t, err, "decommissioned")
	_, err = b.PutOwned(holder, nil, owner(t, target, "Target"))
	require.ErrorContains(t, err, "decommissioned")
	require.Zero(t, b.Count(bEast, "work"))
	require.Error(t, b.Stores[b.ID(aWest)].Admin.Decommission(t.Context(),
		shadow.Decommissioned{Deployment: b.ID(aWest), Blocking: schema.Unset, Reason: "x"}), "itself")
	require.Error(t, b.Stores[b.ID(aWest)].Admin.CleanUpDecommissioned(t.Context(), b.ID(aEast)),
		"that one is not decommissioned")
}

// A concurrent write either commits before the decommissioning, and is worked off, or after it, and is
// refused: no row that points to the deployment remains.
func TestTheWordMeetsWritesThatAreUnderWay(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	const tries = 40
	var established, refused int
	for i := range tries {
		gone := schema.DeploymentID{Service: fmt.Sprintf("x%d.example.com", i), Region: "us-west2"}
		store := b.Stores[b.ID(aWest)]
		start := make(chan struct{})
		var wg sync.WaitGroup
		var err error
		wg.Go(func() {
			<-start
			_, err = store.Targets.Establish(t.Context(), gone, newAttempt(),
				[]peer.EstablishReference{reference("block", schema.Block, uuid.New())})
		})
		wg.Go(func() {
			<-start
			said := store.Admin.Decommission(t.Context(), shadow.Decommissioned{
				Deployment: gone,
				Blocking:   schema.Unset, Reason: "race",
			})
			if said == nil {
				said = store.Admin.CleanUpDecommissioned(t.Context(), gone)
			}
			require.NoError(t, said)
		})
		close(start)
		wg.Wait()
		if err == nil {
			established++
		} else {
			refused++
		}
		require.Zero(t, b.Count(aWest, "blockade"), "try %d: %v", i, err)
	}
	t.Logf("of %d tries: %d established and worked off, %d refused", tries, established, refused)

	// The holder's side: decommissioned after the establish was answered, before the commit.
	b.AfterEstablish = func() { decommission(t, b, bEast, aWest, schema.Unset) }
	_, err := b.Put(holder, body{"block": target})
	require.ErrorContains(t, err, "decommissioned")
	b.AfterEstablish = nil
	b.Settle()
	require.Zero(t, b.Count(bEast, "foreign_target"))
}

// A process crashes in the middle of working off; another one continues.
func TestWorkingOffIsResumed_I19(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Limits.Batch = 50 })
	b.MustPut(target, nil)
	putMany(t, b, bEast, "holders/h", 300, body{"block": target})
	b.Settle()
	b.SetDown(aWest, true)
	decommission(t, b, bEast, aWest, schema.Unset)
	g := newGate("UPDATE dbcontroller.reference r SET behaviour")
	first := gatedProcess(t, b, bEast, g, b.Stores[b.ID(bEast)].Model())
	g.arm(0)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- first.Admin.CleanUpDecommissioned(ctx, b.ID(aWest)) }()
	select {
	case <-g.reached:
	case err := <-done:
		t.Fatalf("working off ended before the crash: %v", err)
	}
	cancel()
	close(g.open)
	require.Error(t, <-done)
	said, err := b.Stores[b.ID(bEast)].Gate.Decommissioned(t.Context())
	require.NoError(t, err)
	require.True(t, said[0].Working)
	b.Settle()
	require.Zero(t, b.Count(bEast, "reference"))
	require.Zero(t, b.Count(bEast, "work"))
	require.JSONEq(t, `{}`, string(b.Get("//"+bEast+"/holders/h7").Body))
}

// Of one hot target, and of messages to the deployment, any number is removed, a batch in a transaction.
func TestADecommissionedDeploymentIsWorkedOffInBatches_I21(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Limits.Batch = 20 })
	b.MustPut(target, nil)
	putHolders(t, b, "h", 110, body{"block": target})
	b.Settle()
	there := b.Pools[b.ID(aWest)]
	_, err := there.Exec(t.Context(), `
CREATE FUNCTION public.bounded() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT count(*) FROM gone) > 20 THEN
        RAISE EXCEPTION '% rows in one statement', (SELECT count(*) FROM gone);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER bounded AFTER DELETE ON dbcontroller.blockade REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.bounded();
CREATE TRIGGER bounded AFTER DELETE ON dbcontroller.work REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.bounded();
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt) SELECT 2, 1, id, gen_random_uuid() FROM dbcontroller.deployment, generate_series(1, 110) WHERE service = 'b.example.com'`)
	require.NoError(t, err)
	b.SetDown(bEast, true)
	decommission(t, b, aWest, bEast, schema.Unset)
	done, err := b.Do(b.ID(aWest), schema.CleanUpDecommissioned)
	require.NoError(t, err)
	require.Equal(t, 1, done)
	for _, table := range []string{"blockade", "work"} {
		require.Zero(t, b.Count(aWest, table), table)
	}
	b.MustDelete(target)
	b.Gone(target)
}
