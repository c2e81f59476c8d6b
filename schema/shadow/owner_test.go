package shadow_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// owner is an owner reference to a resource by its full name. Targets import nothing: owners need no import.
func owner(t *testing.T, name, kind string) peer.OwnerReference {
	t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(t, err)
	return peer.OwnerReference{Owner: full, Kind: kind}
}

func mustOwn(t *testing.T, b *harness.Box, name string, content body, owners ...peer.OwnerReference) peer.Resource {
	t.Helper()
	r, err := b.PutOwned(name, content, owners...)
	require.NoError(t, err)
	return r
}

func graceless(cfg *shadow.Config) { cfg.Times.OwnerGrace = time.Nanosecond }

// The ownee is of a service that imports nothing, its owner of a service in another region.
const ownee, ownee2 = "//" + aEast + "/targets/owned", "//" + aEast + "/targets/owned2"

func TestAnOwnerIsPinnedAndItsDeletionCollectsTheOwnee_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	o := b.MustPut(holder, nil)
	saved := mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	found := b.Get(ownee)
	require.Len(t, found.Owners, 1)
	require.Equal(t, o.UID, found.Owners[0].UID)
	require.Equal(t, "v1", found.Owners[0].Version)
	require.Greater(t, found.Revision, saved.Revision, "an ordinary update")

	deleted := b.MustDelete(holder)
	require.False(t, deleted.Removed, "the owner goes after its ownees' deployment has acted")
	conditions, err := b.Stores[b.ID(bEast)].Read.Conditions(context.Background(), "holders/h")
	require.NoError(t, err)
	require.Equal(t, []shadow.Condition{{Type: "WAITING", Message: "for " + aEast + " to drop it as an owner"}},
		conditions)
	require.NotNil(t, b.Get(ownee), "nothing happens before the drop is delivered")
	b.Settle()
	b.Gone(holder, ownee)
	require.Zero(t, b.Count(aEast, "owner_reference"))
	require.Zero(t, b.Count(bEast, "ownee_entry"))
	b.Audit()
}

func TestNothingIsCollectedWhileOneOfItsOwnersLives_I16(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(holder, nil)
	b.MustPut(holder2, nil)
	b.MustPut(target, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"), owner(t, target, "Target"), owner(t, holder2, "Holder"))
	b.Settle()
	b.MustDelete(holder)
	b.Settle()
	b.MustDelete(target)
	b.Settle()
	b.Gone(holder, target)
	require.Len(t, b.Get(ownee).Owners, 1)
	require.Equal(t, "holders/h2", b.Get(ownee).Owners[0].Owner.Name)
	b.MustDelete(holder2)
	b.Settle()
	b.Gone(ownee, holder2)
	b.Audit()
}

// Unreachable, cold, answered by an old version: unknown is not absent.
func TestAnOwnerThatCannotBeAskedCollectsNothing_I15(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.SetDown(bEast, true)
	b.Settle()
	require.NotNil(t, b.Get(ownee), "its owner's deployment cannot be reached")
	nowhere := "//c.example.com/us-west2/things/x"
	mustOwn(t, b, ownee2, nil, owner(t, nowhere, "Thing"))
	b.Settle()
	require.NotNil(t, b.Get(ownee2), "no deployment has that name")
	b.SetDown(bEast, false)
	b.Settle()
	b.Gone(ownee)
	require.NotNil(t, b.Get(ownee2))

	mustOwn(t, b, "//"+aEast+"/targets/kindless", nil, owner(t, holder, "Robot"))
	b.Settle()
	require.NotNil(t, b.Get("//"+aEast+"/targets/kindless"), "its version does not know the kind: unknown")
	e, err := b.Stores[b.ID(aEast)].Operate.Explain(context.Background(), "targets/kindless")
	require.NoError(t, err)
	require.True(t, e.Pending)
	require.Equal(t, "OWNER", e.Reasons[0].Type)
	require.Contains(t, e.Reasons[0].Message, "Robot "+holder+" has not been found yet")
}

func TestAnOwnerThatIsMissingMayComeUntilTheGraceIsOver(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = time.Hour })
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	mustOwn(t, b, ownee2, nil, owner(t, holder2, "Holder"))
	b.Settle()
	require.NotNil(t, b.Get(ownee))
	o := b.MustPut(holder, nil)
	b.Settle()
	require.Equal(t, o.UID, b.Get(ownee).Owners[0].UID, "it came")
	require.Equal(t, uuid.Nil, b.Get(ownee2).Owners[0].UID)
	_, err := b.Pools[b.ID(aEast)].Exec(context.Background(),
		`UPDATE dbcontroller.owner_reference SET created_at = created_at - interval '2 hours'`)
	require.NoError(t, err)
	b.Settle()
	b.Gone(ownee2)
	require.NotNil(t, b.Get(ownee))
}

