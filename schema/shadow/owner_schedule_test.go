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

func withUID(o peer.OwnerReference, uid uuid.UUID) peer.OwnerReference { o.UID = uid; return o }

// In v2 of a, Target is called Goal and has a reference, whose path is stored between the two transactions of
// Switch. In v3, Target is another kind.
const renames = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
---
service: a.example.com
version: v2
kinds:
  - kind: Goal
    previous_name: Target
    patterns: ["targets/{target}"]
    references:
      - { path: fresh, targets: [Goal], behaviour: UNSET }
---
service: a.example.com
version: v3
kinds:
  - { kind: Goal, patterns: ["targets/{target}"] }
  - { kind: Target, patterns: ["others/{other}"] }
---
service: b.example.com
version: v1
kinds:
  - { kind: Holder, patterns: ["holders/{holder}"] }
`

// halted lets Switch stop between its two transactions: the database has the new version, the process not
// yet.
func halted(t *testing.T, b *harness.Box, deployment, version string) (goOn func()) {
	t.Helper()
	ctx := context.Background()
	tx, err := b.Pools[b.ID(deployment)].Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `LOCK TABLE dbcontroller.field IN EXCLUSIVE MODE`)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); b.Switch(deployment, version) }()
	stopped(t, b, deployment, 1)
	return func() { require.NoError(t, tx.Rollback(ctx)); <-done }
}

// The owner's deployment is about to run v2 (its database does, this process does not yet), which renames the
// kind; a newer region has sent the new name before. The living owner must not be reported absent.
func TestALivingOwnerIsThereWhileItsDeploymentSwitches_I16(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"one process", "two processes"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := harness.NewBox(t, renames, nil, aWest, aEast, bEast)
			east := func(n string) string { return "//" + aEast + "/targets/" + n }
			b.MustPut(targetName("w"), nil)
			mustOwn(t, b, east("mine"), nil, owner(t, targetName("w"), "Target"))
			b.MustPut(east("owner"), nil)
			mustOwn(t, b, holder, nil, owner(t, east("owner"), "Target"))
			b.Settle()
			b.Switch(aWest, "v2") // tells eastus2: Target is Goal
			b.Settle()
			require.Equal(t, "Goal", b.Get(east("mine")).Owners[0].Kind)

			var goOn func()
			if how == "one process" {
				goOn = halted(t, b, aEast, "v2")
			} else {
				old, current := b.SecondProcess(aEast, shadow.Config{}), b.Stores[b.ID(aEast)]
				b.Switch(aEast, "v2")
				b.Stores[b.ID(aEast)] = old
				goOn = func() { b.Stores[b.ID(aEast)] = current }
			}
			// A user's change of a flag creates a new check.
			again := b.Get(holder).Owners[0]
			again.Controller = true
			mustOwn(t, b, holder, nil, again)
			_, _ = b.Do(b.ID(bEast), schema.CheckOwners) // the owner's deployment may answer "unknown"
			goOn()
			b.Settle()
			require.NotNil(t, b.Get(east("owner")), "the owner lives")
			require.NotNil(t, b.Get(holder), "collected while its owner lives")
		})
	}
}

// The work to send the new version exists as soon as the first transaction of Switch commits, while the
// process still has the old model: it must not send old names with the new generation, since nothing would
// correct them.
func TestAnUpgradeNeverSendsOldKindsWithANewGeneration(t *testing.T) {
	t.Parallel()
	for _, action := range []schema.Action{schema.UpgradeOwners, schema.CheckOwners} {
		t.Run(action.String(), func(t *testing.T) {
			t.Parallel()
			b := harness.NewBox(t, renames, nil, aWest, bEast)
			b.MustPut(targetName("t"), nil)
			mustOwn(t, b, holder, nil, owner(t, targetName("t"), "Target"))
			at := b.ID(aWest)
			if action == schema.UpgradeOwners {
				b.Settle()
			} else {
				at = b.ID(bEast)
			}
			goOn := halted(t, b, aWest, "v2")
			for range 2 {
				_, _ = b.Do(at, action)
			}
			goOn()
			b.Settle()
			require.Equal(t, "v2", b.Get(holder).Owners[0].Version)
			require.Equal(t, "Goal", b.Get(holder).Owners[0].Kind, "v2 has no Target")
		})
	}
}

// Between question and answer the user stops requiring that the owner refers to the resource: the answer to
// the old question must not take the living owner, and the resource with it.
func TestAnAnswerToAnOutdatedQuestionIsIgnored_I16(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	b.MustPut(holder, nil)
	requires := owner(t, holder, "Holder")
	requires.Requires = true
	mustOwn(t, b, ownee, nil, requires)
	b.AfterCheckOwners = func() {
		b.AfterCheckOwners = nil
		mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	}
	b.Settle()
	require.NotNil(t, b.Get(holder))
	require.NotNil(t, b.Get(ownee), "collected while its owner lives")
}

// The same with the grace period: the owner is removed and added again, which begins a new grace period.
func TestAnOwnerAddedAgainHasANewGracePeriod_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = time.Hour })
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	_, err := b.Pools[b.ID(aEast)].Exec(context.Background(),
		`UPDATE dbcontroller.owner_reference SET created_at = created_at - interval '2 hours'`)
	require.NoError(t, err)
	b.AfterCheckOwners = func() {
		b.AfterCheckOwners = nil
		b.MustPut(ownee, nil)
		mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	}
	b.Settle()
	require.NotNil(t, b.Get(ownee))
}

// The ownee's deployment switches to a version that imports a newer one of the owner's service, which renames
// the kind; the process is started again. The owner that a user drops is dropped by either name.
func TestAnOwnerDroppedByAUserCollectsNothing_I17(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	mustOwn(t, b, holder, nil, owner(t, targetName("t"), "Target"))
	b.Settle()
	b.Switch(bEast, "v3")
	b.Settle()
	b.Stores[b.ID(bEast)] = b.SecondProcess(bEast, shadow.Config{})
	b.MustPut(holder, nil) // without an owner
	require.Empty(t, b.Get(holder).Owners)
	b.MustDelete(targetName("t"))
	b.Settle()
	require.NotNil(t, b.Get(holder), "collected by an owner that it does not have")
}

// The same, and the user replaces the owner: the deletion of the new one deletes the resource.
func TestAnOwnerReplacedByAUserKeepsNothing_I17(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	b.MustPut(targetName("t2"), nil)
	mustOwn(t, b, holder, nil, owner(t, targetName("t"), "Target"))
	b.Settle()
	b.Switch(bEast, "v3")
	b.Settle()
	b.Stores[b.ID(bEast)] = b.SecondProcess(bEast, shadow.Config{})
	mustOwn(t, b, holder, nil, owner(t, targetName("t2"), "Goal"))
	b.Settle()
	b.MustDelete(targetName("t2"))
	b.Settle()
	b.Gone(holder)
}

// The same, and the user changes a flag: of one owner there is one row.
func TestAFlagThatIsChangedMakesNoSecondRow_I20(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	mustOwn(t, b, holder, nil, owner(t, targetName("t"), "Target"))
	b.Settle()
	b.Switch(bEast, "v3")
	b.Settle()
	b.Stores[b.ID(bEast)] = b.SecondProcess(bEast, shadow.Config{})
	o := b.Get(holder).Owners[0]
	o.Controller = true
	mustOwn(t, b, holder, nil, o)
	_, err := b.Do(b.ID(bEast), schema.CheckOwners)
	require.NoError(t, err)
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "owner_reference"))
}

func spoil(t *testing.T, b *harness.Box, deployment string, r peer.Resource) {
	t.Helper()
	_, err := b.Pools[b.ID(deployment)].Exec(context.Background(),
		`UPDATE dbcontroller.resource SET owners = '{}' WHERE id = (SELECT id FROM dbcontroller.shadow WHERE uid = $1)`,
		r.UID)
	require.NoError(t, err)
}

// One ownee that always fails does not keep the answers about all others of the batch,
func TestAFailingOwneeDelaysNoOther_check_I20(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	o := b.MustPut(holder, nil)
	bad := mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	mustOwn(t, b, ownee2, nil, owner(t, holder, "Holder"))
	spoil(t, b, aEast, bad)
	for range 3 {
		_, _ = b.Do(b.ID(aEast), schema.CheckOwners)
	}
	require.Equal(t, o.UID, b.Get(ownee2).Owners[0].UID)
}

// nor the version of all others,
func TestAFailingOwneeDelaysNoOther_upgrade_I20(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	bad := mustOwn(t, b, holder, nil, owner(t, targetName("t"), "Target"))
	mustOwn(t, b, holder2, nil, owner(t, targetName("t"), "Target"))
	b.Settle()
	spoil(t, b, bEast, bad)
	b.Switch(aWest, "v2")
	for range 3 {
		_, _ = b.Do(b.ID(aWest), schema.UpgradeOwners)
	}
	require.Equal(t, "v2", b.Get(holder2).Owners[0].Version)
}

// nor all other deleted owners.
func TestAFailingOwneeDelaysNoOther_drop_I20(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(holder, nil)
	b.MustPut(holder2, nil)
	third := "//" + bEast + "/holders/h3"
	b.MustPut(third, nil)
	bad := mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"), owner(t, third, "Holder"))
	mustOwn(t, b, ownee2, nil, owner(t, holder2, "Holder"))
	b.Settle()
	spoil(t, b, aEast, bad)
	b.MustDelete(holder)
	b.MustDelete(holder2)
	for range 3 {
		_, _ = b.Do(b.ID(bEast), schema.DropOwners)
		_, _ = b.Do(b.ID(bEast), schema.Finalise)
	}
	b.Gone(ownee2)
	require.NotNil(t, b.Get(holder))
	b.Gone(holder2)
}

// A user begins to require that the owner refers to it: it has the grace period to do so.
func TestARequirementThatIsNewHasAGracePeriod(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = time.Hour })
	b.MustPut(holder, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	requires := owner(t, holder, "Holder")
	requires.Requires = true
	mustOwn(t, b, ownee, nil, requires)
	b.Settle()
	require.NotNil(t, b.Get(ownee), "it has not had an hour")
}

// A resource that blocks its owner is removed with it.
func TestAnOwneeThatRefersToItsOwner(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	mustOwn(t, b, holder, body{"block": target}, owner(t, target, "Target"))
	b.Settle()
	_, err := b.Delete(target)
	require.NoError(t, err)
	b.Settle()
	b.Gone(target, holder)
	b.Audit()
}

// First the ownee's deployment switches, then the owner's: users see the kind's new name.
func TestTheKindFollowsTheOwnersVersion(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	mustOwn(t, b, holder, nil, owner(t, targetName("t"), "Target"))
	b.Settle()
	b.Switch(bEast, "v3")
	b.Settle()
	b.Stores[b.ID(bEast)] = b.SecondProcess(bEast, shadow.Config{})
	b.Switch(aWest, "v2")
	b.Settle()
	require.Equal(t, "v2", b.Get(holder).Owners[0].Version)
	require.Equal(t, "Goal", b.Get(holder).Owners[0].Kind)
}

// An owner's kind is renamed, then the import of its service is removed, then the owner is deleted: the
// resource has it no more.
func TestADeletedOwnerIsRemovedFromTheResource(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	b.MustPut(targetName("t2"), nil)
	mustOwn(t, b, holder, nil, owner(t, targetName("t"), "Target"), owner(t, targetName("t2"), "Target"))
	b.Settle()
	b.Switch(bEast, "v3")
	b.Settle()
	b.Switch(bEast, "v4")
	b.Settle()
	b.MustDelete(targetName("t"))
	b.Settle()
	b.Gone(targetName("t"))
	require.Len(t, b.Get(holder).Owners, 1)
	b.Audit()
}

// The answer is about an owner that is gone. Its name belongs to another resource when the user adds it
// again: the late answer must not pin the new owner reference to the old owner.
func TestALateAnswerDoesNotPinAnOwnerAddedAgain_I9(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = time.Hour })
	b.MustPut(holder, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.AfterCheckOwners = func() {
		b.AfterCheckOwners = nil
		b.MustPut(ownee, nil) // no owner
		b.MustDelete(holder)
		_, err := b.Do(b.ID(bEast), schema.DropOwners)
		require.NoError(t, err)
		_, err = b.Do(b.ID(bEast), schema.Finalise)
		require.NoError(t, err)
		b.Gone(holder)
		b.MustPut(holder, nil)
		mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	}
	b.Settle()
	require.NotNil(t, b.Get(holder))
	require.NotNil(t, b.Get(ownee), "collected while its owner lives")
}

// A name that no deployment takes is not stored: the call with it would be refused as a whole, with all
// others of the batch.
func TestAnOwnersNameIsChecked_I20(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	bad := owner(t, holder, "Holder")
	bad.Owner.Name = "Not a/name"
	require.Error(t, schema.CheckName(bad.Owner.Name), "schema/service/owners.go refuses the whole call for it")
	_, err := b.PutOwned(ownee, nil, bad)
	require.ErrorAs(t, err, new(*peer.InvalidError))
}
