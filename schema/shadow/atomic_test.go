package shadow_test

import (
	"context"
	"errors"
	"strings"
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

const middle = "//" + aEast + "/targets/m"

// newChain has a target, a resource at aEast that cascades from it, and a holder at bEast that cascades from
// that.
func newChain(t *testing.T) *harness.Box {
	t.Helper()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	b.MustPut(middle, body{"next": target})
	b.MustPut(holder, body{"cascade": middle})
	b.Settle()
	return b
}

// newCommittedChain has a chain whose atomic deletion is committed and confirmed, before any mark elsewhere.
func newCommittedChain(t *testing.T) *harness.Box {
	t.Helper()
	b := newChain(t)
	_, err := deleteAtomically(t.Context(), b, target)
	require.NoError(t, err)
	_, err = b.Do(b.ID(aWest), schema.Confirm)
	require.NoError(t, err)
	return b
}

func deleteAtomically(ctx context.Context, b *harness.Box, name string) (peer.DeleteResult, error) {
	full, err := schema.ParseFullName(name)
	if err != nil {
		return peer.DeleteResult{}, err
	}
	return b.Stores[full.Deployment].Deletions.Delete(ctx, shadow.DeleteRequest{Name: full.Name, Atomic: true})
}

// putOnce is Put for which a temporary refusal is final. A busy machine may not answer within the second for
// which a write waits for a resource that is frozen: it is asked again.
func putOnce(t *testing.T, b *harness.Box, name string, with body) error {
	t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(t, err)
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = b.Stores[full.Deployment].Write.Save(ctx, []peer.Write{{Name: full.Name, Body: with}})
		cancel()
		var refused *peer.RefusedError
		if !errors.As(err, &refused) || refused.Refusals[0].Reason != peer.TargetSlow {
			break
		}
	}
	return err
}

func requireNothingFrozen(t *testing.T, b *harness.Box, at ...string) {
	t.Helper()
	for _, d := range at {
		var left []string
		require.NoError(t, b.Pools[b.ID(d)].QueryRow(context.Background(), `
SELECT array_agg(format('%s (state %s, revision %s) by the deletion %s of %s, committed %s, until %s', s.name, s.state, s.revision, f.deletion, f.root, f.committed, f.expires_at))
FROM dbcontroller.frozen m JOIN dbcontroller.freeze f USING (deletion) LEFT JOIN dbcontroller.shadow s ON s.id = m.target_id`).Scan(&left))
		require.Empty(t, left, d)
	}
}

func requireActive(t *testing.T, b *harness.Box, names ...string) {
	t.Helper()
	for _, name := range names {
		require.Equal(t, peer.Active, b.Get(name).State, name)
	}
}

func TestAnAtomicDeletionRemovesAllMembers_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	b.MustPut(holder2, body{"cascade": middle, "block": target})
	b.MustPut("//"+bWest+"/holders/stays", body{"unset": target})
	b.MustPut(target2, body{"next": target})
	b.MustPut("//"+bWest+"/holders/further", body{"cascade": target2})
	b.Settle()
	result, err := deleteAtomically(t.Context(), b, target)
	require.NoError(t, err)
	require.False(t, result.Removed)
	require.Equal(t, 2, b.Count(bEast, "frozen"))
	b.Settle()
	b.Gone(target, target2, middle, holder, holder2, "//"+bWest+"/holders/further")
	require.NotContains(t, b.Get("//"+bWest+"/holders/stays").Body, "unset")
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// The blocker comes between the look-ahead and the cascade: an ordinary deletion is half done then, and waits
// for it.
func TestABlockerAfterTheLookAhead_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	late := "//" + bWest + "/holders/late"
	var refused error
	b.AfterPlan = func() {
		if b.Get(late) == nil && refused == nil {
			refused = putOnce(t, b, late, body{"block": middle})
		}
	}
	_, err := b.Delete(target)
	b.AfterPlan = nil
	require.NoError(t, err)
	require.NoError(t, refused)
	b.Settle()
	b.Gone(target)
	require.Equal(t, peer.Deleting, b.Get(middle).State) // half done
	b.MustDelete(late)
	b.Settle()

	b.MustPut(target, nil)
	b.MustPut(middle, body{"next": target})
	b.Settle()
	b.AfterPlan = func() {
		if refused == nil && b.Count(aEast, "frozen") > 0 {
			refused = putOnce(t, b, late, body{"block": middle})
		}
	}
	_, err = deleteAtomically(t.Context(), b, target)
	b.AfterPlan = nil
	require.NoError(t, err)
	var because *peer.RefusedError
	require.ErrorAs(t, refused, &because)
	require.Equal(t, peer.TargetClosing, because.Refusals[0].Reason)
	b.Settle()
	b.Gone(target, middle)
	b.Audit()
}

