package shadow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

func requireBlocked(t *testing.T, err error, by ...string) {
	t.Helper()
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.False(t, blocked.Undecided)
	var names []string
	for _, h := range blocked.Holders {
		names = append(names, h.Name.String())
	}
	require.ElementsMatch(t, by, names)
}

func TestDeleteIsRefusedBesideALiveBlockerAndNamesIt_I3(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	_, err := b.Delete(target)
	requireBlocked(t, err, holder) // tentative here, and held
	b.Settle()
	_, err = b.Delete(target)
	requireBlocked(t, err, holder)
	require.Equal(t, peer.Active, b.Get(target).State, "refused means that nothing changed")
	b.SetDown(bEast, true)
	_, err = b.Delete(target)
	requireBlocked(t, err, holder) // a confirmed blockade counts, whether or not its holder's deployment answers
	b.SetDown(bEast, false)
	b.MustPut(holder, nil)
	require.True(t, b.MustDelete(target).Removed,
		"a dropped reference does not block, though its release is not delivered yet")
	b.Settle()
	b.Audit()
}

// A delete with a limit counts the resources of all deployments, and is refused before a row changes. When a
// deployment cannot be asked, the number is unknown.
func TestALimitOfRemovalsCountsAllDeployments(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	for i := range 3 {
		b.MustPut(fmt.Sprint(holder, i), body{"cascade": target})
	}
	b.Settle()
	remove := func(most int64) error {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		full, err := schema.ParseFullName(target)
		require.NoError(t, err)
		_, err = b.Stores[full.Deployment].Deletions.Delete(ctx, shadow.DeleteRequest{
			Name:        full.Name,
			MaxRemovals: most,
		})
		return err
	}
	err := remove(3)
	require.ErrorIs(t, err, peer.ErrTooManyRemovals)
	require.ErrorContains(t, err, "the delete removes 4 resources, 3 are allowed")
	require.Equal(t, peer.Active, b.Get(target).State)
	b.SetDown(bEast, true)
	var away *peer.UnavailableError
	err = remove(4)
	require.ErrorAs(t, err, &away)
	require.ErrorContains(t, err, "max_removals limits their number")
	require.Equal(t, peer.Active, b.Get(target).State)
	b.SetDown(bEast, false)
	require.NoError(t, remove(4))
	b.Settle()
	require.Nil(t, b.Get(fmt.Sprint(holder, 0)))
	b.Audit()
}

func TestDeleteNamesAtMostAHundredHoldersAndTheirTotal(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	var writes []peer.Write
	for i := range 130 {
		writes = append(writes, peer.Write{Name: fmt.Sprintf("holders/h%d", i), Body: body{"block": target}})
	}
	_, err := b.Stores[b.ID(bEast)].Write.Save(context.Background(), writes)
	require.NoError(t, err)
	b.Settle()
	_, err = b.Delete(target)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.Len(t, blocked.Holders, peer.MaxNamedHolders)
	require.Equal(t, 130, blocked.Total)
	require.ErrorContains(t, err, "and 125 more")
}

func TestDeleteByUIDAndRevision(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	r := b.Get(target)
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	_, err := store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t", UID: uuid.New()})
	require.ErrorIs(t, err, peer.ErrNotFound)
	_, err = store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t", Revision: r.Revision + 1})
	require.ErrorIs(t, err, peer.ErrConflict)
	_, err = store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/none"})
	require.ErrorIs(t, err, peer.ErrNotFound)
	b.Settle()
	require.NotNil(t, b.Get(holder), "a refused delete has no effect")
	require.Equal(t, peer.Active, b.Get(target).State)
	res, err := store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: "targets/t", UID: r.UID, Revision: r.Revision})
	require.NoError(t, err)
	require.False(t, res.Removed, "its holder goes first")
	b.Settle()
	b.Gone(target, holder)
}

func TestASecondDeleteAnswersWithTheRunningOne(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	first, second := b.MustDelete(target), b.MustDelete(target)
	require.False(t, first.Removed)
	require.Equal(t, first, second)
	conditions, err := b.Stores[b.ID(aWest)].Read.Conditions(context.Background(), "targets/t")
	require.NoError(t, err)
	require.Equal(t, []shadow.Condition{{Type: "WAITING", Message: "for b.example.com/eastus2 to cascade or unset"}},
		conditions)
	explained, err := b.Stores[b.ID(aWest)].Operate.Explain(context.Background(), "targets/t")
	require.NoError(t, err)
	require.Equal(t, []schema.DeploymentID{b.ID(bEast)}, explained.WaitsFor)
}

