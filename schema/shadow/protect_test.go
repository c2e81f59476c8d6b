package shadow_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// value returns a field of a body as JSON.
func value(t *testing.T, r *peer.Resource, field string) string {
	t.Helper()
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(r.Body, &fields))
	return string(fields[field])
}

func protect(t *testing.T, b *harness.Box, name string, on bool) {
	t.Helper()
	full, err := schema.ParseFullName(name)
	require.NoError(t, err)
	r, err := b.Stores[full.Deployment].Write.SetBlockDeletion(context.Background(), full.Name, uuid.Nil, on)
	require.NoError(t, err)
	require.Equal(t, on, r.BlockDeletion)
}

func TestBlockDeletionRefusesAndDefers(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(target+"/children/c", nil)
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	var protected *peer.ProtectedError
	// itself, along in the database, along elsewhere
	for _, name := range []string{target, target + "/children/c", holder} {
		protect(t, b, name, true)
		_, err := b.Delete(target)
		require.ErrorAs(t, err, &protected)
		require.Equal(t, name, protected.By[0].String())
		plan, err := b.Stores[b.ID(aWest)].Deletions.PlanDelete(context.Background(), "targets/t")
		require.NoError(t, err)
		require.ErrorAs(t, plan.Refusal, &protected)
		protect(t, b, name, false)
	}
	before := b.Get(holder).Revision
	b.MustPut(holder, body{"cascade": target, "x": 1})
	require.Greater(t, b.Get(holder).Revision, before)
	b.MustDelete(target)
	// after the delete was accepted: the cascade keeps the resource until block_deletion is cleared
	protect(t, b, holder, true)
	b.Settle()
	require.Equal(t, peer.Deleting, b.Get(holder).State)
	conditions, err := b.Stores[b.ID(bEast)].Read.Conditions(context.Background(), "holders/h")
	require.NoError(t, err)
	require.Equal(t, "by block_deletion, which an operator has to clear", conditions[0].Message)
	b.Gone(target, target+"/children/c")
	_, err = b.Put(holder, nil)
	require.ErrorIs(t, err, peer.ErrDeleting)
	protect(t, b, holder, false)
	b.Settle()
	b.Gone(holder)
	b.Audit()
	_, err = b.Stores[b.ID(bEast)].Write.SetBlockDeletion(context.Background(), "holders/h", uuid.Nil, true)
	require.ErrorIs(t, err, peer.ErrNotFound)
}

const hiding = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
    hide_while_deleting: true
    references: [{ path: up, targets: [Target], behaviour: CASCADE_DELETE }]
  - kind: Log
    patterns: ["logs/{log}"]
    constraints_disabled: true
    references: [{ path: about, targets: [Target], behaviour: BLOCK }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: cascade, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
`

// A resource in DELETING is hidden, permanently, as soon as it has no blockade; until then it is readable.
func TestAHiddenResourceStaysHidden_I12(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, hiding, nil, aWest, aEast, bEast)
	store := b.Stores[b.ID(aWest)]
	uid := b.MustPut(target, nil).UID
	b.MustPut(holder, body{"cascade": target})
	b.Settle()
	var seen []peer.State
	watch := func() []peer.State {
		seen = nil
		err := store.Read.WatchResources(context.Background(), "Target", "", "",
			func(e schema.Event[peer.Resource]) error {
				for _, r := range e.Items {
					seen = append(seen, r.State)
				}
				if e.EndOfSnapshot {
					return errors.New("enough")
				}
				return nil
			})
		require.ErrorContains(t, err, "enough")
		return seen
	}
	require.Equal(t, []peer.State{peer.Active}, watch())
	require.True(t, b.MustDelete(target).Removed, "for readers it is gone")
	require.Equal(t, 1, b.Count(aWest, "deleting"), "the holder still has to act")
	b.Gone(target)
	require.Empty(t, watch())
	found, _, err := store.Read.List(context.Background(), shadow.ListRequest{Kind: "Target", Limit: 10})
	require.NoError(t, err)
	require.Empty(t, found)
	_, err = b.Delete(target)
	require.ErrorIs(t, err, peer.ErrNotFound)
	_, err = b.Put(target, nil)
	require.ErrorIs(t, err, peer.ErrDeleting, "the name is not free yet")
	b.Settle()
	b.Gone(target, holder)
	require.NotEqual(t, uid, b.MustPut(target, nil).UID)

	// Blocked by an outsider that came while the cascade was under way: readable until it lets go, then gone
	// for good.
	b.MustPut("//"+aEast+"/targets/up", nil)
	b.MustPut(target, body{"up": "//" + aEast + "/targets/up"})
	b.Settle()
	b.MustDelete("//" + aEast + "/targets/up")
	b.MustPut(holder, body{"block": target})
	b.Settle()
	require.Equal(t, peer.Deleting, b.Get(target).State, "a holder blocks it")
	b.MustPut(holder, nil)
	b.Settle()
	b.Gone(target)
	b.Audit()
}

func TestDisabledConstraintsAreIgnored(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, hiding, nil, aWest, bEast)
	b.MustPut(target, nil)
	entry := "//" + aWest + "/logs/l"
	b.MustPut(entry, body{"about": target})
	b.MustPut(entry, body{"about": "nonsense"})
	require.Zero(t, b.Count(aWest, "reference"))
	require.True(t, b.MustDelete(target).Removed, "a log blocks nothing")
	_, err := b.Stores[b.ID(aWest)].Targets.Establish(context.Background(), b.ID(bEast), newAttempt(),
		[]peer.EstablishReference{{
			HolderUID: uuid.New(), HolderKind: "Holder", HolderName: "holders/h", Path: "block", TargetKind: "Log",
			TargetName: "logs/l", Behaviour: schema.Block,
		}})
	require.ErrorAs(t, err, new(*peer.RefusedError))
	_, err = b.PutOwned("//"+aWest+"/targets/x", nil, owner(t, entry, "Log"))
	require.ErrorContains(t, err, "kind Log cannot own resources")
	// another service does not know the kind; its owner's deployment answers
	_, err = b.PutOwned(holder, nil, owner(t, entry, "Log"))
	require.NoError(t, err)
	b.Settle()
	require.NotNil(t, b.Get(holder), "an invalid owner is not an absent owner")
	require.True(t, b.MustDelete(entry).Removed)
}

// The version of a holder's deployment may still have the constraints of the target's kind: the write is
// refused.
func TestNothingRefersToAKindWithoutConstraints(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, hiding, nil, aWest, bEast)
	ref := reference("block", schema.Block, uuid.New())
	ref.TargetKind, ref.TargetName = "Log", "logs/l"
	_, err := b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), newAttempt(),
		[]peer.EstablishReference{ref})
	require.Equal(t, peer.NotConstrained, refusals(t, err)[0].Reason)
	require.ErrorContains(t, err, "whose constraints are disabled")

	// A stored reference, from before the constraints were disabled, is established again in a recovery.
	ref.TargetUID = b.MustPut("//"+aWest+"/logs/l", nil).UID
	_, err = b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), newAttempt(),
		[]peer.EstablishReference{ref})
	require.NoError(t, err)
}