func TestARefusedAtomicDeletionChangesNothing_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	blocker := "//" + bWest + "/holders/b"
	b.MustPut(blocker, body{"block": middle})
	b.Settle()
	_, err := deleteAtomically(t.Context(), b, target)
	requireBlocked(t, err, blocker)
	b.Settle()
	requireNothingFrozen(t, b, everywhere...)
	requireActive(t, b, target, middle, holder)
	require.NoError(t, putOnce(t, b, middle, body{"next": target, "also": true}))
	require.NoError(t, putOnce(t, b, holder2, body{"cascade": middle}))
	b.Settle()
	b.Audit()
}

func TestADarkDeploymentRefusesAnAtomicDeletion_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	b.SetDown(bEast, true)
	_, err := deleteAtomically(t.Context(), b, target)
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.Contains(t, err.Error(), bEast)
	b.Settle()
	requireNothingFrozen(t, b, aWest, aEast)
	requireActive(t, b, target, middle)
	b.SetDown(bEast, false)
	b.Settle()
	_, err = deleteAtomically(t.Context(), b, target)
	require.NoError(t, err)
	b.Settle()
	b.Gone(target, middle, holder)
	b.Audit()
}

func TestFrozenResourcesDoNotChange_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	var errs []error
	b.AfterPlan = func() {
		if b.Count(bEast, "frozen") == 0 || errs != nil {
			return
		}
		errs = append(errs,
			putOnce(t, b, target, body{"title": "changed"}),
			putOnce(t, b, middle, nil),
			putOnce(t, b, holder, body{"cascade": middle, "block": target}),
			putOnce(t, b, holder2, body{"unset": middle}))
		full, err := schema.ParseFullName(middle)
		require.NoError(t, err)
		_, err = b.Stores[full.Deployment].Write.SetBlockDeletion(t.Context(), full.Name, uuid.Nil, true)
		errs = append(errs, err)
	}
	_, err := deleteAtomically(t.Context(), b, target)
	b.AfterPlan = nil
	require.NoError(t, err)
	require.Len(t, errs, 5)
	for i, err := range errs {
		require.Error(t, err, i)
	}
	b.Settle()
	b.Gone(target, middle, holder)
	b.Audit()
}

// leftFrozen is an atomic deletion whose members are frozen, and whose process has died before the decision.
func leftFrozen(t *testing.T, b *harness.Box, root string) peer.Freeze {
	t.Helper()
	full, err := schema.ParseFullName(root)
	require.NoError(t, err)
	store := b.Stores[full.Deployment]
	f := peer.Freeze{
		Coordinator: full.Deployment, Epoch: store.Gate.PresentEpoch(), Deletion: uuid.Must(uuid.NewV7()),
		Root: full.Name, For: time.Minute,
	}
	q := peer.PlanQuestion{
		Targets: []peer.PlanTarget{{Deployment: full.Deployment, UID: b.Get(root).UID}}, Limit: 100,
		Compact: true, Freeze: &f,
	}
	for asked := map[schema.DeploymentID]bool{}; ; {
		var next []schema.DeploymentID
		for _, d := range everywhere {
			if id := b.ID(d); !asked[id] {
				plan, err := b.Stores[id].Deletions.Plan(t.Context(), q)
				require.NoError(t, err)
				if len(plan.Members) > 0 {
					next, asked[id] = append(next, id), true
				}
				for _, m := range plan.Members {
					q.Targets = append(q.Targets, peer.PlanTarget{Deployment: id, UID: m.UID})
				}
			}
		}
		if len(next) == 0 {
			return f
		}
	}
}

