package shadow_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const droppedKind = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - { kind: Holder, patterns: ["holders/{holder}"] }
  - { kind: Other, patterns: ["others/{other}"] }
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
  - kind: Other
    patterns: ["others/{other}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
---
service: b.example.com
version: v3
imports: [a.example.com@v1]
kinds:
  - { kind: Other, patterns: ["others/{other}"] }
`

// v1 -> v2 (adds a reference) -> v3 (drops the kind) -> v2, quickly.
func TestAKindThatIsDroppedAndBackIsDerived_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, droppedKind, nil, aWest, bEast)
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"block": targetName("t")})
	b.Settle()
	b.Switch(bEast, "v2")
	b.Switch(bEast, "v3")
	b.Settle()
	b.Switch(bEast, "v2")
	b.Settle()
	_, err := b.Delete(targetName("t"))
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// The same for a resource that was set aside.
func TestSetAsideWorkSurvivesADroppedKind_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, droppedKind, nil, aWest, bEast)
	b.MustPut(holder, body{"block": targetName("t")})
	b.Switch(bEast, "v2")
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "work"), "set aside: its target is missing")
	b.Switch(bEast, "v3")
	b.Settle()
	b.Switch(bEast, "v2")
	b.MustPut(targetName("t"), nil)
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "reference"))
}

const listed = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: list.*, targets: [a.example.com/Target], behaviour: UNSET }
  - { kind: Other, patterns: ["others/{other}"] }
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: list.*, targets: [a.example.com/Target], behaviour: BLOCK }
  - kind: Other
    patterns: ["others/{other}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
---
service: b.example.com
version: v3
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: list.*, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: more.*, targets: [a.example.com/Target], behaviour: UNSET }
  - kind: Other
    patterns: ["others/{other}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
`

// Two targets of the same relative name in two regions; one region is away.
func TestTheSameNameInTwoRegionsIsDerived_I20(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, listed, nil, aWest, aEast, bEast)
	b.MustPut(target, nil)
	b.MustPut("//"+aEast+"/targets/t", nil)
	b.MustPut(holder, body{"list": []any{target, "//" + aEast + "/targets/t"}})
	b.MustPut(holder2, body{"list": []any{target}})
	b.Settle()
	b.SetDown(aEast, true)
	b.Switch(bEast, "v2")
	for _, w := range b.Work(b.ID(bEast)) {
		if w.Action == schema.Derive {
			_, err := b.Stores[b.ID(bEast)].Admin.Derive(context.Background(), w.Seq)
			require.NoError(t, err)
		}
	}
	b.Settle()
	_, _, derivations, err := b.Stores[b.ID(bEast)].Operate.Status(context.Background())
	require.NoError(t, err)
	require.Equal(t, []shadow.Derivation{{Kind: "Holder", Done: 2, Total: 2, SetAside: 1}}, derivations)
}

// A page of a kind with 21 new references each to one deployment: more than one establish may have.
func TestAPageWithTooManyReferencesIsCut_I20(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, listed, nil, aWest, bEast)
	var targets, writes []peer.Write
	var more []any
	for i := range 21 {
		targets = append(targets, peer.Write{Name: fmt.Sprintf("targets/t%d", i)})
		more = append(more, fmt.Sprintf("//%s/targets/t%d", aWest, i))
	}
	_, err := b.Stores[b.ID(aWest)].Write.Save(context.Background(), targets)
	require.NoError(t, err)
	for i := range 490 { // less than a page of resources
		writes = append(writes, peer.Write{Name: fmt.Sprintf("holders/h%03d", i), Body: body{"more": more}})
	}
	writes = append(writes, peer.Write{Name: "others/o", Body: body{"block": more[0]}})
	_, err = b.Stores[b.ID(bEast)].Write.Save(context.Background(), writes)
	require.NoError(t, err)
	b.Switch(bEast, "v3")
	_, err = b.Do(b.ID(bEast), schema.Derive)
	require.NoError(t, err)
	b.Settle()
	require.Equal(t, 490*21+1, b.Count(bEast, "reference"))
}

