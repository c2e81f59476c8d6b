package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
)

// Tests of the answers in docs/guarantees.md about cases that are no errors, but surprise.

// A stored reference stays valid while its target is being deleted: a write that repeats its value is
// accepted. A new reference to the same target is refused.
func TestAWriteMayRepeatAReferenceToWhatIsBeingDeleted_I4(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	middle, remote := "//"+aEast+"/targets/m", "//"+aEast+"/targets/peer"
	b.MustPut(target, nil)
	b.MustPut(middle, body{"next": target})
	b.Settle()
	b.MustDelete(target)
	b.MustPut(holder, body{"block": middle})
	b.MustPut(holder2, body{"cascade": middle})
	b.MustPut(remote, body{"peer": middle})
	_, err := b.Do(b.ID(bEast), schema.Confirm)
	require.NoError(t, err)
	_, err = b.Act(b.ID(aEast), b.ID(aWest))
	require.NoError(t, err)
	require.Equal(t, peer.Deleting, b.Get(middle).State)
	b.MustPut(holder, body{"block": middle, "n": 1.0})
	b.MustPut(holder2, body{"cascade": middle, "n": 1.0})
	b.MustPut(remote, body{"peer": middle, "n": 1.0})
	_, err = b.Put(holder, body{"block": middle, "unset": middle})
	require.Equal(t, peer.TargetDeleting, refusals(t, err)[0].Reason)
	_, err = b.Put(remote, body{"peer": middle, "next": middle})
	require.Equal(t, peer.TargetDeleting, refusals(t, err)[0].Reason)
	b.MustPut(holder, nil)
	_, err = b.Put(holder, body{"block": middle})
	require.Equal(t, peer.TargetDeleting, refusals(t, err)[0].Reason, "the reference was released")
	b.Settle()
	b.Gone(holder2)
	require.Equal(t, peer.Deleting, b.Get(middle).State, "its peer refers to it")
	b.MustPut(remote, nil)
	b.Settle()
	b.Gone(middle)
	b.Audit()
}

// Only the blocked resource waits: the resources that the deletion removes with it are removed at once, here
// and elsewhere.
func TestCascadesGoOnBelowWhatIsBlocked(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	middle, below, child := "//"+aEast+"/targets/m", "//"+aEast+"/targets/below", "//"+aEast+"/targets/m/children/c"
	b.MustPut(target, nil)
	b.MustPut(middle, body{"next": target})
	b.MustPut(below, body{"next": middle})
	b.MustPut(child, nil)
	b.MustPut(holder, body{"cascade": middle})
	b.MustPut(holder2, body{"unset": middle})
	b.Settle()
	b.MustDelete(target)
	b.MustPut("//"+bWest+"/holders/w", body{"block": middle}) // after the look-ahead, before the cascade
	b.Settle()
	require.Equal(t, peer.Deleting, b.Get(middle).State)
	b.Gone(target, below, child, holder)
	require.JSONEq(t, `{}`, string(b.Get(holder2).Body))
	b.MustPut("//"+bWest+"/holders/w", nil)
	b.Settle()
	b.Gone(middle)
	b.Audit()
}

// The look-ahead also reaches ownees that lose their owners. A blocker of such an ownee does not refuse the
// delete: the plan shows it, and the deletion waits for it.
func TestABlockerOfAnOwneeIsSeenAndWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	mustOwn(t, b, ownee, nil, owner(t, target, "Target"))
	b.Settle()
	b.MustPut(holder, body{"block": ownee})
	b.Settle()
	plan, err := b.Stores[b.ID(aWest)].Deletions.PlanDelete(t.Context(), "targets/t")
	require.NoError(t, err)
	require.NoError(t, plan.Refusal)
	require.Len(t, plan.Blockers, 1)
	require.False(t, plan.Blockers[0].Refuses)
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	require.Equal(t, peer.Deleting, b.Get(ownee).State)
	b.MustPut(holder, nil)
	b.Settle()
	b.Gone(ownee)
	b.Audit()
}

// A put replaces the whole resource: a put without owners drops them all, and the resource is not collected.
// An update mask keeps them.
func TestAPutWithoutOwnersDropsThem(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.MustPut(target, nil)
	mustOwn(t, b, ownee, nil, owner(t, target, "Target"))
	mustOwn(t, b, ownee2, nil, owner(t, target, "Target"))
	b.Settle()
	b.MustPut(ownee, body{"n": 1.0})
	_, err := b.Stores[b.ID(aEast)].Write.Save(t.Context(), []peer.Write{{
		Mode: peer.Update, Name: "targets/owned2", Body: body{"n": 1.0}, Mask: []string{"body"},
	}})
	require.NoError(t, err)
	require.Empty(t, b.Get(ownee).Owners)
	require.Len(t, b.Get(ownee2).Owners, 1)
	b.MustDelete(target)
	b.Settle()
	b.Gone(target, ownee2)
	require.Equal(t, peer.Active, b.Get(ownee).State)
	b.Audit()
}

const hidingPeers = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
    hide_while_deleting: true
    references:
      - { path: up, targets: [Target], behaviour: CASCADE_DELETE }
      - { path: peer, targets: [Target], behaviour: BLOCK }
`

// A resource of a kind that hides DELETING resources stays readable while a holder in its own database blocks
// it: when it is marked, and when it is looked at again.
func TestWhatALocalHolderBlocksIsNotHidden_I2_I12(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, hidingPeers, nil, aWest, aEast)
	up, remote, peer2 := "//"+aEast+"/targets/up", "//"+aWest+"/targets/peer", "//"+aWest+"/targets/peer2"
	b.MustPut(up, nil)
	b.MustPut(target, body{"up": up})
	b.Settle()
	b.MustDelete(up)
	b.MustPut(remote, body{"peer": target}) // after the look-ahead, before the cascade
	b.MustPut(peer2, body{"peer": target})
	_, err := b.Act(b.ID(aWest), b.ID(aEast))
	require.NoError(t, err)
	visible := func() {
		t.Helper()
		require.NotNil(t, b.Get(target), "a holder refers to it")
		require.Equal(t, peer.Deleting, b.Get(target).State)
	}
	visible()
	b.Settle()
	visible()
	b.MustPut(peer2, nil) // creates the work that looks at the target again
	b.Settle()
	visible()
	b.MustPut(remote, nil)
	b.Settle()
	b.Gone(target, up)
	b.Audit()
}