func TestTheMembersOfAnAbandonedDeletionAreOpened_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	leftFrozen(t, b, target)
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	require.ErrorContains(t, putOnce(t, b, holder, body{"cascade": middle, "title": "x"}), "not decided yet")

	explained, err := b.Stores[b.ID(bEast)].Operate.Explain(t.Context(), "holders/h")
	require.NoError(t, err)
	require.Equal(t, "FROZEN", explained.Reasons[0].Type)
	require.Contains(t, explained.Reasons[0].Message, target)

	b.SetDown(aWest, true) // nobody opens by time alone
	b.Expire(bEast)
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	outstanding, err := b.Stores[b.ID(bEast)].Admin.Outstanding(t.Context())
	require.NoError(t, err)
	require.Equal(t, "resolve", outstanding[0].Group)
	b.SetDown(aWest, false)
	b.Settle()
	require.Equal(t, 1, b.Count(aEast, "frozen")) // has not expired
	require.Zero(t, b.Count(bEast, "frozen"))
	b.Expire(aEast)
	b.Expire(aWest)
	b.Settle()
	requireNothingFrozen(t, b, everywhere...)
	requireActive(t, b, target, middle, holder)
	require.NoError(t, putOnce(t, b, holder, body{"cascade": middle, "title": "x"}))
	b.Audit()
}

// A participant asks after its time, and the deletion is decided ABORTED before its coordinator decides.
func TestAParticipantThatAsksFirstAborts_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	once := true
	b.AfterPlan = func() {
		if once && b.Count(bEast, "frozen") > 0 {
			once = false
			b.Expire(bEast)
			require.NoError(t, b.Resolve(b.ID(bEast)))
		}
	}
	_, err := deleteAtomically(t.Context(), b, target)
	b.AfterPlan = nil
	require.ErrorIs(t, err, peer.ErrAborted)
	b.Settle()
	requireNothingFrozen(t, b, everywhere...)
	requireActive(t, b, target, middle, holder)
	b.Audit()
}

// Freezes stand side by side, and keep no deletion away.
func TestDeletionsThatMeet_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	leftFrozen(t, b, target)
	result, err := deleteAtomically(t.Context(), b, middle)
	require.NoError(t, err)
	require.False(t, result.Removed)
	b.Settle()
	b.Gone(middle, holder)
	requireActive(t, b, target)
	b.Expire(aWest)
	b.Settle()
	requireNothingFrozen(t, b, everywhere...)
	b.MustDelete(target)
	b.Settle()
	b.Audit()
}

func TestAnOrdinaryDeletionOfFrozenResources_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	leftFrozen(t, b, target)
	b.MustDelete(holder)
	b.MustDelete(target)
	b.Settle()
	b.Gone(target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// The members stay closed from the decision to their mark, however late the cascade comes.
func TestMembersStayClosedUntilTheirMark_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	_, err := deleteAtomically(t.Context(), b, target)
	require.NoError(t, err)
	for _, d := range []string{aEast, bEast} {
		b.Expire(d)
		require.NoError(t, b.Resolve(b.ID(d))) // the confirm may be late
	}
	require.Error(t, putOnce(t, b, "//"+bWest+"/holders/late", body{"block": middle}))
	require.ErrorContains(t, putOnce(t, b, holder, nil), "not decided yet")
	b.Expire(bEast) // has nothing to ask any more
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	b.Settle()
	b.Gone(target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

func TestANewEpochDropsFreezes_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	f := leftFrozen(t, b, target)
	b.Renew(aWest)
	_, err := b.Do(b.ID(aWest), schema.AnnounceEpoch)
	require.NoError(t, err)
	require.NoError(t, b.Resolve(b.ID(bEast)))
	require.Zero(t, b.Count(bEast, "frozen")) // the coordinator has no decision
	_, err = b.Stores[b.ID(bEast)].Deletions.Plan(t.Context(), peer.PlanQuestion{
		Targets: []peer.PlanTarget{{Deployment: b.ID(aEast), UID: b.Get(middle).UID}}, Limit: 10, Freeze: &f,
	})
	require.ErrorIs(t, err, peer.ErrStaleEpoch)
	f.Epoch, f.ParticipantEpoch = uuid.Max, uuid.New()
	_, err = b.Stores[b.ID(bEast)].Deletions.Plan(t.Context(), peer.PlanQuestion{
		Targets: []peer.PlanTarget{{Deployment: b.ID(aEast), UID: b.Get(middle).UID}}, Limit: 10, Freeze: &f,
	})
	require.ErrorContains(t, err, "failed over during the deletion")
}

// A participant that has begun a new epoch may have lost frozen members.
func TestARestoredParticipantAbortsTheDeletion_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	once := true
	b.AfterPlan = func() {
		if once && b.Count(bEast, "frozen") > 0 {
			once = false
			_, err := b.Stores[b.ID(aWest)].Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()),
				peer.TargetKinds{})
			require.NoError(t, err)
		}
	}
	_, err := deleteAtomically(t.Context(), b, target)
	b.AfterPlan = nil
	require.Error(t, err)
	requireActive(t, b, target, middle, holder)
}