// While a delete waits for undecided blockades, its target takes no new references, so that a target in use
// can be deleted.
func TestAWaitingDeleteKeepsNewReferencesAway(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(c *shadow.Config) { c.Times.DeleteTimeout = time.Minute })
	b.MustPut(target, nil)
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	ref := reference("block", schema.Block, uuid.New())
	_, err := store.Targets.Establish(ctx, b.ID(bEast), newAttempt(), []peer.EstablishReference{ref})
	require.NoError(t, err)
	asked := make(chan struct{}, 1000)
	b.OnResolve = func(schema.DeploymentID) error { asked <- struct{}{}; return nil }
	done := make(chan error)
	go func() { _, err := b.Delete(target); done <- err }()
	<-asked
	<-asked // the second time, the target is closed
	_, err = store.Targets.Establish(ctx, b.ID(bEast), newAttempt(), []peer.EstablishReference{ref})
	require.Equal(t, peer.TargetClosing, refusals(t, err)[0].Reason)
	err = within(ctx, store, b.Pools[b.ID(aWest)], peer.Write{Name: "targets/x", Body: body{"peer": "targets/t"}})
	require.Equal(t, peer.TargetClosing, refusals(t, err)[0].Reason)
	b.Expire(aWest)
	require.NoError(t, <-done)
	b.Gone(target)
	b.Audit()
}

// A delete that runs out of time opens its target for new references again.
func TestADeleteThatGaveUpOpensItsTargetAgain(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(c *shadow.Config) { c.Times.DeleteTimeout = 100 * time.Millisecond })
	b.MustPut(target, nil)
	_, err := b.Stores[b.ID(aWest)].Targets.Establish(context.Background(), b.ID(bEast), newAttempt(),
		[]peer.EstablishReference{reference("block", schema.Block, uuid.New())})
	require.NoError(t, err)
	_, err = b.Delete(target)
	require.Error(t, err)
	b.MustPut(holder2, body{"block": target})
}

func TestLocalCascadeAndUnsetInOneTransaction(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	h := func(name string) string { return "//" + bEast + "/holders/" + name }
	b.MustPut(h("root"), nil)
	b.MustPut(h("child"), body{"near": body{"cascade": "holders/root"}})
	b.MustPut(h("grandchild"), body{"near": body{"cascade": "holders/child", "block": "holders/root"}})
	b.MustPut(h("bystander"), body{"near": body{"unset": "holders/grandchild"}, "kept": 7.0})
	require.True(t, b.MustDelete(h("root")).Removed)
	b.Gone(h("root"), h("child"), h("grandchild"))
	left := b.Get(h("bystander"))
	require.JSONEq(t, `{"near": {}, "kept": 7}`, string(left.Body))
	require.Equal(t, int64(2), left.Generation)
	b.Settle()
	b.Audit()
}

func TestALocalBlockerFromOutsideRefusesTheWholeDelete(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	h := func(name string) string { return "//" + bEast + "/holders/" + name }
	b.MustPut(h("root"), nil)
	b.MustPut(h("child"), body{"near": body{"cascade": "holders/root"}})
	b.MustPut(h("outsider"), body{"near": body{"block": "holders/child"}})
	_, err := b.Delete(h("root"))
	requireBlocked(t, err, h("outsider"))
	require.NotNil(t, b.Get(h("child")))
	b.MustPut(h("outsider"), nil)
	require.True(t, b.MustDelete(h("root")).Removed)
	b.Settle()
	b.Audit()
}

// I14: resources that are held only by one another are removed.
func TestCyclesAndSelfReferencesEnd_I14(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	store, ctx := b.Stores[b.ID(bEast)], context.Background()
	near := func(b body) body { return body{"near": b} }
	_, err := store.Write.Save(ctx, []peer.Write{
		{Name: "holders/x", Body: near(body{"cascade": "holders/y", "block": "holders/z"})},
		{Name: "holders/y", Body: near(body{"cascade": "holders/z", "block": "holders/x"})},
		{Name: "holders/z", Body: near(body{"cascade": "holders/x", "block": "holders/z"})},
	})
	require.NoError(t, err)
	require.True(t, b.MustDelete("//"+bEast+"/holders/y").Removed)
	require.Zero(t, b.Count(bEast, "shadow"))
	b.Settle()
	b.Audit()
}