// An owner reference that a user drops after a rename and a restart leaves the table.
func TestAnOwnerIsDroppedAfterItsKindWasRenamed_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, chain, nil, aWest, bEast)
	b.MustPut(targetName("t"), nil)
	mustOwn(t, b, holder, nil, owner(t, targetName("t"), "Target"))
	b.Settle()
	b.Switch(bEast, "v2") // calls a's kind Goal; a itself is still at v1
	b.Settle()
	restarted := b.SecondProcess(bEast, shadow.Config{})
	b.Stores[b.ID(bEast)] = restarted
	// no owners
	_, err := restarted.Write.Save(context.Background(), []peer.Write{{Name: "holders/h", Body: body{"mine": true}}})
	require.NoError(t, err)
	require.Empty(t, b.Get(holder).Owners)
	b.MustDelete(targetName("t"))
	b.Settle()
	require.NotNil(t, b.Get(holder), "deleted with an owner that it does not have")
}

const retargeted = `
service: a.example.com
version: v1
kinds:
  - { kind: Target, patterns: ["targets/{target}"] }
  - { kind: Extra, patterns: ["extras/{extra}"] }
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: unset, targets: [a.example.com/Target], behaviour: UNSET }
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: unset, targets: [a.example.com/Extra], behaviour: UNSET }
`

// The target kinds of a field change. The stored reference is UNSET and not derived yet; its target is
// deleted.
func TestAFieldWithOtherTargetsIsUnset_I1(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, retargeted, nil, aWest, bEast)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"unset": target})
	b.Settle()
	b.Switch(bEast, "v2")
	b.Settle() // set aside: the value fits no kind of v2
	require.Equal(t, 1, b.Count(bEast, "reference"), "the stored reference acts")
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	require.Equal(t, 0, b.Count(bEast, "reference"))
	require.Empty(t, value(t, b.Get(holder), "unset"), "the reference was taken away, the value was not")
}

// Process one is between the two transactions of a switch to v2; the lagging process two switches to v1 and
// derives.
func TestASwitchBetweenTheTransactionsOfAnother_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, droppedKind, nil, aWest, bEast)
	ctx := context.Background()
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"block": targetName("t")})
	b.Settle()
	v1, v2 := modelOf(t, droppedKind, "b.example.com", "v1"), modelOf(t, droppedKind, "b.example.com", "v2")
	g := newGate("FROM dbcontroller.field")
	one := gatedProcess(t, b, bEast, g, v1)
	g.arm(0)
	done := make(chan error)
	go func() { done <- one.Admin.Switch(ctx, v2) }()
	<-g.reached // its first transaction is committed
	two := b.Stores[b.ID(bEast)]
	require.NoError(t, two.Admin.Switch(ctx, v1))
	close(g.open)
	require.NoError(t, <-done)
	b.Settle()                                    // by two, at v1
	require.NoError(t, two.Admin.Switch(ctx, v2)) // it catches up
	b.Settle()
	_, err := b.Delete(targetName("t"))
	require.ErrorAs(t, err, new(*peer.BlockedError), "the switch lost the work to derive the kind")
}

// Ids that were read before a switch and are cached after it must not end the kind's pass.
func TestNamesReadBeforeASwitchDoNotComeBack_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, versions, nil, aWest, bEast)
	ctx := context.Background()
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"added": targetName("t")})
	b.Settle()
	g := newGate("FROM dbcontroller.field")
	v1, v2 := modelOf(t, versions, "b.example.com", "v1"), modelOf(t, versions, "b.example.com", "v2")
	store := gatedProcess(t, b, bEast, g, v1)
	g.arm(0)
	done := make(chan error)
	go func() { // any request that brings a new name, such as of a deployment
		_, err := store.Attempts.Answer(ctx, schema.DeploymentID{Service: "c.example.com", Region: "eu"}, nil)
		done <- err
	}()
	<-g.reached // it has read the kinds
	require.NoError(t, store.Admin.Switch(ctx, v2))
	close(g.open)
	require.NoError(t, <-done)
	r, err := store.Read.Get(ctx, "holders/h")
	require.NoError(t, err)
	require.Equal(t, "Keeper", r.Kind)
	for _, w := range b.Work(b.ID(bEast)) {
		if w.Action == schema.Derive {
			derived, err := store.Admin.Derive(ctx, w.Seq)
			require.False(t, err == nil && derived == peer.DerivedAll && b.Count(bEast, "reference") == 0,
				"reported as derived")
		}
	}
}