func TestADecommissionedCoordinatorFreezesNothing_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	f := leftFrozen(t, b, target)
	store := b.Stores[b.ID(bEast)]
	require.NoError(t, store.Admin.Decommission(t.Context(), shadow.Decommissioned{
		Deployment: b.ID(aWest),
		Blocking:   schema.Unset, Reason: "flooded", By: "user/op",
	}))
	require.NoError(t, store.Admin.CleanUpDecommissioned(t.Context(), b.ID(aWest)))
	require.Zero(t, b.Count(bEast, "frozen"))
	_, err := store.Deletions.Plan(t.Context(),
		peer.PlanQuestion{
			Targets: []peer.PlanTarget{{Deployment: b.ID(aEast), UID: b.Get(middle).UID}}, Limit: 10,
			Freeze: &f,
		})
	require.ErrorIs(t, err, peer.ErrDecommissioned)
}

// A deployment with a stolen certificate freezes nothing that a deletion of its own resources does not reach.
func TestAFreezeIsVerifiedWithTheTargetsDeployment_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	f := &peer.Freeze{
		Coordinator: b.ID(bWest), Epoch: b.Stores[b.ID(bWest)].Gate.PresentEpoch(),
		Deletion: uuid.Must(uuid.NewV7()), Root: "holders/mine", For: time.Minute,
	}
	_, err := b.Stores[b.ID(bEast)].Deletions.Plan(t.Context(), peer.PlanQuestion{
		Targets: []peer.PlanTarget{{Deployment: b.ID(aEast), UID: b.Get(middle).UID}}, Limit: 10, Freeze: f,
	})
	require.ErrorIs(t, err, peer.ErrAborted)
	require.ErrorContains(t, err, "has not frozen")
	b.SetDown(aEast, true)
	_, err = b.Stores[b.ID(bEast)].Deletions.Plan(t.Context(), peer.PlanQuestion{
		Targets: []peer.PlanTarget{{Deployment: b.ID(aEast), UID: b.Get(middle).UID}}, Limit: 10, Freeze: f,
	})
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable, "the outage of another deployment is no fault of this one")
	require.Equal(t, []schema.DeploymentID{b.ID(aEast)}, unavailable.Deployments)
	b.SetDown(aEast, false)
	requireNothingFrozen(t, b, everywhere...)
}

// A holder that is written under a right is asked for by nobody: the right ends before the members are found.
func TestRightsEndBeforeTheFreeze_I35(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"unset": target})
	b.Settle()
	require.Equal(t, 1, rights(t, b, bEast))
	under := []string{"//" + bEast + "/holders/before", "//" + bEast + "/holders/after"}
	require.NoError(t, putOnce(t, b, under[0], body{"cascade": target}))
	var refused error
	b.AfterPlan = func() { refused = putOnce(t, b, under[1], body{"cascade": target}) }
	_, err := deleteAtomically(t.Context(), b, target)
	b.AfterPlan = nil
	require.NoError(t, err)
	require.Error(t, refused)
	b.Settle()
	b.Gone(target, under[0])
	requireNothingFrozen(t, b, aWest, bEast)
	b.Audit()
}

