package shadow_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// schedule deletes a resource with a retention, and tells the participants.
func schedule(t *testing.T, b *harness.Box, names ...string) []peer.DeleteResult {
	t.Helper()
	results, err := tryToSchedule(t.Context(), b, names...)
	require.NoError(t, err)
	b.Settle()
	return results
}

func tryToSchedule(ctx context.Context, b *harness.Box, names ...string) ([]peer.DeleteResult, error) {
	ctx, cancel := context.WithTimeout(ctx, wait.Limit)
	defer cancel()
	var reqs []shadow.DeleteRequest
	var at schema.DeploymentID
	for _, name := range names {
		full, err := schema.ParseFullName(name)
		if err != nil {
			return nil, err
		}
		at = full.Deployment
		reqs = append(reqs, shadow.DeleteRequest{Name: full.Name, Retention: time.Hour, Actor: "user/ann"})
	}
	return b.Stores[at].Deletions.DeleteAll(ctx, reqs)
}

func undelete(t *testing.T, b *harness.Box, name string) (*peer.Resource, error) {
	t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(t, err)
	return b.Stores[full.Deployment].Deletions.Undelete(t.Context(), full.Name, uuid.Nil)
}

// comeDue lets the time of all scheduled deletions of a deployment come, and carries them out.
func comeDue(t *testing.T, b *harness.Box, at string) error {
	t.Helper()
	_, err := b.Pools[b.ID(at)].Exec(t.Context(),
		`UPDATE dbcontroller.freeze SET purge_at = now(), try_at = NULL WHERE purge_at IS NOT NULL`)
	require.NoError(t, err)
	return b.Resolve(b.ID(at))
}

// listedNames are the names that a list of all resources of a deployment has.
func listedNames(t *testing.T, b *harness.Box, at string, deleted bool) (names []string) {
	t.Helper()
	found, _, err := b.Stores[b.ID(at)].Read.List(t.Context(), shadow.ListRequest{Limit: 100, ShowDeleted: deleted})
	require.NoError(t, err)
	for _, r := range found {
		names = append(names, r.Name)
	}
	return names
}

// lastChanges are the states of the last change of each resource of a deployment, as watches hear of them.
func lastChanges(t *testing.T, b *harness.Box, at string) map[string]peer.State {
	t.Helper()
	rows, err := b.Pools[b.ID(at)].Query(t.Context(), `SELECT name, state FROM dbcontroller.change ORDER BY seq`)
	require.NoError(t, err)
	defer rows.Close()
	last := map[string]peer.State{}
	for rows.Next() {
		var name string
		var state peer.State
		require.NoError(t, rows.Scan(&name, &state))
		require.False(t, state == peer.Gone && last[name] == peer.Gone, "%s goes twice", name)
		last[name] = state
	}
	return last
}

func requireHidden(t *testing.T, b *harness.Box, names ...string) {
	t.Helper()
	for _, name := range names {
		full, err := schema.ParseFullName(name)
		require.NoError(t, err)
		r := b.Get(name)
		require.NotNil(t, r, name)
		require.Equal(t, peer.Active, r.State, name)
		require.True(t, r.PurgeAt.After(r.DeletedAt) && !r.DeletedAt.IsZero(), name)
		at := full.Deployment.String()
		require.NotContains(t, listedNames(t, b, at, false), full.Name)
		require.Contains(t, listedNames(t, b, at, true), full.Name)
		require.Equal(t, peer.Gone, lastChanges(t, b, at)[full.Name], name)
	}
}

func requireVisible(t *testing.T, b *harness.Box, names ...string) {
	t.Helper()
	for _, name := range names {
		full, err := schema.ParseFullName(name)
		require.NoError(t, err)
		r := b.Get(name)
		require.NotNil(t, r, name)
		require.True(t, r.State == peer.Active && r.PurgeAt.IsZero() && r.DeletedAt.IsZero(), name)
		require.Contains(t, listedNames(t, b, full.Deployment.String(), false), full.Name)
		require.Equal(t, peer.Active, lastChanges(t, b, full.Deployment.String())[full.Name], name)
	}
}

