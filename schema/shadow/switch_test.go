package shadow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// v2 of b adds references, drops one, changes behaviours, adds a parent's, and renames a kind; v2 of a
// renames Target.
const versions = `
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
  - { kind: Extra, patterns: ["extras/{extra}"] }
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: turns.unset, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: turns.block, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: dropped, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: near, targets: [Holder], behaviour: BLOCK }
  - { kind: Note, patterns: ["holders/{holder}/notes/{note}"] }
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Keeper
    previous_name: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: turns.unset, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: turns.block, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: added, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: loose, targets: [Keeper], behaviour: ALLOW_DANGLING }
      - { path: near, targets: [Keeper], behaviour: CASCADE_DELETE }
  - kind: Note
    patterns: ["holders/{holder}/notes/{note}"]
    parents: [{ kind: Keeper, behaviour: CASCADE_DELETE }]
---
service: b.example.com
version: v3
imports: [a.example.com@v2]
kinds:
  - kind: Keeper
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Goal], behaviour: BLOCK }
  - { kind: Note, patterns: ["holders/{holder}/notes/{note}"] }
---
service: b.example.com
version: v4
kinds:
  - { kind: Keeper, patterns: ["holders/{holder}"] }
`

func newVersions(t *testing.T, configure harness.BoxConfig) *harness.Box {
	t.Helper()
	return harness.NewBox(t, versions, configure, aWest, bEast)
}

func targetName(name string) string { return "//" + aWest + "/targets/" + name }

func TestASwitchDerivesReferencesAgain_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	for _, name := range []string{"block", "unset", "turned", "dropped", "added"} {
		b.MustPut(targetName(name), nil)
	}
	b.MustPut(holder2, nil)
	before := b.MustPut(holder, body{
		"block": targetName("block"), "turns": body{"unset": targetName("unset"), "block": targetName("turned")},
		"dropped": targetName("dropped"), "added": targetName("added"), "near": "holders/h2", "loose": "holders/nobody",
	})
	b.MustPut(holder+"/notes/n", nil)
	b.Settle()
	b.Audit()
	deletable := map[string]bool{"block": false, "unset": false, "turned": true, "dropped": false, "added": true}
	check := func() {
		for name, yes := range deletable {
			plan, err := b.Stores[b.ID(aWest)].Deletions.PlanDelete(context.Background(), "targets/"+name)
			require.NoError(t, err)
			require.Equal(t, yes, plan.Refusal == nil, "%s: %v", name, plan.Refusal)
		}
	}
	check()
	b.Switch(bEast, "v2")
	require.Equal(t, before.UID, b.Get(holder).UID)
	require.Equal(t, "Keeper", b.Get(holder).Kind, "renamed with everything it has")
	check() // until they are derived, the stored references count
	b.Settle()
	deletable = map[string]bool{"block": false, "unset": true, "turned": false, "dropped": true, "added": false}
	check()
	b.Audit()
	require.Equal(t, before.Revision, b.Get(holder).Revision, "no change that a user sees")
	b.MustDelete(targetName("unset"))
	b.MustDelete(targetName("dropped"))
	b.Settle()
	require.JSONEq(t, `{"block": "`+targetName("turned")+`"}`, value(t, b.Get(holder), "turns"))
	b.MustDelete(holder2) // near cascades now, and takes the note along, which has a parent now
	b.Settle()
	b.Gone(holder, holder2, holder+"/notes/n", targetName("unset"), targetName("dropped"))
	b.Audit()
}

// Old, new, old again, before the work of the first switch is done.
func TestASwitchBackAndForth_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	for _, name := range []string{"unset", "added"} {
		b.MustPut(targetName(name), nil)
	}
	b.MustPut(holder, body{"turns": body{"unset": targetName("unset")}, "added": targetName("added")})
	b.Settle()
	b.Switch(bEast, "v2")
	b.Switch(bEast, "v1")
	require.Equal(t, "Holder", b.Get(holder).Kind)
	b.Switch(bEast, "v2")
	b.Settle()
	b.Switch(bEast, "v1")
	b.Settle()
	b.Audit()
	require.Equal(t, 1, b.Count(bEast, "reference"))
	_, err := b.Delete(targetName("unset"))
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.MustDelete(targetName("added"))
	b.Settle()
	b.Audit()
}