func TestAsynchronousLocalHoldersActLater(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	h := func(name string) string { return "//" + bEast + "/holders/" + name }
	b.MustPut(h("root"), nil)
	b.MustPut(h("cascaded"), body{"near": body{"asyncCascade": "holders/root"}})
	b.MustPut(h("unset"), body{"near": body{"asyncUnset": "holders/root"}})
	require.False(t, b.MustDelete(h("root")).Removed)
	require.NotNil(t, b.Get(h("cascaded")))
	b.Settle()
	b.Gone(h("root"), h("cascaded"))
	require.JSONEq(t, `{"near": {}}`, string(b.Get(h("unset")).Body))
	b.Audit()
}

func TestWhatIsTooManyForOneTransactionGoesLater_I21(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(c *shadow.Config) { c.Limits.LocalCascade, c.Limits.Batch = 10, 7 })
	store, ctx := b.Stores[b.ID(bEast)], context.Background()
	writes := []peer.Write{{Name: "holders/root"}}
	for i := range 50 {
		writes = append(writes, peer.Write{
			Name: fmt.Sprintf("holders/c%d", i),
			Body: body{"near": body{"cascade": "holders/root"}},
		},
			peer.Write{Name: fmt.Sprintf("holders/u%d", i), Body: body{"near": body{"unset": "holders/root"}}})
	}
	_, err := store.Write.Save(ctx, writes)
	require.NoError(t, err)
	require.False(t, b.MustDelete("//"+bEast+"/holders/root").Removed)
	require.Equal(t, 101, b.Count(bEast, "shadow"))
	b.Settle()
	require.Equal(t, 50, b.Count(bEast, "shadow"))
	b.Audit()
}

// References that may dangle go with their target, any number of them, a batch in a transaction.
func TestAnyNumberOfDanglingReferencesGoesInBatches_I21(t *testing.T) {
	t.Parallel()
	for _, doomed := range []int{1, 4} {
		b := newPair(t, func(c *shadow.Config) { c.Limits.LocalCascade, c.Limits.Batch = 30, 20 })
		here := b.Pools[b.ID(aWest)]
		for n := range doomed {
			b.MustPut(targetName(fmt.Sprint("d", n)), nil)
		}
		b.MustPut(targetName("stays"), nil)
		const refer = `
INSERT INTO dbcontroller.reference (holder_id, field_id, target_id, behaviour)
SELECT 1000000 + n, 1, s.id, $1 FROM dbcontroller.shadow s, generate_series(1, 110) AS n`
		_, err := here.Exec(t.Context(), refer, schema.AllowDangling)
		require.NoError(t, err)
		_, err = here.Exec(t.Context(), `
CREATE FUNCTION public.bounded() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF (SELECT count(*) FROM gone) > 20 THEN
        RAISE EXCEPTION '% rows in one statement', (SELECT count(*) FROM gone);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER bounded AFTER DELETE ON dbcontroller.reference REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.bounded()`)
		require.NoError(t, err)
		for n := range doomed {
			require.False(t, b.MustDelete(targetName(fmt.Sprint("d", n))).Removed)
		}
		// The resource that stays is looked at, too, and has more of them than a batch.
		_, err = here.Exec(t.Context(), `
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT $1, s.shard, d.id, s.id FROM dbcontroller.shadow s, dbcontroller.deployment d WHERE d.service || '/' || d.region = $2`, schema.Finalise, aWest)
		require.NoError(t, err)
		b.Settle()
		require.Equal(t, 1, b.Count(aWest, "shadow"))
		require.Equal(t, 110, b.Count(aWest, "reference"))
	}
}

func TestForeignUnsetLeavesScalarListAndMap(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{
		"unset": target, "list": []any{target, target2, target}, "big": json.Number("12345678901234567890"),
		"roles": body{"admin": body{"who": target, "since": 5.0}, "guest": body{"who": target2}},
	})
	b.Settle()
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	require.JSONEq(t, `{"list": ["`+target2+
		`"], "big": 12345678901234567890, "roles": {"admin": {"since": 5}, "guest": {"who": "`+target2+`"}}}`,
		string(b.Get(holder).Body))
	b.Audit()
}