// A uid, name and kind that do not belong to one resource are refused. Where the owner's deployment is away,
// the owner is as missing as one without a uid: it is not known to be gone.
func TestAnOwnerWithAWrongUIDRemovesNobodyUnnoticed_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = time.Hour })
	former := b.MustPut(holder, nil)
	b.MustDelete(holder)
	b.Settle()
	present := b.MustPut(holder, nil)
	other := b.MustPut("//"+aEast+"/targets/other", nil)
	wrong := map[string]peer.OwnerReference{
		"that never was":     owner(t, holder, "Holder"),
		"of another name":    owner(t, holder2, "Holder"),
		"of another region":  owner(t, "//"+bWest+"/holders/h", "Holder"),
		"of this deployment": owner(t, "//"+aEast+"/targets/nobody", "Target"),
		"of the former one":  owner(t, holder, "Holder"),
	}
	for name, uid := range map[string]uuid.UUID{
		"that never was":  uuid.Must(uuid.NewV7()),
		"of another name": present.UID, "of another region": present.UID, "of this deployment": other.UID,
		"of the former one": former.UID,
	} {
		o := wrong[name]
		o.UID = uid
		wrong[name] = o
	}
	child := func(name string) string { return "//" + aEast + "/targets/" + strings.ReplaceAll(name, " ", "-") }
	for name, o := range wrong {
		_, err := b.PutOwned(child(name), nil, o)
		require.ErrorAs(t, err, new(*peer.InvalidError), name)
		require.ErrorContains(t, err, "leave the uid out", name)
	}
	right := owner(t, holder, "Holder")
	right.UID = present.UID
	mustOwn(t, b, child("right"), nil, right)
	delete(wrong, "of this deployment") // which is never away
	delete(wrong, "of the former one")  // of whose removal there is a record
	b.SetDown(bEast, true)
	b.SetDown(bWest, true)
	for name, o := range wrong {
		mustOwn(t, b, child(name), nil, o)
	}
	b.SetDown(bEast, false)
	b.SetDown(bWest, false)
	b.Settle()
	for name := range wrong {
		require.NotNil(t, b.Get(child(name)), name)
	}
	_, err := b.Pools[b.ID(aEast)].Exec(context.Background(),
		`UPDATE dbcontroller.owner_reference SET created_at = created_at - interval '2 hours'`)
	require.NoError(t, err)
	b.Settle()
	for name := range wrong {
		b.Gone(child(name))
	}
	require.NotNil(t, b.Get(child("right")))
}

func TestAnOwnerThatIsCreatedAgainIsAnotherOne_I9(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	first := b.MustPut(holder, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	b.SetDown(aEast, true)
	b.MustDelete(holder)
	b.Settle()
	require.NotNil(t, b.Get(holder), "it waits for the unreachable ownees' deployment")
	b.SetDown(aEast, false)
	b.Settle()
	b.Gone(holder, ownee)
	again := b.MustPut(holder, nil)
	other := mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	// A late message about the first owner does not affect the second one's ownee.
	_, more, err := b.Stores[b.ID(aEast)].Owners.DropOwners(context.Background(), b.ID(bEast),
		b.Stores[b.ID(bEast)].Gate.PresentEpoch(), []schema.Deletion{{UID: first.UID}}, nil)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, other.UID, b.Get(ownee).UID)
	require.Equal(t, again.UID, b.Get(ownee).Owners[0].UID)
}

// The controllers of both sides are down while the owner is deleted; the outstanding work is found again.
func TestOwnersThatGoWhileTheControllersAreDown_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, graceless)
	b.MustPut(holder, nil)
	b.MustPut(holder2, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	b.MustDelete(holder) // not yet announced to the ownees' deployment
	mustOwn(t, b, ownee2, nil, owner(t, holder2, "Holder"))
	b.MustDelete(holder2) // removed: no deployment had an ownee entry yet
	b.Gone(holder2)
	require.NotNil(t, b.Get(ownee))
	require.NotNil(t, b.Get(ownee2))
	b.Settle() // both are started again
	b.Gone(holder, ownee, ownee2)
	b.Audit()
}