func TestAScheduledDeletionHidesAndRemovesAllMembers_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	b.MustPut(target2, body{"next": target})
	stays := "//" + bWest + "/holders/stays"
	b.MustPut(stays, body{"unset": target})
	b.Settle()
	results := schedule(t, b, target)
	require.False(t, results[0].Removed)
	require.Equal(t, uuid.Nil, results[0].Deletion)
	require.False(t, results[0].Resource.PurgeAt.IsZero())
	requireHidden(t, b, target, target2, middle, holder)
	requireVisible(t, b, stays)
	require.Contains(t, string(b.Get(stays).Body), "unset") // nothing changes before its time

	require.NoError(t, b.Resolve(b.ID(aWest))) // whose time has not come
	requireHidden(t, b, target, middle)
	require.NoError(t, comeDue(t, b, aWest))
	b.Settle()
	b.Gone(target, target2, middle, holder)
	require.NotContains(t, string(b.Get(stays).Body), "unset")
	for _, at := range everywhere {
		lastChanges(t, b, at)
	}
	requireNothingFrozen(t, b, everywhere...)
	require.Equal(t, "user/ann", removedBy(t, b, bEast, "holders/h"))
	b.Audit()
}

// removedBy is the actor of the removal of a resource.
func removedBy(t *testing.T, b *harness.Box, at, name string) (actor string) {
	t.Helper()
	found, _, err := b.Stores[b.ID(at)].Operate.Removals(t.Context(), shadow.RemovalQuery{Name: name}, "", 10)
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0].Cause.Actor
}

func TestAnUndeleteRestoresAllMembers_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	b.MustPut(holder2, body{"cascade": target, "block": middle})
	b.Settle()
	before := map[string]*peer.Resource{}
	for _, name := range []string{target, middle, holder, holder2} {
		before[name] = b.Get(name)
	}
	schedule(t, b, target)
	requireHidden(t, b, target, middle, holder, holder2)
	for _, at := range everywhere {
		b.Expire(at)
		require.NoError(t, b.Resolve(b.ID(at))) // they ask, and hear that it is scheduled
	}
	b.Settle()
	requireHidden(t, b, target, middle, holder, holder2)

	_, err := undelete(t, b, middle)
	require.ErrorIs(t, err, peer.ErrDeleted)
	require.ErrorContains(t, err, target) // of which it was a part
	got, err := undelete(t, b, target)
	require.NoError(t, err)
	require.True(t, got.PurgeAt.IsZero())
	b.Settle()
	requireNothingFrozen(t, b, everywhere...)
	requireVisible(t, b, target, middle, holder, holder2)
	for name, was := range before {
		require.Equal(t, was.UID, b.Get(name).UID)
		require.JSONEq(t, string(was.Body), string(b.Get(name).Body))
	}
	_, err = undelete(t, b, target)
	require.ErrorIs(t, err, peer.ErrExists)
	require.NoError(t, comeDue(t, b, aWest))
	b.Settle()
	requireVisible(t, b, target, middle, holder, holder2)
	b.MustPut(target, body{"title": "changes again"})
	b.MustDelete(target)
	b.Settle()
	b.Gone(target, middle, holder, holder2)
	b.Audit()
}

// No other deployment is concerned.
func TestAScheduledDeletionOfOneDatabase_I36(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, body{"next": target})
	third := "//" + aWest + "/targets/third"
	b.MustPut(third, nil)
	schedule(t, b, target, third)
	requireHidden(t, b, target, target2, third)
	_, err := undelete(t, b, third) // of both
	require.NoError(t, err)
	requireVisible(t, b, target, target2, third)
	schedule(t, b, target, third)
	require.NoError(t, comeDue(t, b, aWest))
	b.Gone(target, target2, third)
	requireNothingFrozen(t, b, aWest)
	b.Audit()
}