// I10: both the unset and the user's update survive, in either order.
func TestUnsetLosesNoConcurrentUpdate_I10(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx := context.Background()
	for i := range 30 {
		b.MustPut(target, nil)
		h := fmt.Sprintf("holders/h%d", i)
		b.MustPut("//"+bEast+"/"+h, body{"unset": target, "n": 0.0})
		b.Settle()
		b.MustDelete(target)
		done := make(chan error)
		go func() {
			// An update that repeats the value of the field as it was read.
			for {
				r := b.Get("//" + bEast + "/" + h)
				var fields map[string]any
				if err := json.Unmarshal(r.Body, &fields); err != nil {
					done <- err
					return
				}
				fields["n"] = 1.0
				_, err := b.Stores[b.ID(bEast)].Write.Save(ctx,
					[]peer.Write{{Name: h, Revision: r.Revision, Body: fields}})
				if err == nil {
					done <- nil
					return
				}
			}
		}()
		_, err := b.Act(b.ID(bEast), b.ID(aWest))
		require.NoError(t, err)
		require.NoError(t, <-done)
		b.Settle()
		require.JSONEq(t, `{"n": 1}`, string(b.Get("//"+bEast+"/"+h).Body))
	}
	b.Audit()
}

// I11: a holder that does not refer to that uid any more is kept; I9: another resource of the same name is
// not touched.
func TestACascadeTakesOnlyWhoStillRefersToThatUID_I11_I9(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"cascade": target})
	b.MustPut(holder2, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
	b.MustPut(holder, body{"cascade": target2}) // refers to another target before the cascade
	b.Settle()
	b.Gone(target, holder2)
	require.NotNil(t, b.Get(holder))
	// Target and holder are created again under their names; the old deletion is delivered once more.
	b.MustPut(target, nil)
	b.MustPut(holder2, body{"cascade": target})
	b.Settle()
	_, err := b.Stores[b.ID(bEast)].Act(context.Background(), b.ID(aWest), []uuid.UUID{deletions[0].UID})
	require.NoError(t, err)
	require.NotNil(t, b.Get(holder2))
	b.Audit()
}

func TestACascadedHolderThatOthersBlockWaitsAndSaysSo_I13(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	local := "//" + bEast + "/holders/local"
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	b.MustPut(local, body{"near": body{"block": "holders/h"}}) // after the look-ahead, before the cascade
	b.Settle()
	b.Gone(target)
	require.Equal(t, peer.Deleting, b.Get(holder).State, "stays readable")
	conditions, err := b.Stores[b.ID(bEast)].Read.Conditions(context.Background(), "holders/h")
	require.NoError(t, err)
	require.Equal(t, []shadow.Condition{{Type: "BLOCKED", Message: "by " + local + " (near.block)"}}, conditions)
	_, err = b.Put("//"+bEast+"/holders/late", body{"near": body{"block": "holders/h"}})
	require.Equal(t, peer.TargetDeleting, refusals(t, err)[0].Reason)
	b.MustPut(local, nil)
	b.Settle()
	b.Gone(holder)
	b.Audit()
}

func TestAForeignBlockerOfACascadedHolderIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	middle := "//" + aEast + "/targets/m" // cascades with target, in another region
	b.MustPut(target, nil)
	b.MustPut(middle, body{"next": target})
	b.Settle()
	b.MustDelete(target)
	b.MustPut(holder, body{"block": middle}) // after the look-ahead, before the cascade
	b.Settle()
	b.Gone(target)
	require.Equal(t, peer.Deleting, b.Get(middle).State)
	require.NotNil(t, b.Get(holder))
	b.MustDelete(holder)
	b.Settle()
	b.Gone(middle, holder)
	b.Audit()
}

// A ring through three regions is removed as a whole, also where its members block one another.
func TestACycleOverThreeRegionsEnds_I14(t *testing.T) {
	t.Parallel()
	const aNorth = "a.example.com/northeu"
	b := harness.NewBox(t, services, nil, aWest, aEast, aNorth)
	west, east, north := "//"+aWest+"/targets/w", "//"+aEast+"/targets/e", "//"+aNorth+"/targets/n"
	b.MustPut(west, nil)
	b.MustPut(east, body{"next": west})
	b.MustPut(north, body{"next": east, "peer": west})
	b.MustPut(west, body{"next": north})
	b.Settle()
	b.MustDelete(east)
	b.Settle()
	b.Gone(west, east, north)
	b.Audit()
}

