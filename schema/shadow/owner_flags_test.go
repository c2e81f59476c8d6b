package shadow_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// unsets sets unset_on_delete of an owner reference.
func unsets(o peer.OwnerReference) peer.OwnerReference {
	o.UnsetOnDelete = true
	return o
}

// Of two owners in one deletion, the one without unset_on_delete decides: in any order, in any database, by
// any message.
func TestAnOwnerWithoutUnsetOnDeleteDecidesInAnyOrder_I17(t *testing.T) {
	t.Parallel()
	holderAt := func(deployment, id string) string { return "//" + deployment + "/holders/" + id }
	for _, c := range []struct{ name, flagged, plain, field string }{
		{"two deployments", holderAt(bEast, "flagged"), holderAt(bWest, "plain"), "cascade"},
		{"one database", holderAt(bEast, "flagged"), holderAt(bEast, "plain"), "cascade"},
		{"the database of the ownee", targetName("flagged"), targetName("plain"), "next"},
	} {
		for _, first := range []string{"flagged", "plain"} {
			for _, how := range []string{"told", "asked"} {
				t.Run(fmt.Sprint(c.name, ", first ", first, ", ", how), func(t *testing.T) {
					t.Parallel()
					b := harness.NewBox(t, services, nil, aWest, bEast, bWest)
					kind := map[string]string{"cascade": "Holder", "next": "Target"}[c.field]
					o := targetName("owned")
					b.MustPut(target, nil)
					b.MustPut(c.flagged, body{c.field: target})
					b.MustPut(c.plain, body{c.field: target})
					mustOwn(t, b, o, nil, unsets(owner(t, c.flagged, kind)), owner(t, c.plain, kind))
					mustOwn(t, b, targetName("other"), nil, unsets(owner(t, c.flagged, kind)))
					b.Settle()
					later := map[string]string{"flagged": c.plain, "plain": c.flagged}[first]
					again := b.Get(o).Owners
					if how == "asked" { // an ownee with a changed flag asks again
						again[0].Controller = true
						again[1].Controller = true
					}
					b.MustDelete(target)
					for _, d := range []string{bEast, bWest} {
						_, err := b.Act(b.ID(d), b.ID(aWest))
						require.NoError(t, err)
					}
					goes(t, b, o, map[string]string{"flagged": c.flagged, "plain": c.plain}[first], how, again)
					require.Len(t, b.Get(o).Owners, 1, "%s is still to come", later)
					b.Settle()
					b.Gone(o, c.flagged, c.plain)
					require.Empty(t, b.Get(targetName("other")).Owners, "its only owner lets it stay")
					require.Zero(t, b.Count(aWest, "owner_lost"))
					b.Audit()
				})
			}
		}
	}
}

// goes delivers the deletion of one owner to an ownee, and no other.
func goes(t *testing.T, b *harness.Box, ownee, gone, how string, again []peer.OwnerReference) {
	t.Helper()
	full, err := schema.ParseFullName(gone)
	require.NoError(t, err)
	store, at := b.Stores[b.ID(aWest)], full.Deployment
	if how == "told" {
		var uid []peer.OwnerReference
		for _, o := range again {
			if o.Owner == full {
				uid = append(uid, o)
			}
		}
		require.Len(t, uid, 1)
		removals, _, err := b.Stores[at].Operate.Removals(t.Context(), shadow.RemovalQuery{
			Name: full.Name,
			UID:  uid[0].UID,
		}, "", 1)
		require.NoError(t, err)
		_, _, err = store.Owners.DropOwners(t.Context(), at, b.Stores[at].Gate.PresentEpoch(),
			[]schema.Deletion{{UID: uid[0].UID, Cause: removals[0].Cause}}, nil)
		require.NoError(t, err)
		return
	}
	mustOwn(t, b, ownee, nil, again...)
	seqs := []int64{}
	for _, w := range b.Work(b.ID(aWest)) {
		if w.Action == schema.CheckOwners && w.Deployment == at {
			seqs = append(seqs, w.Seq)
		}
	}
	require.NotEmpty(t, seqs)
	check, err := store.Owners.OwnersToCheck(t.Context(), at, seqs)
	require.NoError(t, err)
	answers, err := b.Peers(aWest).WouldCheckOwners(t.Context(), at, check.Questions)
	require.NoError(t, err)
	for i, q := range check.Questions {
		if q.Name != full.Name {
			answers.Answers[i].Verdict = peer.OwnerUnknown // its answer has not arrived yet
		}
	}
	_, err = check.Settle(t.Context(), answers)
	require.NoError(t, err)
}