// A member says at once that it is deleted, and nothing changes it or refers to it.
func TestWritesOfHiddenResourcesAreRefused_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	schedule(t, b, target)
	for _, name := range []string{target, middle, holder} {
		full, err := schema.ParseFullName(name)
		require.NoError(t, err)
		store := b.Stores[full.Deployment]
		for _, mode := range []peer.Mode{peer.Put, peer.Create, peer.Update} {
			_, err = store.Write.Save(t.Context(), []peer.Write{{Name: full.Name, Mode: mode}})
			require.ErrorIs(t, err, peer.ErrDeleted, name)
		}
		_, err = store.Write.SetBlockDeletion(t.Context(), full.Name, uuid.Nil, true)
		require.ErrorIs(t, err, peer.ErrDeleted, name)
		_, err = store.Write.UpdateStatus(t.Context(), full.Name, uuid.Nil, []byte(`{}`), nil)
		require.ErrorIs(t, err, peer.ErrDeleted, name)
		_, err = b.Delete(name)
		require.ErrorIs(t, err, peer.ErrDeleted, name)
		_, err = tryToSchedule(t.Context(), b, name)
		require.ErrorIs(t, err, peer.ErrDeleted, name)
		require.True(t, peer.Definite(err))
	}
	for _, field := range []string{"block", "cascade", "unset"} {
		for _, name := range []string{"//" + bEast + "/holders/new", "//" + bWest + "/holders/new"} {
			for _, to := range []string{target, middle} {
				var refused *peer.RefusedError
				require.ErrorAs(t, putOnce(t, b, name, body{field: to}), &refused)
				require.Equal(t, peer.TargetDeleted, refused.Refusals[0].Reason)
			}
		}
	}
	requireHidden(t, b, target, middle, holder)
}

// A hidden resource still blocks its targets, so that it can come back.
func TestAHiddenResourceBlocks_I36(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"cascade": target, "block": target2})
	b.Settle()
	schedule(t, b, target)
	_, err := b.Delete(target2)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	_, err = undelete(t, b, target)
	require.NoError(t, err)
	b.Settle()
	requireVisible(t, b, target, holder)
	b.Audit()
}

// Another deletion takes members along, for good; the rest comes back.
func TestAnotherDeletionTakesHiddenMembers_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	b.MustPut(target2, nil)
	b.MustPut(holder2, body{"cascade": target2, "block": target})
	b.MustPut(holder, body{"cascade": middle, "unset": target2})
	b.Settle()
	_, err := tryToSchedule(t.Context(), b, target)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked) // by holder2, which is no member
	requireVisible(t, b, target, middle, holder)
	b.MustPut(holder2, body{"cascade": target2, "unset": target})
	b.Settle()
	schedule(t, b, target)
	b.MustDelete(target2)
	b.Settle()
	b.Gone(target2, holder2)
	requireHidden(t, b, target, middle, holder)
	require.NotContains(t, string(b.Get(holder).Body), "unset")
	_, err = undelete(t, b, target)
	require.NoError(t, err)
	b.Settle()
	requireVisible(t, b, target, middle, holder)
	b.MustDelete(middle)
	b.Settle()
	b.Gone(middle, holder)
	b.Audit()
}

// Two scheduled deletions share a member: it is hidden until both have ended.
func TestScheduledDeletionsThatMeet_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	schedule(t, b, middle)
	requireVisible(t, b, target)
	schedule(t, b, target)
	_, err := undelete(t, b, target)
	require.NoError(t, err)
	b.Settle()
	requireVisible(t, b, target)
	requireHidden(t, b, middle, holder)
	_, err = undelete(t, b, middle)
	require.NoError(t, err)
	b.Settle()
	requireVisible(t, b, target, middle, holder)
	schedule(t, b, middle)
	schedule(t, b, target)
	require.NoError(t, comeDue(t, b, aWest))
	b.Settle()
	b.Gone(target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
	require.Len(t, freezes(t, b, aEast), 1) // its root is gone
	require.NoError(t, comeDue(t, b, aEast))
	for _, at := range everywhere {
		b.Settle()
		require.Empty(t, freezes(t, b, at))
	}
	b.Audit()
}

// freezes are the deletions of a deployment that are neither committed nor gone.
func freezes(t *testing.T, b *harness.Box, at string) (all []string) {
	t.Helper()
	require.NoError(t, b.Pools[b.ID(at)].QueryRow(t.Context(),
		`SELECT array_agg(root) FROM dbcontroller.freeze WHERE NOT committed`).Scan(&all))
	return all
}