func TestADarkRegionKeepsItsTargetsAndNothingElse_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.MustPut("//"+bWest+"/holders/h", body{"cascade": target})
	near := "//" + aEast + "/targets/near"
	b.MustPut(near, body{"next": target})
	b.Settle()
	b.SetDown(bEast, true)
	b.SetDown(aEast, true)
	b.MustDelete(target)
	_, err := b.Act(b.ID(bWest), b.ID(aWest))
	require.NoError(t, err)
	_, err = b.Do(b.ID(aWest), schema.Finalise)
	require.NoError(t, err)
	b.Gone("//" + bWest + "/holders/h")
	require.Equal(t, peer.Deleting, b.Get(target).State, "an unreachable deployment may have references")
	b.SetDown(bEast, false)
	b.SetDown(aEast, false)
	b.Settle()
	b.Gone(target, holder, near)
	b.Audit()
}

// I4: a blockade that was tentative when a cascade marked its target is confirmed, and the deletion waits for
// it: only an acknowledgement of a later position counts.
func TestAConfirmDuringADeletionIsWaitedFor_I4(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	middle := "//" + aEast + "/targets/m"
	b.MustPut(target, nil)
	b.MustPut(middle, body{"next": target})
	b.Settle()
	b.MustDelete(target)
	b.MustPut(holder, body{"cascade": middle}) // committed, its confirm is not delivered yet
	_, err := b.Act(b.ID(aEast), b.ID(aWest))
	require.NoError(t, err)
	require.Equal(t, peer.Deleting, b.Get(middle).State, "undecided counts as BLOCKED")
	_, early := b.Seen(b.ID(bEast), b.ID(aEast))
	_, err = b.Do(b.ID(bEast), schema.Confirm)
	require.NoError(t, err)
	require.NoError(t, b.Stores[b.ID(aEast)].Targets.Acknowledge(context.Background(), b.ID(bEast), uuid.Nil,
		early, nil))
	_, err = b.Do(b.ID(aEast), schema.Finalise)
	require.NoError(t, err)
	require.NotNil(t, b.Get(middle), "the early position does not count")
	b.Settle()
	b.Gone(target, middle, holder)
	b.Audit()
}

func TestAnAcknowledgementNeedsAPositionOfThisDatabaseForThisCaller(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	_, position := b.Seen(b.ID(bEast), b.ID(aWest))
	_, other := b.Seen(b.ID(bEast), b.ID(aEast))
	_, forWest := b.Seen(b.ID(bWest), b.ID(aWest))
	for _, forged := range []string{"", "x", other, forWest, position[:len(position)-4] + "AAAA"} {
		require.ErrorIs(t, store.Targets.Acknowledge(ctx, b.ID(bEast), uuid.Nil, forged, nil), peer.ErrPosition)
	}
	require.NoError(t, store.Targets.Acknowledge(ctx, b.ID(bEast), uuid.Nil, position, []uuid.UUID{b.Get(target).UID}))
	require.Equal(t, 1, b.Count(aWest, "notice"), "excepted")
	b.Settle()
	b.Gone(target)
	b.Audit()
}

// The age of unacknowledged notices, which operators' alerts use, grows.
func TestTheAgeOfWhatIsNotAcknowledgedGrows(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx, store := context.Background(), b.Stores[b.ID(aWest)]
	for _, n := range []string{"1", "2"} {
		b.MustPut(target+n, nil)
		b.MustPut(holder+n, body{"cascade": target + n})
	}
	b.Settle()
	b.MustDelete(target + "1")
	b.MustDelete(target + "2")
	_, err := b.Pools[b.ID(aWest)].Exec(ctx,
		`UPDATE dbcontroller.shadow SET updated_at = updated_at - interval '1 hour' WHERE uid = $1`,
		b.Get(target+"1").UID)
	require.NoError(t, err)
	for _, block := range []bool{true, false} { // protection while it is being deleted is no new beginning
		_, err = store.Write.SetBlockDeletion(ctx, "targets/t1", uuid.Nil, block)
		require.NoError(t, err)
	}
	outstanding, err := store.Admin.Outstanding(ctx)
	require.NoError(t, err)
	found := slices.IndexFunc(outstanding, func(o shadow.Outstanding) bool { return o.Group == "acknowledge" })
	require.GreaterOrEqual(t, found, 0)
	require.Equal(t, bEast, outstanding[found].Deployment)
	require.EqualValues(t, 2, outstanding[found].Count)
	require.InDelta(t, 3600, outstanding[found].Oldest, 300)
	b.Settle()
}