// A resource that cannot be derived is set aside by itself, reported, and derived as soon as possible.
func TestAResourceThatCannotBeDerivedIsSetAside_I20(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("there"), nil)
	for i := range 10 {
		added := targetName("there")
		if i == 3 {
			added = targetName("missing")
		}
		b.MustPut(fmt.Sprintf("//%s/holders/h%d", bEast, i),
			body{"added": added, "turns": body{"unset": targetName("there")}})
	}
	b.Settle()
	b.Switch(bEast, "v2")
	b.SetDown(aWest, true)
	b.Settle()
	version, _, derivations, err := b.Stores[b.ID(bEast)].Operate.Status(context.Background())
	require.NoError(t, err)
	require.Equal(t, "v2", version)
	require.Equal(t, []shadow.Derivation{{Kind: "Keeper", Done: 10, Total: 10, SetAside: 10}}, derivations,
		"the targets' deployment is away")
	b.SetDown(aWest, false)
	b.Settle()
	_, _, derivations, err = b.Stores[b.ID(bEast)].Operate.Status(context.Background())
	require.NoError(t, err)
	require.Equal(t, []shadow.Derivation{{Kind: "Keeper", Done: 10, Total: 10, SetAside: 1}}, derivations)
	e, err := b.Stores[b.ID(bEast)].Operate.Explain(context.Background(), "holders/h3")
	require.NoError(t, err)
	require.Len(t, e.Reasons, 1)
	require.Contains(t, e.Reasons[0].Error, "added: "+targetName("missing")+" does not exist")
	b.Audit()
	b.MustPut(targetName("missing"), nil)
	b.Settle()
	require.Equal(t, 0, b.Count(bEast, "work"))
	_, err = b.Delete(targetName("missing"))
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// The target has the old form of the reference until it has the new one.
func TestABehaviourChangesAfterTheTargetHasEstablishedIt(t *testing.T) {
	t.Parallel()
	// the delete ends before the blockade expires, and has room for its questions
	b := newVersions(t, func(cfg *shadow.Config) {
		cfg.Times.DeleteTimeout, cfg.Times.TentativeTTL = 5*time.Second, time.Minute
	})
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"turns": body{"block": targetName("t")}})
	b.Settle()
	b.Switch(bEast, "v2")
	b.AfterEstablish = func() {
		b.AfterEstablish = nil
		// The old form still acts: the delete waits for the undecided reference.
		_, err := b.Delete(targetName("t"))
		var blocked *peer.BlockedError
		require.ErrorAs(t, err, &blocked, "an undecided blocking reference counts")
		require.True(t, blocked.Undecided)
	}
	b.Settle()
	_, err := b.Delete(targetName("t"))
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Audit()
}

// While the target's deployment refuses the new form, the old one stays.
func TestTheOldFormStaysWhileTheNewOneIsRefused_I8_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"turns": body{"block": targetName("t")}})
	b.Settle()
	behaviour := func() (v schema.Behaviour) {
		t.Helper()
		require.NoError(t, b.Pools[b.ID(bEast)].QueryRow(t.Context(),
			`SELECT behaviour FROM dbcontroller.reference`).Scan(&v))
		return v
	}
	before := behaviour()
	b.Switch(bEast, "v2")
	b.SetDown(aWest, true)
	_, err := b.Do(b.ID(bEast), schema.Derive)
	require.NoError(t, err)
	require.Equal(t, before, behaviour())
	b.SetDown(aWest, false)
	b.Settle()
	require.Equal(t, schema.Block, behaviour())
	b.Audit()
}

// Large kinds in pages; a crash in the middle goes on where it was; a user's write in between is not lost.
func TestADerivationIsResumable_I19(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	var writes []peer.Write
	for i := range 1200 {
		writes = append(writes, peer.Write{Name: fmt.Sprintf("holders/n%04d", i), Body: body{
			"added": targetName("t"),
			"near":  "holders/n0000",
		}})
	}
	_, err := b.Stores[b.ID(bEast)].Write.Save(context.Background(), writes)
	require.NoError(t, err)
	b.Settle()
	b.Switch(bEast, "v2")
	var pass int64
	for _, w := range b.Work(b.ID(bEast)) {
		if w.Action == schema.Derive {
			pass = w.Seq
		}
	}
	derived, err := b.Stores[b.ID(bEast)].Admin.Derive(context.Background(), pass)
	require.NoError(t, err)
	require.Equal(t, peer.DerivedSome, derived)
	again := b.SecondProcess(bEast, shadow.Config{})
	_, _, derivations, err := again.Operate.Status(context.Background())
	require.NoError(t, err)
	require.Equal(t, []shadow.Derivation{{Kind: "Keeper", Done: 500, Total: 1200}}, derivations)
	b.MustPut("//"+bEast+"/holders/n1100", body{"added": targetName("t"), "x": "by a user"})
	b.Settle()
	b.Audit()
	require.JSONEq(t, `"by a user"`, value(t, b.Get("//"+bEast+"/holders/n1100"), "x"))
	require.Equal(t, 1200+1199, b.Count(bEast, "reference"))
}