// The members of a participant that fails over to before the freeze are seen again; the purge finds what has
// changed since, and waits for it.
func TestAPurgeLooksAgain_I36(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	restore := b.Backup(bEast)
	schedule(t, b, target)
	requireHidden(t, b, target, holder)
	restore()
	b.Recover(bEast)
	b.Settle()
	requireHidden(t, b, target)
	require.True(t, b.Get(holder).PurgeAt.IsZero())
	b.SetDown(bEast, true)
	require.Error(t, comeDue(t, b, aWest))
	requireHidden(t, b, target)
	reasons := explained(t, b, target)
	require.Contains(t, reasons["SCHEDULED"], bEast) // why it could not be carried out
	work, err := b.Stores[b.ID(aWest)].Admin.Outstanding(t.Context())
	require.NoError(t, err)
	purge := slices.IndexFunc(work, func(o shadow.Outstanding) bool { return o.Group == "purge" })
	require.Contains(t, work[purge].Problem, bEast)
	b.SetDown(bEast, false)
	require.NoError(t, b.Resolve(b.ID(aWest))) // it waits before it is tried again
	requireHidden(t, b, target)
	require.NoError(t, comeDue(t, b, aWest))
	b.Settle()
	b.Gone(target, holder)
	requireNothingFrozen(t, b, aWest, bEast)
	b.Audit()
}

func explained(t *testing.T, b *harness.Box, name string) map[string]string {
	t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(t, err)
	e, err := b.Stores[full.Deployment].Operate.Explain(t.Context(), full.Name)
	require.NoError(t, err)
	out := map[string]string{}
	for _, r := range e.Reasons {
		out[r.Type] += r.Message + " " + r.Error
	}
	return out
}

// The coordinator loses the schedule: the participants ask, and open their members.
func TestALostScheduleOpensItsMembers_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	restore := b.Backup(aWest)
	schedule(t, b, target)
	restore()
	b.Recover(aWest)
	b.Settle()
	for _, at := range []string{aEast, bEast} {
		require.NoError(t, b.Resolve(b.ID(at)))
	}
	b.Settle()
	requireActive(t, b, target, middle, holder)
	require.True(t, b.Get(middle).PurgeAt.IsZero() && b.Get(holder).PurgeAt.IsZero())
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// A participant that fails over keeps the members that its copy has, and hears of the end.
func TestAScheduleThroughFailovers_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	schedule(t, b, target)
	for _, at := range everywhere {
		restore := b.Backup(at)
		restore()
		b.Recover(at)
		b.Settle()
	}
	requireHidden(t, b, target, middle, holder)
	_, err := undelete(t, b, target)
	require.NoError(t, err)
	b.Settle()
	requireVisible(t, b, target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
}

// The messages of the schedule and of the undelete arrive in any order.
func TestMessagesOfSchedulesInAnyOrder_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	_, err := tryToSchedule(t.Context(), b, target)
	require.NoError(t, err)
	_, err = undelete(t, b, target)
	require.NoError(t, err)
	_, err = b.Do(b.ID(aWest), schema.Release)
	require.NoError(t, err)
	b.Settle() // the message of the schedule comes after it
	requireVisible(t, b, target)
	requireActive(t, b, middle, holder)
	requireNothingFrozen(t, b, everywhere...)

	_, err = tryToSchedule(t.Context(), b, target)
	require.NoError(t, err)
	require.NoError(t, comeDue(t, b, aWest)) // before any message
	b.Settle()
	b.Gone(target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// A participant fails over to after the freeze and before it has heard of the schedule: it is told again.
func TestAScheduleIsToldAgain_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	_, err := tryToSchedule(t.Context(), b, target)
	require.NoError(t, err)
	restore := b.Backup(bEast)
	b.Settle()
	restore()
	b.Recover(bEast)
	b.Settle()
	requireHidden(t, b, target, middle, holder)
	b.Audit()
	_, err = undelete(t, b, target)
	require.NoError(t, err)
	b.Settle()
	requireVisible(t, b, target, middle, holder)
	b.Audit()
}