// S14: a deployment that was unreachable acknowledges any number of notices in transactions of one page each;
// the pages that are done count when the call ends early.
func TestAnyNumberOfNoticesIsAcknowledgedPageByPage_I13_I21(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) { cfg.Limits.Batch = 10 })
	ctx, store, n := context.Background(), b.Stores[b.ID(aWest)], 45
	for i := range n {
		b.MustPut(target+strconv.Itoa(i), nil)
		b.MustPut(holder+strconv.Itoa(i), body{"cascade": target + strconv.Itoa(i)})
	}
	b.Settle()
	for i := range n {
		b.MustDelete(target + strconv.Itoa(i))
	}
	deletions, position := b.Seen(b.ID(bEast), b.ID(aWest))
	require.Len(t, deletions, n)
	failed, err := b.Stores[b.ID(bEast)].Follow.ActFor(ctx, b.ID(aWest), deletions, time.Minute)
	require.NoError(t, err)
	require.Empty(t, failed)
	except := []uuid.UUID{b.Get(target + "7").UID}
	for left := n - 10; left > 0; left -= 10 {
		more, err := store.Targets.AcknowledgeFor(ctx, b.ID(bEast), uuid.Nil, position, except, 0)
		require.NoError(t, err)
		require.True(t, more)
		require.Equal(t, left, b.Count(aWest, "notice"), "a call that ends early has done a page")
	}
	require.NoError(t, store.Targets.Acknowledge(ctx, b.ID(bEast), uuid.Nil, position, except))
	require.Equal(t, 1, b.Count(aWest, "notice"), "excepted")
	var largest, looks int
	require.NoError(t, b.Pools[b.ID(aWest)].QueryRow(ctx, `
SELECT max(n), sum(n) FROM (SELECT count(*) AS n FROM dbcontroller.work WHERE action = 3 GROUP BY xid) AS page`).Scan(&largest, &looks))
	require.Equal(t, []int{10, n - 1}, []int{largest, looks}, "transactions are bounded, and each target is looked at")
	require.NoError(t, store.Targets.Acknowledge(ctx, b.ID(bEast), uuid.Nil, position, except), "again, without effect")
	b.Settle()
	b.Audit()
	for i := range n {
		b.Gone(target + strconv.Itoa(i))
	}
}

// I20: a holder that always fails delays its own target and no other.
func TestAFailingHolderDelaysNoOther_I20(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx := context.Background()
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	bad := b.MustPut(holder, body{"unset": target})
	var writes []peer.Write
	for i := range 20 {
		writes = append(writes, peer.Write{
			Name: fmt.Sprintf("holders/good%d", i),
			Body: body{"unset": target, "list": []any{target2}},
		})
	}
	_, err := b.Stores[b.ID(bEast)].Write.Save(ctx, writes)
	require.NoError(t, err)
	b.Settle()
	_, err = b.Pools[b.ID(bEast)].Exec(ctx,
		`UPDATE dbcontroller.resource SET body = '[]' WHERE id = (SELECT id FROM dbcontroller.shadow WHERE uid = $1)`,
		bad.UID)
	require.NoError(t, err)
	b.MustDelete(target)
	b.MustDelete(target2)
	_, err = b.Act(b.ID(bEast), b.ID(aWest))
	require.NoError(t, err)
	_, err = b.Do(b.ID(aWest), schema.Finalise)
	require.NoError(t, err)
	b.Gone(target2)
	require.NotNil(t, b.Get(target))
	require.JSONEq(t, `{"list": []}`, string(b.Get("//"+bEast+"/holders/good7").Body))
	_, err = b.Pools[b.ID(bEast)].Exec(ctx, `UPDATE dbcontroller.resource SET body = '{"unset": "`+target+
		`"}' WHERE body = '[]'`)
	require.NoError(t, err)
	b.Settle()
	b.Gone(target)
	b.Audit()
}

func TestAllowDanglingNeverActsAndHoldsNothing(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"dangling": target})
	b.Settle()
	require.Zero(t, b.Count(aWest, "blockade"))
	require.True(t, b.MustDelete(target).Removed)
	require.JSONEq(t, `{"dangling": "`+target+`"}`, string(b.Get(holder).Body))
	b.Audit()
}