// An owner is deleted after its deployment's answer and before the ownee's deployment applies it.
func TestAnOwnerThatGoesWhileItIsCheckedIsNotMissed(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(holder, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.AfterCheckOwners = func() {
		b.AfterCheckOwners = nil
		require.False(t, b.MustDelete(holder).Removed, "the check left an entry, under the owner's lock")
		_, err := b.Do(b.ID(bEast), schema.DropOwners) // before the uid is pinned: it finds nothing
		require.NoError(t, err)
		_, err = b.Do(b.ID(bEast), schema.Finalise)
		require.NoError(t, err)
	}
	b.Settle()
	b.Gone(holder, ownee) // asked once more by the uid
	b.Audit()
}

func TestRequiredOwnersHaveToRefer(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = time.Hour })
	requires := owner(t, holder, "Holder")
	requires.Requires = true
	b.MustPut(holder, nil)
	mustOwn(t, b, ownee, nil, requires)
	b.Settle()
	require.NotNil(t, b.Get(ownee), "the owner may still come to refer to it")
	b.MustPut(holder, body{"unset": ownee})
	b.Settle()
	require.Equal(t, b.Get(holder).UID, b.Get(ownee).Owners[0].UID)

	// It drops and adds the reference before the message is sent: nothing happens.
	b.MustPut(holder, nil)
	b.MustPut(holder, body{"unset": ownee})
	b.Settle()
	require.NotNil(t, b.Get(ownee))

	b.MustPut(holder, nil)
	b.Settle()
	b.Gone(ownee)
	require.NotNil(t, b.Get(holder))
	b.Audit()
}

func TestTheLastOwnerWithUnsetOnDeleteLeavesTheResource(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	unset := owner(t, holder, "Holder")
	unset.UnsetOnDelete, unset.Controller = true, true
	b.MustPut(holder, nil)
	b.MustPut(holder2, nil)
	mustOwn(t, b, ownee, body{"x": "kept"}, unset)
	mustOwn(t, b, ownee2, nil, unset, owner(t, holder2, "Holder"))
	b.Settle()
	require.True(t, b.Get(ownee).Owners[0].Controller)
	b.MustDelete(holder)
	b.Settle()
	require.Empty(t, b.Get(ownee).Owners)
	require.JSONEq(t, `{"x": "kept"}`, string(b.Get(ownee).Body))
	require.Len(t, b.Get(ownee2).Owners, 1)
	b.MustDelete(holder2)
	b.Settle()
	b.Gone(ownee2)
	require.NotNil(t, b.Get(ownee))
}

// Owners that own one another keep one another alive; when one is deleted, all are.
func TestRingsOfOwners(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	ring := []string{target, "//" + bWest + "/holders/r", ownee}
	kinds := []string{"Target", "Holder", "Target"}
	for i, name := range ring {
		b.MustPut(name, nil)
		mustOwn(t, b, name, nil, owner(t, ring[(i+1)%3], kinds[(i+1)%3]))
	}
	for i, name := range ring {
		mustOwn(t, b, name, nil, owner(t, ring[(i+1)%3], kinds[(i+1)%3]))
	}
	b.Settle()
	require.NotNil(t, b.Get(ring[0]))
	b.MustDelete(ring[1])
	b.Settle()
	b.Gone(ring...)
	b.Audit()
	_, err := b.PutOwned(target, nil, owner(t, target, "Target"))
	require.ErrorContains(t, err, "a resource cannot own itself")
}

// A user gives a resource a new owner while its last one is being dropped: both orders are valid, and no
// owner is lost.
func TestACollectionIsConditionalOnTheOwnersJustRead_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(holder, nil)
	b.MustPut(holder2, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	b.MustDelete(holder)
	mustOwn(t, b, ownee, nil, b.Get(ownee).Owners[0], owner(t, holder2, "Holder"))
	b.Settle()
	require.Len(t, b.Get(ownee).Owners, 1)
	b.Gone(holder)
	b.MustDelete(holder2)
	b.Settle()
	b.Gone(ownee)
}

// A collected resource cascades and is blocked as in any other deletion.
func TestACollectedResourceCascadesAndMayBeBlocked(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	mustOwn(t, b, ownee, nil, owner(t, target, "Target"))
	b.MustPut(ownee+"/children/c", nil)
	b.MustPut(holder, body{"cascade": ownee})
	b.MustPut(holder2, body{"block": ownee})
	b.Settle()
	b.MustDelete(target)
	b.Settle()
	b.Gone(target, holder, ownee+"/children/c")
	require.Equal(t, peer.Deleting, b.Get(ownee).State, "it waits, and explains for which deployment")
	conditions, err := b.Stores[b.ID(aEast)].Read.Conditions(context.Background(), "targets/owned")
	require.NoError(t, err)
	require.Equal(t, []shadow.Condition{{Type: "BLOCKED", Message: "by " + holder2 + " (block)"}}, conditions)
	b.MustPut(holder2, nil)
	b.Settle()
	b.Gone(ownee)
	b.Audit()
}

