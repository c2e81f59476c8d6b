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

// unasked puts a holder, and requires that no other deployment was asked for it.
func unasked(t *testing.T, b *harness.Box, name string, of body) {
	t.Helper()
	before := b.Stores[b.ID(bEast)].Write.DelegatedWrites()
	b.MustPut(name, of)
	require.Greater(t, b.Stores[b.ID(bEast)].Write.DelegatedWrites(), before, name)
	for _, w := range b.Work(b.ID(bEast)) {
		require.NotEqual(t, schema.Confirm, w.Action, name)
	}
}

// A switch of the version derives references that were written under a right by asking, and neither loses nor
// doubles one.
func TestVersionsAreSwitchedWithRights_I26_I30(t *testing.T) {
	t.Parallel()
	b := newVersions(t, func(cfg *shadow.Config) { cfg.Delegations = true })
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"turns": body{"block": target}})
	b.Settle()
	unasked(t, b, holderNumber(1), body{"turns": body{"block": target}}) // UNSET in v1
	b.MustPut(holderNumber(2), body{"turns": body{"unset": target}})     // BLOCK in v1
	b.Settle()
	b.Switch(bEast, "v2")
	b.SetDown(aWest, true)
	b.Settle()
	unasked(t, b, holderNumber(3), body{"turns": body{"unset": target}})
	_, err := b.Put(holderNumber(4), body{"turns": body{"block": target}})
	require.Error(t, err, "it blocks now")
	b.SetDown(aWest, false)
	b.Settle()
	b.Audit()
	_, err = b.Delete(target)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.Equal(t, 2, blocked.Total, "both that were UNSET")
	b.MustPut(holderNumber(0), nil)
	b.MustPut(holderNumber(1), nil)
	b.Settle()
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	require.JSONEq(t, `{"turns": {}}`, string(b.Get(holderNumber(3)).Body))
	b.Audit()
}

// Nothing is written under rights to a deployment that was decommissioned here. A deployment that was
// decommissioned elsewhere ends its rights when it hears of that.
func TestRightsEndWhenADeploymentIsDecommissioned_I15_I31(t *testing.T) {
	t.Parallel()
	t.Run("of the targets", func(t *testing.T) {
		t.Parallel()
		b := delegating(t)
		b.MustPut(target, nil)
		b.MustPut(holderNumber(0), body{"unset": target})
		b.Settle()
		b.SetDown(aWest, true)
		unasked(t, b, holderNumber(1), body{"cascade": target})
		decommission(t, b, bEast, aWest, schema.Unset)
		_, err := b.Put(holderNumber(2), body{"unset": target})
		var refused *peer.RefusedError
		require.ErrorAs(t, err, &refused)
		require.True(t, refused.Only(peer.TargetDecommissioned), "%v", err)
		b.Settle()
		b.Gone(holderNumber(1))
		require.JSONEq(t, `{}`, string(b.Get(holderNumber(0)).Body))
		require.Zero(t, b.Count(bEast, "reference"))
	})
	t.Run("of the holders", func(t *testing.T) {
		t.Parallel()
		b := delegating(t)
		b.MustPut(target, nil)
		b.MustPut(holderNumber(0), body{"unset": target})
		b.Settle()
		unasked(t, b, holderNumber(1), body{"unset": target})
		decommission(t, b, aWest, bEast, schema.Unset)
		ctx, store := t.Context(), b.Stores[b.ID(bEast)]
		require.NoError(t, store.Targets.DecommissionedBy(ctx, b.ID(aEast)), "another one, of which it has none")
		require.Equal(t, 1, rights(t, b, bEast))
		require.NoError(t, store.Targets.DecommissionedBy(ctx, b.ID(aWest)))
		require.Zero(t, rights(t, b, bEast))
		_, err := b.Put(holderNumber(2), body{"unset": target})
		require.Error(t, err, "it asks, and is refused")
	})
}

// The database of a target's deployment is lost for good: rights that it granted count for nothing in its
// replacement, which has never announced an epoch.
func TestRightsOfALostDatabaseCountForNothing_I30(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	unasked(t, b, holderNumber(1), body{"cascade": target})
	b.Replace(aWest)
	b.MustPut(target2, nil)
	accept(t, b, bEast, aWest)
	_, err := b.Put(holderNumber(2), body{"unset": target})
	require.Error(t, err)
	settleThrough(b)
	require.Equal(t, 2, b.Count(bEast, "dangling"), "a person decides")
	delegations, err := b.Stores[b.ID(bEast)].Targets.Delegations(t.Context())
	require.NoError(t, err)
	require.Empty(t, delegations)
	b.MustPut(holderNumber(3), body{"unset": target2})
	b.Settle()
	unasked(t, b, holderNumber(4), body{"unset": target2})
	delegations, err = b.Stores[b.ID(bEast)].Targets.Delegations(t.Context())
	require.NoError(t, err)
	require.Equal(t, []shadow.Delegations{{Deployment: b.ID(aWest), ActingHeld: 1}}, delegations)
}