func TestParentsInAnotherServiceAreReferences(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target+"/children/c", nil)
	_, err := b.Put("//"+aWest+"/targets/none/children/c", nil)
	require.Equal(t, schema.ParentPath, refusals(t, err)[0].Path)
	require.True(t, b.MustDelete(target).Removed)
	b.Gone(target + "/children/c")
	b.Audit()
}

// The look-ahead: a blocker that the cascade would meet in another deployment refuses the delete at once.
func TestABlockerInAnotherDeploymentRefusesTheWholeDelete(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	middle, local := "//"+aEast+"/targets/m", "//"+bEast+"/holders/local"
	b.MustPut(target, nil)
	b.MustPut(middle, body{"next": target})
	b.MustPut(holder, body{"cascade": middle})
	b.MustPut(local, body{"near": body{"block": "holders/h"}})
	b.Settle()
	_, err := b.Delete(target) // aWest → aEast → bEast, where it is blocked
	requireBlocked(t, err, local)
	require.Equal(t, peer.Active, b.Get(target).State)
	b.MustPut(local, nil)
	b.Settle()
	b.MustPut("//"+bWest+"/holders/w", body{"block": middle})
	_, err = b.Delete(target)
	requireBlocked(t, err, "//"+bWest+"/holders/w") // its confirm is not delivered yet; the delete asks about it
	b.MustDelete("//" + bWest + "/holders/w")
	b.MustDelete(target) // its release is not delivered yet; the delete asks about it
	b.Settle()
	b.Gone(target, middle, holder)
	b.Audit()
}

// A holder elsewhere that both blocks and cascades, or that the same deletion removes by another path, does
// not block.
func TestABlockerThatTheDeletionItselfRemovesIsExcused_I14(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, body{"next": target})
	b.MustPut(holder, body{"block": target, "cascade": target})
	b.MustPut(holder2, body{"cascade": target2, "block": target})
	b.Settle()
	require.False(t, b.MustDelete(target).Removed)
	b.Settle()
	b.Gone(target, target2, holder, holder2)
	b.Audit()
}

func TestADeleteSaysWhatCouldNotBeAsked(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.SetDown(bEast, true)
	require.Equal(t, []string{bEast}, unaskedIDs(b.MustDelete(target).Unasked))
	b.SetDown(bEast, false)
	b.Settle()
	b.Gone(target, holder)
	b.Audit()
}

// Small deletions of a batch are finished in the first run, in any order with large ones; the next run
// continues the large ones.
func TestALargeDeletionKeepsNoOtherWaiting_I20_I21(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	const large, small = 1000, 20
	var uids []uuid.UUID
	for i, holders := range []int{large, small, small, large} {
		name := fmt.Sprintf("//%s/targets/t%d", aWest, i)
		uids = append(uids, b.MustPut(name, nil).UID)
		var writes []peer.Write
		for n := range holders {
			writes = append(writes, peer.Write{
				Name: fmt.Sprintf("holders/t%d-%d", i, n),
				Body: body{[]string{"cascade", "unset"}[n%2]: name},
			})
		}
		_, err := b.Stores[b.ID(bEast)].Write.Save(t.Context(), writes)
		require.NoError(t, err)
	}
	b.Settle()
	for i := range uids {
		b.MustDelete(fmt.Sprintf("//%s/targets/t%d", aWest, i))
	}
	store := b.Stores[b.ID(bEast)]
	deletions, _ := b.Seen(b.ID(bEast), b.ID(aWest))
	failed, err := store.Follow.ActFor(t.Context(), b.ID(aWest), deletions, 0)
	require.NoError(t, err)
	require.Equal(t, map[uuid.UUID]error{uids[0]: schema.ErrUnfinished, uids[3]: schema.ErrUnfinished}, failed)
	left := b.Count(bEast, "reference")
	require.Less(t, left, 2*large, "each large deletion has progressed")
	require.Greater(t, left, large)
	failed, err = store.Follow.ActFor(t.Context(), b.ID(aWest), deletions, time.Minute)
	require.NoError(t, err)
	require.Empty(t, failed)
	require.Zero(t, b.Count(bEast, "reference"))
	b.Settle()
	b.Audit()
}