// An undelete and a purge at the same time: one of them wins.
func TestAnUndeleteBesideAPurge_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	for range 5 {
		schedule(t, b, target)
		undone := make(chan error)
		go func() {
			_, err := undelete(t, b, target)
			undone <- err
		}()
		purged := comeDue(t, b, aWest)
		if err := <-undone; err == nil {
			b.Settle()
			requireVisible(t, b, target, middle, holder)
		} else {
			require.NoError(t, purged)
			b.Settle()
			b.Gone(target, middle, holder)
			b.MustPut(target, nil)
			b.MustPut(middle, body{"next": target})
			b.MustPut(holder, body{"cascade": middle})
			b.Settle()
		}
		requireNothingFrozen(t, b, everywhere...)
	}
	b.Audit()
}

// The undelete comes after the purge has frozen the root, and before it is decided.
func TestAnUndeleteWithinAPurge_I36(t *testing.T) {
	t.Parallel()
	b := newChain(t)
	schedule(t, b, target)
	var undone error
	var once sync.Once
	b.OnPlan = func(context.Context, schema.DeploymentID) error {
		once.Do(func() { _, undone = undelete(t, b, target) })
		return nil
	}
	require.NoError(t, comeDue(t, b, aWest)) // it is no failure
	b.OnPlan = nil
	require.NoError(t, undone)
	b.Settle()
	requireVisible(t, b, target, middle, holder)
	requireNothingFrozen(t, b, everywhere...)
	b.Audit()
}

// A kind that hides resources in DELETING: watches hear once that they go.
func TestAHidingKindGoesOnce_I36(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, strings.NewReplacer("kind: Target\n", "kind: Target\n    hide_while_deleting: true\n",
		"kind: Holder\n", "kind: Holder\n    hide_while_deleting: true\n").Replace(services), nil, aWest, bEast)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	schedule(t, b, target)
	require.NoError(t, comeDue(t, b, aWest))
	b.Gone(target)
	b.Settle()
	b.Gone(holder)
	for _, at := range []string{aWest, bEast} {
		lastChanges(t, b, at)
	}
	b.Audit()
}

// Now carries it out before its time, and ignores the retention of a kind.
func TestADeleteNow_I36(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, strings.Replace(services, "kind: Target\n", "kind: Target\n    retention: 7d\n", 1), nil,
		aWest, bEast)
	deleteNow := func(name string) peer.DeleteResult {
		t.Helper()
		full, err := schema.ParseFullName(name)
		require.NoError(t, err)
		r, err := b.Stores[full.Deployment].Deletions.Delete(t.Context(), shadow.DeleteRequest{
			Name: full.Name,
			Now:  true,
		})
		require.NoError(t, err)
		return r
	}
	for range 2 {
		b.MustPut(target, nil)
		b.MustPut(holder, body{"cascade": target})
		b.Settle()
		result := b.MustDelete(target)
		require.Equal(t, 7*24*time.Hour, result.Resource.PurgeAt.Sub(result.Resource.DeletedAt).Round(time.Second))
		b.Settle()
		requireHidden(t, b, target, holder)
		require.NotEqual(t, uuid.Nil, deleteNow(target).Deletion)
		b.Settle()
		b.Gone(target, holder)
	}
	b.MustPut(target2, nil)
	b.MustPut(holder2, body{"cascade": target2})
	b.Settle()
	deleteNow(target2)
	b.Settle()
	b.Gone(target2, holder2)
	b.Audit()
}

// A resource with a finalizer is seen again when its deletion is carried out: its holder has to clean up.
func TestFinalizersOfAScheduledDeletion_I36(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, strings.Replace(services, "kind: Holder\n",
		"kind: Holder\n    finalizers: [{name: clean, holder: user/cleaner}]\n", 1), nil, aWest, bEast)
	b.MustPut(target, nil)
	uid := b.MustPut(holder, body{"cascade": target}).UID
	b.Settle()
	schedule(t, b, target)
	require.NoError(t, comeDue(t, b, aWest))
	b.Settle()
	require.Equal(t, peer.Deleting, b.Get(holder).State)
	require.Equal(t, peer.Deleting, lastChanges(t, b, bEast)["holders/h"])
	_, err := b.Stores[b.ID(bEast)].Write.RemoveFinalizer(t.Context(), "holders/h", uid, "clean")
	require.NoError(t, err)
	b.Settle()
	b.Gone(target, holder)
	b.Audit()
}