// A user's own removal of the last owner reference keeps the resource; owners are compared by name unless a
// uid is given.
func TestOwnersAreReplacedAsAWhole(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(holder, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	pinned := b.Get(ownee)
	mustOwn(t, b, ownee, body{"x": "y"}, owner(t, holder, "Holder"))
	require.Equal(t, pinned.Owners, b.Get(ownee).Owners, "named without its uid, it is the existing one")
	require.Empty(t, b.Work(b.ID(aEast)), "no further check")
	b.MustPut(ownee, nil)
	b.Settle()
	require.Empty(t, b.Get(ownee).Owners)
	b.MustDelete(holder)
	b.Settle()
	b.Gone(holder)
	require.NotNil(t, b.Get(ownee))

	for says, owners := range map[string][]peer.OwnerReference{
		"is listed twice":     {owner(t, holder, "Holder"), owner(t, holder, "Holder")},
		" is listed twice":    {owner(t, holder, "Holder"), withUID(owner(t, holder, "Holder"), uuid.New())},
		"want upper camel":    {owner(t, holder, "holder")},
		"is of kind Target":   {owner(t, target, "Child")},
		"more than 100 owner": make([]peer.OwnerReference, 101),
	} {
		_, err := b.PutOwned(ownee, nil, owners...)
		require.ErrorAs(t, err, new(*peer.InvalidError))
		require.ErrorContains(t, err, says)
	}
}

// Repeated, late and out of order, messages about owners have no other effect (I7).
func TestOwnerMessagesAreIdempotentAndCommute_I7(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	ctx, from, at := context.Background(), b.ID(bEast), b.Stores[b.ID(aEast)]
	o := b.MustPut(holder, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.Settle()
	for range 2 { // an upgrade of a later switch, then one of an earlier one, each twice
		n, err := at.Owners.UpgradeOwners(ctx, from, "v7", 70, nil)
		require.NoError(t, err)
		require.Zero(t, n)
		_, err = at.Owners.UpgradeOwners(ctx, from, "v6", 60, nil)
		require.NoError(t, err)
	}
	require.Equal(t, "v7", b.Get(ownee).Owners[0].Version)
	// A let-go that comes when the owner does not have to refer at all.
	_, _, err := at.Owners.DropOwners(ctx, from, uuid.Nil, nil,
		[]peer.OwnerRelease{{Owner: o.UID, Ownee: b.Get(ownee).UID}})
	require.NoError(t, err)
	b.Settle()
	require.NotNil(t, b.Get(ownee))
	// A drop from another deployment than the owner's has no effect.
	_, _, err = at.Owners.DropOwners(ctx, b.ID(bWest), b.Stores[b.ID(bWest)].Gate.PresentEpoch(),
		[]schema.Deletion{{UID: o.UID}}, nil)
	require.NoError(t, err)
	require.Len(t, b.Get(ownee).Owners, 1)
	for range 2 {
		_, more, err := at.Owners.DropOwners(ctx, from, b.Stores[from].Gate.PresentEpoch(),
			[]schema.Deletion{{UID: o.UID}}, nil)
		require.NoError(t, err)
		require.False(t, more)
		b.Gone(ownee)
	}
	for range 3 { // checks leave one entry
		_, err := b.Stores[from].Owners.CheckOwners(ctx, b.ID(aEast),
			[]peer.OwnerQuestion{{Kind: "Holder", Name: "holders/h"}, {Kind: "Holder", Name: "holders/h", UID: o.UID}})
		require.NoError(t, err)
	}
	require.Equal(t, 1, b.Count(bEast, "ownee_entry"))
}

// An answer from before a switch of the owners' deployment arrives after the message about the switch.
func TestAnAnswerOfBeforeASwitchDoesNotBringTheOldVersionBack(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(holder, nil)
	mustOwn(t, b, ownee, nil, owner(t, holder, "Holder"))
	b.AfterCheckOwners = func() {
		b.AfterCheckOwners = nil
		_, err := b.Stores[b.ID(aEast)].Owners.UpgradeOwners(context.Background(), b.ID(bEast), "v9", 9, nil)
		require.NoError(t, err)
	}
	n, err := b.Do(b.ID(aEast), schema.CheckOwners)
	require.NoError(t, err)
	require.Zero(t, n, "asked again")
	require.NotEqual(t, "v1", b.Get(ownee).Owners[0].Version)
}

// One owner of thousands: all ownees are deleted, in bounded transactions.
func TestAnOwnerOfThousands_I21(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(cfg *shadow.Config) { cfg.Limits.Batch = 50 })
	b.MustPut(holder, nil)
	var writes []peer.Write
	for i := range 300 {
		writes = append(writes, peer.Write{
			Name:   fmt.Sprintf("targets/n%d", i),
			Owners: []peer.OwnerReference{owner(t, holder, "Holder")},
		})
	}
	_, err := b.Stores[b.ID(aEast)].Write.Save(context.Background(), writes)
	require.NoError(t, err)
	b.Settle()
	b.MustDelete(holder)
	b.Settle()
	require.Zero(t, b.Count(aEast, "shadow"))
	b.Gone(holder)
}