// A reference under a right takes nothing of the quotas of its deployment, and is written when they are full.
func TestQuotasAreNotForReferencesUnderRights(t *testing.T) {
	t.Parallel()
	b := newPair(t, func(cfg *shadow.Config) {
		cfg.Delegations, cfg.Limits.Quotas = true, peer.Quotas{Tentative: 1, Blocking: 1}
	})
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	for n := 1; n < 4; n++ {
		unasked(t, b, holderNumber(n), body{"unset": target})
	}
	require.Zero(t, b.Count(aWest, "blockade"))
	b.Settle()
	b.Audit()
}

// A right goes with its row when nothing refers to the target any more, and a write that has found it asks.
func TestUnusedRightsAreTidiedUp(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	b.MustPut(holderNumber(0), nil)
	b.Settle()
	require.Equal(t, 1, rights(t, b, bEast))
	_, err := b.Stores[b.ID(bEast)].Admin.Tidy(t.Context())
	require.NoError(t, err)
	require.Zero(t, b.Count(bEast, "foreign_target"))
	b.MustPut(holderNumber(1), body{"cascade": target})
	b.Settle()
	unasked(t, b, holderNumber(2), body{"cascade": target})
	b.MustDelete(target)
	b.Settle()
	b.Gone(target, holderNumber(1), holderNumber(2))
	b.Audit()
}

const undelegated = `
service: a.example.com
version: v1
defaults: { delegation: none }
kinds:
  - { kind: Target, patterns: ["targets/{target}"] }
  - { kind: Open, patterns: ["opens/{open}"], delegation: all }
  - { kind: Later, patterns: ["laters/{later}"], delegation: all }
  - { kind: Listed, patterns: ["listed/{listed}"], delegation: all, referable_by: [b.example.com] }
---
service: a.example.com
version: v2
kinds:
  - { kind: Target, patterns: ["targets/{target}"] }
  - { kind: Open, patterns: ["opens/{open}"] }
  - { kind: Later, patterns: ["laters/{later}"], delegation: none }
  - { kind: Listed, patterns: ["listed/{listed}"], referable_by: [c.example.com] }
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references: [{ path: unset, targets: [a.example.com/Target, a.example.com/Open, a.example.com/Later, a.example.com/Listed], behaviour: UNSET }]
`

// A kind that any described version excludes is asked about each time.
func TestKindsAreExcludedFromDelegations(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, undelegated, func(cfg *shadow.Config) { cfg.Delegations = true }, aWest, bEast)
	for i, name := range []string{"targets/t", "laters/t", "listed/t", "opens/t"} {
		full := "//" + aWest + "/" + name
		b.MustPut(full, nil)
		b.MustPut(holderNumber(2*i), body{"unset": full})
		b.Settle()
		if name == "opens/t" {
			unasked(t, b, holderNumber(2*i+1), body{"unset": full})
			continue
		}
		b.MustPut(holderNumber(2*i+1), body{"unset": full})
		require.Len(t, b.Work(b.ID(bEast)), 1, name)
		b.Settle()
		require.LessOrEqual(t, rights(t, b, bEast), 1, "granted at most by a deployment whose version is open")
	}
}

// The deployment of the target decides about the right to refer to it, unless the grants that are known here
// allow it.
func TestWhoHasNoRightToReferAsks(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	store := b.Stores[b.ID(bEast)]
	put := func(n int, allowed bool) {
		ctx := peer.WithPerson(t.Context(),
			peer.Person{Refer: func(_ context.Context, names []schema.FullName) ([]bool, error) {
				require.Equal(t, target, names[0].String())
				return []bool{allowed}, nil
			}})
		_, err := store.Write.Save(ctx,
			[]peer.Write{{Name: fmt.Sprintf("holders/d%d", n), Body: body{"unset": target}}})
		require.NoError(t, err)
	}
	put(1, true)
	require.Empty(t, b.Work(b.ID(bEast)))
	put(2, false)
	require.Len(t, b.Work(b.ID(bEast)), 1, "it was asked for")
	b.Settle()
	b.Audit()
}

// A write within an application's transaction refers to delegated targets without a call.
func TestAnApplicationsTransactionRefersUnderARight_I22_I30(t *testing.T) {
	t.Parallel()
	b := delegating(t)
	b.MustPut(target, nil)
	b.MustPut(holderNumber(0), body{"unset": target})
	b.Settle()
	b.SetDown(aWest, true)
	store, pool := b.Stores[b.ID(bEast)], b.Pools[b.ID(bEast)]
	in := func(field string) error {
		return within(t.Context(), store, pool, peer.Write{Name: "holders/tx", Body: body{field: target}})
	}
	require.ErrorContains(t, in("block"), "its deployment is unavailable", "it needs the other right")
	require.NoError(t, in("cascade"))
	_, err := store.Write.Validate(t.Context(), peer.Write{Name: "holders/dry", Body: body{"unset": target}})
	require.NoError(t, err, "a dry run answers as the write does")
	b.SetDown(aWest, false)
	b.MustDelete(target)
	b.Settle()
	b.Gone(target, "//"+bEast+"/holders/tx")
	b.Audit()
}