// Deployments with different versions agree on identity, and a version that cannot express a reference
// reports that.
func TestPeersOnDifferentVersionsAgreeOnIdentity(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"block": targetName("t")})
	b.Switch(aWest, "v2") // calls it Goal; the holder's deployment still speaks of Target
	b.MustPut(holder2, body{"block": targetName("t")})
	b.Settle()
	require.Equal(t, "Goal", b.Get(targetName("t")).Kind)
	_, err := b.Delete(targetName("t"))
	require.ErrorAs(t, err, new(*peer.BlockedError))
	b.Switch(bEast, "v2")
	b.Switch(bEast, "v3") // speaks of Goal as well
	b.Settle()
	b.Audit()
	b.MustPut(holder, body{"block": targetName("t")})
	require.Empty(t, b.Work(b.ID(bEast)), "the same reference")
	b.Switch(aWest, "v1") // back: Target again
	b.Settle()
	b.MustPut("//"+bEast+"/holders/h3", body{"block": targetName("t")})
	b.Settle()
	b.Audit()
	require.Equal(t, "Target", b.Get(targetName("t")).Kind)

	// A kind that only the newer version has: its deployment answers "unknown", which is not "absent".
	_, err = b.Stores[b.ID(aWest)].Targets.Establish(context.Background(), b.ID(bEast), newAttempt(),
		[]peer.EstablishReference{{
			HolderUID: b.Get(holder).UID, HolderKind: "Keeper", HolderName: "holders/h", Path: "block",
			TargetKind: "Extra",
			TargetName: "extras/x", Behaviour: schema.Block,
		}})
	var refused *peer.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, peer.UnknownKind, refused.Refusals[0].Reason)
}

// Deletions of a service that is not imported any more are still watched: holders may refer to its resources.
func TestADroppedImportLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"turns": body{"block": targetName("t")}, "block": targetName("t")})
	b.Settle()
	b.Switch(bEast, "v4")
	b.Settle()
	pointed, err := b.Stores[b.ID(bEast)].Attempts.ReferencedDeployments(context.Background())
	require.NoError(t, err)
	require.Contains(t, pointed, b.ID(aWest), "its entry there stands until the target goes")
	require.Zero(t, b.Count(bEast, "reference"))
	b.MustDelete(targetName("t"))
	b.Settle()
	b.Gone(targetName("t"))
	b.Audit()
}

// After a switch the version in owner references everywhere follows, in batches, and the kind with it.
func TestASwitchUpgradesOwnerReferences(t *testing.T) {
	t.Parallel()
	b := newVersions(t, func(cfg *shadow.Config) { cfg.Limits.Batch = 7 })
	b.MustPut(targetName("t"), nil)
	for i := range 20 {
		mustOwn(t, b, fmt.Sprintf("//%s/holders/o%02d", bEast, i), nil, owner(t, targetName("t"), "Target"))
	}
	mustOwn(t, b, targetName("u"), nil, owner(t, targetName("t"), "Target"))
	b.Settle()
	b.Switch(aWest, "v2")
	b.SetDown(bEast, true)
	b.Settle()
	require.Equal(t, "v1", b.Get("//" + bEast + "/holders/o00").Owners[0].Version)
	require.Equal(t, "v2", b.Get(targetName("u")).Owners[0].Version)
	outstanding, err := b.Stores[b.ID(aWest)].Admin.Outstanding(context.Background())
	require.NoError(t, err)
	require.Equal(t, "upgrade_owners", outstanding[0].Group)
	require.Equal(t, bEast, outstanding[0].Deployment)
	b.SetDown(bEast, false)
	b.Settle()
	for i := range 20 {
		o := b.Get(fmt.Sprintf("//%s/holders/o%02d", bEast, i)).Owners[0]
		require.Equal(t, "v2", o.Version)
		require.Equal(t, "Goal", o.Kind)
	}
	b.MustDelete(targetName("t"))
	b.Settle()
	require.Zero(t, b.Count(bEast, "shadow"))
	b.Gone(targetName("t"), targetName("u"))
}

// A write that was validated with the old version fails at its commit, and is tried again with the new one.
func TestAWriteOfTheOldVersionIsRetried(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	b.AfterEstablish = func() {
		b.AfterEstablish = nil
		b.Switch(bEast, "v2")
	}
	b.MustPut(holder, body{"block": targetName("t"), "added": targetName("t")})
	b.Settle()
	require.Equal(t, 2, b.Count(bEast, "reference"))
	b.Audit()
}

// A process whose switch was interrupted after its commit, or that lags behind another process's, establishes
// nothing that it could not commit, for any retries of the derivation.
func TestALaggingProcessDerivesNothing_I26(t *testing.T) {
	t.Parallel()
	b := newVersions(t, nil)
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"added": targetName("t"), "dropped": targetName("t")})
	b.Settle()
	b.Switch(bEast, "v2")
	_, err := b.Pools[b.ID(bEast)].Exec(context.Background(),
		`UPDATE dbcontroller.meta SET version = 'v1', generation = generation + 1`)
	require.NoError(t, err)
	for range 2 {
		_, err = b.Do(b.ID(bEast), schema.Derive)
		require.ErrorIs(t, err, peer.ErrAborted)
		require.Equal(t, 0, b.Count(aWest, "tentative"))
		require.Equal(t, 1, b.Count(bEast, "work"), "nothing has to be released again")
	}
	b.Settle()
	b.Switch(bEast, "v1")
	b.Settle()
	b.Audit()
	b.Switch(bEast, "v2")
	b.Settle()
	b.Audit()
	_, err = b.Delete(targetName("t"))
	require.ErrorAs(t, err, new(*peer.BlockedError))
}
