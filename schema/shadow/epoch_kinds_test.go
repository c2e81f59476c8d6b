package shadow_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/handlers"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const kindsOfTargets = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
  - kind: Other
    patterns: ["others/{other}"]
    finalizers: [{ name: badge, holder: user/badges }]
  - kind: Owner
    patterns: ["owners/{owner}"]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references: [{ path: block, targets: [a.example.com/Target, a.example.com/Other], behaviour: BLOCK }]
`

// The same with work of both kinds in one batch: waiting pieces keep no other piece back, and explain names
// only the waiting resource as halted.
func TestAKindThatWaitsKeepsNoOtherBack_I13_I20(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, strings.Replace(kindsOfTargets, `["targets/{target}"]`,
		"[\"targets/{target}\"]\n    finalizers: [{ name: badge, holder: user/badges }]", 1), nil, aWest, bEast)
	uids := map[string]uuid.UUID{target: b.MustPut(target, nil).UID, other: b.MustPut(other, nil).UID}
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore := b.Backup(bEast)
	b.MustPut(holder, body{}) // lost
	b.Settle()
	for _, name := range []string{target, other} {
		require.False(t, b.MustDelete(name).Removed)
	}
	restore()
	b.Recover(bEast)
	_, err := b.Do(b.ID(bEast), schema.AnnounceEpoch)
	require.NoError(t, err)
	b.SetDown(bEast, true)
	for name, uid := range uids {
		clean(t, b, name, uid, "badge")
	}
	west := b.Stores[b.ID(aWest)]
	halted := func(name string) (out []string) {
		e, err := west.Operate.Explain(t.Context(), name)
		require.NoError(t, err)
		for _, r := range e.Reasons {
			if r.Type == "HALTED" {
				out = append(out, r.Message)
			}
		}
		return out
	}
	require.Len(t, halted("targets/t"), 1)
	require.Contains(t, halted("targets/t")[0], bEast)
	require.Empty(t, halted("others/o"))

	var seqs []int64
	for _, w := range b.Work(b.ID(aWest)) {
		if w.Action == schema.Finalise {
			seqs = append(seqs, w.Seq)
		}
	}
	require.Len(t, seqs, 2)
	_, err = (&handlers.Finalise{Store: west.Cascade}).Handle(t.Context(), schema.DeploymentID{}, seqs)
	var part *schema.PartError
	require.ErrorAs(t, err, &part)
	require.Len(t, part.Failed, 1)
	require.ErrorIs(t, part.Cause, peer.ErrKindsRecovering)
	b.Gone(other)
	require.NotNil(t, b.Get(target))
	b.SetDown(bEast, false)
	b.Settle()
	b.Gone(target)
	b.Audit()
}

const other = "//" + aWest + "/others/o"

// waitsFor requires that a deletion is refused because of one deployment.
func waitsFor(t *testing.T, err error, deployment schema.DeploymentID) {
	t.Helper()
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.Equal(t, []schema.DeploymentID{deployment}, unavailable.Deployments)
}

// A restored holder's database refers to kinds again to which it has not referred before. Their targets wait
// until it has compared; targets of other kinds are deleted, in both steps.
func TestAnEpochHoldsUpTheKindsThatItsDatabaseRefersTo_I2_I13(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, kindsOfTargets, nil, aWest, bEast)
	b.MustPut(target, nil)
	uid := b.MustPut(other, nil).UID
	b.MustPut(holder, body{"block": target})
	b.MustPut(holder2, body{"block": other})
	b.MustPut(holder2, body{})
	b.Settle()
	restore := b.Backup(bEast)
	b.MustPut(holder, body{}) // lost
	b.Settle()
	require.Zero(t, b.Count(aWest, "holder_entry"), "nothing here shows that the kind is referred to")
	require.False(t, b.MustDelete(other).Removed, "it has a finalizer")
	restore()
	b.Recover(bEast)
	_, err := b.Do(b.ID(bEast), schema.AnnounceEpoch)
	require.NoError(t, err)

	_, err = b.Delete(target)
	waitsFor(t, err, b.ID(bEast))
	clean(t, b, other, uid, "badge")
	b.SetDown(bEast, true)
	b.Settle()
	b.Gone(other)
	b.MustPut(other, nil)
	b.MustDelete(other)
	b.SetDown(bEast, false)
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// An epoch that comes before the comparison of the former epoch holds up the kinds to which its own database
// refers. Kinds that are not known hold up all.
func TestTheKindsOfTheLastEpochCount_I2_I13(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, kindsOfTargets, nil, aWest, bEast)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.MustPut(holder, body{})
	b.Settle()
	west := b.Stores[b.ID(aWest)]
	record := func(refersTo peer.TargetKinds) {
		_, err := west.Gate.RecordPeerEpoch(t.Context(), b.ID(bEast), uuid.Must(uuid.NewV7()), refersTo)
		require.NoError(t, err)
	}
	refused := func(name string) bool {
		_, err := west.Deletions.PlanDelete(t.Context(), name)
		require.NoError(t, err)
		_, err = b.Delete("//" + aWest + "/" + name)
		if err == nil {
			b.MustPut("//"+aWest+"/"+name, nil)
			return false
		}
		waitsFor(t, err, b.ID(bEast))
		return true
	}
	for _, epoch := range []struct {
		refersTo           peer.TargetKinds
		targetWaits, other bool
	}{
		{peer.TargetKinds{Known: true, Names: []string{"Owner"}}, false, true},
		{peer.TargetKinds{Known: true, Names: []string{"Owner", "Target"}}, true, true},
		{peer.TargetKinds{Known: true}, false, false},
		{peer.TargetKinds{Known: true, Names: []string{"Unheard"}}, true, true},
		{peer.TargetKinds{}, true, true},
	} {
		record(epoch.refersTo)
		require.Equal(t, epoch.targetWaits, refused("targets/t"), epoch.refersTo)
		b.MustPut("//"+aWest+"/owners/o", nil)
		require.Equal(t, epoch.other, refused("owners/o"), epoch.refersTo)
	}
}

// The kinds are the kinds of references, of owners, and of columns of attached tables, whose rows may refer
// without a right. They are of the epoch that is announced.
func TestTheKindsThatADatabaseRefersTo(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, kindsOfTargets, nil, aWest, bEast)
	east := b.Stores[b.ID(bEast)]
	referred := func() peer.TargetKinds {
		epoch, kinds, err := east.Gate.ReferredKinds(t.Context(), b.ID(aWest))
		require.NoError(t, err)
		require.Equal(t, east.Gate.PresentEpoch(), epoch)
		return kinds
	}
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.MustPut(holder2, nil)
	b.MustPut("//"+aWest+"/owners/o", nil)
	_, err := b.PutOwned(holder2, nil, owner(t, "//"+aWest+"/owners/o", "Owner"))
	require.NoError(t, err)
	require.Equal(t, peer.TargetKinds{Known: true, Names: []string{"Owner", "Target"}}, referred())
	require.Equal(t, peer.TargetKinds{Known: true, Names: []string{}}, func() peer.TargetKinds {
		_, kinds, err := b.Stores[b.ID(aWest)].Gate.ReferredKinds(t.Context(), b.ID(aWest))
		require.NoError(t, err)
		return kinds
	}())

	// A table that has no row with a right yet.
	a := newAttached(t)
	a.attach()
	_, kinds, err := a.Stores[a.ID(shop)].Gate.ReferredKinds(t.Context(), a.ID(crm))
	require.NoError(t, err)
	require.Contains(t, kinds.Names, "Customer")
}

// A restored database of targets lacks a blockade. Once the other deployment has stored the epoch and said to
// which kinds it refers, their targets wait until it has compared; targets of other kinds are deleted.
func TestAnEpochHoldsUpTheKindsThatOthersReferTo_I2_I13(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, kindsOfTargets, nil, aWest, bEast)
	b.MustPut(target, nil)
	b.MustPut(other, nil)
	b.Renew(aWest)
	b.Settle()
	// remembered for this epoch of its database
	_, _, err := b.Stores[b.ID(bEast)].Gate.ReferredKinds(t.Context(), b.ID(aWest))
	require.NoError(t, err)
	restore := b.Backup(aWest)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	restore()
	b.Recover(aWest)
	require.Zero(t, b.Count(aWest, "blockade"))
	_, err = b.Delete(other)
	waitsFor(t, err, b.ID(bEast))
	_, err = b.Do(b.ID(aWest), schema.AnnounceEpoch)
	require.NoError(t, err)

	b.SetDown(bEast, true)
	require.False(t, b.MustDelete(other).Removed, "it has a finalizer")
	_, err = b.Delete(target)
	waitsFor(t, err, b.ID(bEast))
	require.ErrorIs(t, err, peer.ErrKindsRecovering)
	b.SetDown(bEast, false)
	b.Settle()
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// The kinds count that the deployment has said in the present epoch, over the database that is known of it.
func TestKindsOfOtherAnswersCountForNothing_I2_I13(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, kindsOfTargets, nil, aWest, bEast)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.MustPut(holder, body{})
	b.Settle()
	b.Renew(aWest)
	west, ctx := b.Stores[b.ID(aWest)].Gate, t.Context()
	waits := func() bool {
		t.Helper()
		b.MustPut("//"+aWest+"/owners/o", nil)
		_, err := b.Delete("//" + aWest + "/owners/o")
		if err != nil {
			waitsFor(t, err, b.ID(bEast))
		}
		return err != nil
	}
	told, err := west.Announcement(ctx, b.ID(bEast))
	require.NoError(t, err)
	require.Equal(t, b.Stores[b.ID(bEast)].Gate.Database(), *told.Database)
	targets, another := peer.TargetKinds{Known: true, Names: []string{"Target"}}, uuid.New()
	require.True(t, waits())
	for what, mark := range map[string]func() error{
		"of another database": func() error {
			return west.MarkAnnounced(ctx, b.ID(bEast), peer.Announcement{Epoch: told.Epoch, Database: &another},
				targets)
		},
		"of one that was not known": func() error {
			return west.MarkAnnounced(ctx, b.ID(bEast), peer.Announcement{Epoch: told.Epoch}, targets)
		},
		"unknown": func() error { return west.MarkAnnounced(ctx, b.ID(bEast), told, peer.TargetKinds{}) },
		"one that is not known here": func() error {
			return west.MarkAnnounced(ctx, b.ID(bEast), told, peer.TargetKinds{Known: true, Names: []string{"Unheard"}})
		},
	} {
		require.NoError(t, mark(), what)
		require.True(t, waits(), what)
	}
	require.NoError(t, west.MarkAnnounced(ctx, b.ID(bEast), told, targets))
	require.False(t, waits())
	_, err = b.Delete(target)
	waitsFor(t, err, b.ID(bEast))

	exec(t, b, aWest, `UPDATE dbcontroller.meta SET server = 'another'`)
	_, err = west.NoticeEpoch(ctx)
	require.NoError(t, err)
	alone := *b.Environment()
	alone.Deployments = slices.DeleteFunc(alone.Deployments, func(d schema.Deployment) bool {
		return d.DeploymentID == b.ID(bEast)
	})
	require.NoError(t, west.Recover(ctx, &alone))
	require.True(t, waits(), "also without its description")
	b.Renew(aWest)
	require.True(t, waits(), "it has said nothing in this epoch")
	require.Error(t, west.MarkAnnounced(ctx, b.ID(bEast), told, targets), "an answer of an earlier epoch")
	require.True(t, waits())
	told, err = west.Announcement(ctx, b.ID(bEast))
	require.NoError(t, err)
	require.NoError(t, west.MarkAnnounced(ctx, b.ID(bEast), told, targets))
	require.False(t, waits())
	require.NoError(t, west.AcceptDatabase(ctx, shadow.AcceptedDatabase{
		Deployment: b.ID(bEast), Database: another,
		Epoch: uuid.Must(uuid.NewV7()), Reason: "it burnt down", By: "user/o",
	}))
	require.True(t, waits(), "another database may refer to others")
}