// The references of hidden resources are derived anew when they are seen again; the others do not wait.
func TestAVersionSwitchBesideHiddenResources_I36(t *testing.T) {
	t.Parallel()
	both := strings.Split(services, "---\n")
	blocks := strings.NewReplacer("version: v1", "version: v2",
		"path: unset, targets: [a.example.com/Target], behaviour: UNSET",
		"path: unset, targets: [a.example.com/Target], behaviour: BLOCK").Replace(both[1])
	b := harness.NewBox(t, services+"---\n"+blocks, nil, aWest, bEast)
	stays := "//" + bEast + "/holders/z"
	b.MustPut(target, nil)
	b.MustPut(target2, nil)
	b.MustPut(holder, body{"cascade": target, "unset": target2})
	b.MustPut(holder2, body{"unset": target})
	b.MustPut(stays, body{"unset": target2})
	b.Settle()
	schedule(t, b, target)
	b.Switch(bEast, "v2")
	b.Settle()
	require.Len(t, b.Work(b.ID(bEast)), 2) // of a hidden resource, and of one that refers to one
	_, err := b.Delete(target2)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.ErrorContains(t, err, stays)
	_, err = undelete(t, b, target)
	require.NoError(t, err)
	b.Settle()
	requireVisible(t, b, target, holder)
	require.Empty(t, b.Work(b.ID(bEast)))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, &blocked) // by holder2 now
	b.Audit()
}

// A role that may decide scheduled deletions changes no decision.
func TestADecisionDoesNotChange_I36(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	_, err := b.Pools[b.ID(aWest)].Exec(t.Context(),
		`INSERT INTO dbcontroller.attempt (id, committed) SELECT gen_random_uuid(), c FROM unnest(ARRAY [true, false, NULL]) AS c`)
	require.NoError(t, err)
	for _, to := range []string{"true", "false", "NULL"} {
		_, err = b.Pools[b.ID(aWest)].Exec(t.Context(), `UPDATE dbcontroller.attempt SET committed = `+to+
			` WHERE committed IS NOT NULL`)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, "42501", refused.Code)
	}
}

// Rows of attached tables cannot be hidden.
func TestRowsAreNotScheduled_I36(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1, 'c')`)
	a.attach()
	_, err := tryToSchedule(t.Context(), a.Box, "//"+crm+"/customers/1")
	require.ErrorIs(t, err, peer.ErrNotAtomic)
	requireNothingFrozen(t, a.Box, crm, shop)
}

// Rows of an attached table that refer to a hidden resource stay, and so do those that come meanwhile. They
// go with it, or have their right again.
func TestRowsThatReferToAHiddenResource_I36(t *testing.T) {
	t.Parallel()
	services := strings.Replace(attachedServices,
		"targets: [crm.example.com/Customer], region: eu, behaviour: CASCADE_DELETE",
		"targets: [crm.example.com/Note], region: eu, behaviour: CASCADE_DELETE", 1)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.tables()
	note := "//" + crm + "/notes/1"
	a.MustPut(note, nil)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (1, 'before')`)
	a.Settle()
	for _, undo := range []bool{true, false} {
		schedule(t, a.Box, note)
		requireHidden(t, a.Box, note)
		a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (1, 'meanwhile')`)
		a.Capture(a.ID(shop))
		a.Settle()
		require.Contains(t, a.rows(a.shop, `SELECT problem FROM dbcontroller.lacking WHERE NOT missing`)[0],
			"is deleted, and hidden")
		if undo {
			_, err := undelete(t, a.Box, note)
			require.NoError(t, err)
		} else {
			require.NoError(t, comeDue(t, a.Box, crm))
		}
		a.exec(a.shop, `UPDATE dbcontroller.lacking SET due = now()`)
		a.Settle()
		a.Capture(a.ID(shop))
		a.Settle()
		if left := a.rows(a.shop, `SELECT note FROM orders ORDER BY note`); undo {
			require.Equal(t, []string{"before", "meanwhile"}, left)
			require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM dbcontroller.lacking`))
			requireVisible(t, a.Box, note)
		} else {
			require.Empty(t, left)
			a.Gone(note)
		}
	}
}