// Beside an ordinary delete: the root is frozen in one transaction, and the holders in another one, between
// two readings of the plan.
func TestAnAtomicDeleteTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	b, c := countedPair(t)
	var rounds [2]int
	for atomic := range rounds {
		b.MustPut(target, nil)
		b.MustPut(holder, body{"cascade": target})
		b.Settle()
		full, err := schema.ParseFullName(target)
		require.NoError(t, err)
		c.reset(t, "before")
		_, err = b.Stores[full.Deployment].Deletions.Delete(t.Context(), shadow.DeleteRequest{
			Name:   full.Name,
			Atomic: atomic == 1,
		})
		require.NoError(t, err)
		rounds[atomic], _ = c.reset(t, "delete")
		b.Settle()
		b.Gone(target, holder)
	}
	require.LessOrEqual(t, rounds[1], rounds[0]+22)
}

func TestRowsOfAttachedTablesTakeNoPart_I35(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1, 'c')`)
	a.exec(a.shop, `INSERT INTO orders (customer_id) VALUES (1)`)
	a.attach()
	_, err := deleteAtomically(t.Context(), a.Box, "//"+crm+"/customers/1")
	require.ErrorIs(t, err, peer.ErrNotAtomic)
	requireNothingFrozen(t, a.Box, crm, shop)
	a.MustDelete("//" + crm + "/customers/1")
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT id::text FROM orders`))
}

// A resource drops its reference between the try and the freeze: it is no member, and neither are its
// holders.
func TestAResourceThatLeavesBeforeTheFreeze_I35(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, body{"next": target})
	b.MustPut(holder, body{"cascade": target})
	b.MustPut(holder2, body{"cascade": target2})
	b.Settle()
	var left error
	var once sync.Once
	b.OnPlan = func(context.Context, schema.DeploymentID) error {
		once.Do(func() { left = putOnce(t, b, target2, nil) })
		return nil
	}
	_, err := deleteAtomically(t.Context(), b, target)
	b.OnPlan = nil
	require.NoError(t, errors.Join(err, left))
	b.Settle()
	b.Gone(target, holder)
	requireActive(t, b, target2, holder2)
	requireNothingFrozen(t, b, aWest, bEast)
	b.Audit()
}

// The database between has lost its member and the reference of it: no mark comes, and the resource behind it
// is opened. While the mark may come, it is not.
func TestAMemberWhoseTargetWasLostIsOpened_I35(t *testing.T) {
	t.Parallel()
	b := newCommittedChain(t)
	b.Expire(bEast)
	require.NoError(t, b.Resolve(b.ID(bEast)))
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	for _, sql := range []string{
		`DELETE FROM dbcontroller.frozen`, `DELETE FROM dbcontroller.freeze`,
		`DELETE FROM dbcontroller.reference`,
	} {
		_, err := b.Pools[b.ID(aEast)].Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	b.Settle()
	b.Gone(target)
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	b.Expire(bEast)
	require.NoError(t, b.Resolve(b.ID(bEast)))
	requireNothingFrozen(t, b, everywhere...)
	requireActive(t, b, middle, holder)
	require.NoError(t, putOnce(t, b, holder, body{"cascade": middle, "title": "open"}))
}

// A resource drops its reference after a participant has found it, and before it has the lock.
func TestAResourceThatLeavesBeforeTheLock_I35(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	tx, err := b.Pools[b.ID(bEast)].Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	for _, sql := range []string{`SELECT FROM dbcontroller.shadow FOR UPDATE`, `DELETE FROM dbcontroller.reference`} {
		_, err = tx.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	deleted := make(chan error)
	go func() {
		_, err := deleteAtomically(context.Background(), b, target)
		deleted <- err
	}()
	stopped(t, b, bEast, 1)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-deleted)
	b.Settle()
	b.Gone(target, middle)
	requireActive(t, b, holder)
	requireNothingFrozen(t, b, everywhere...)
}

func TestDeletesOfAnAtomicKind_I35(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, strings.Replace(services, "kind: Target\n", "kind: Target\n    deletion: atomic\n", 1), nil,
		aWest, bEast)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	b.MustDelete(target)
	require.Equal(t, 1, b.Count(bEast, "frozen"))
	b.Settle()
	b.Gone(target, holder)
}
