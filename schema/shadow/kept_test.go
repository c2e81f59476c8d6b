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

// v2 drops a pattern of one kind, and another kind; v3 has them again, the kind under another name.
const dropping = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}", "old/{x}/holders/{holder}"]
    references: [{ path: block, targets: [a.example.com/Target], behaviour: BLOCK }, { path: near, targets: [Holder], behaviour: BLOCK }]
  - kind: Gone
    patterns: ["gones/{gone}"]
    references: [{ path: block, targets: [a.example.com/Target], behaviour: BLOCK }]
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{other}"]
    references: [{ path: block, targets: [a.example.com/Target], behaviour: BLOCK }, { path: near, targets: [Holder], behaviour: BLOCK }]
---
service: b.example.com
version: v3
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}", "old/{x}/holders/{holder}"]
  - { kind: Back, previous_name: Gone, patterns: ["gones/{gone}"] }
`

// Kept resources, whose kind or pattern the running version lacks, can be read, listed, planned and deleted,
// and status reports them; until then their references stay.
func TestWhatAVersionHasNoPlaceForIsKept_I13_I26(t *testing.T) {
	t.Parallel()
	b, ctx := harness.NewBox(t, dropping, nil, aWest, bEast), context.Background()
	store := b.Stores[b.ID(bEast)]
	const fine, old, gone = "holders/h", "old/x/holders/h", "gones/g"
	full := func(name string) string { return "//" + bEast + "/" + name }
	for _, n := range []string{"old", "gone"} {
		b.MustPut(targetName(n), nil)
	}
	b.MustPut(full(fine), nil)
	b.MustPut(full(old), body{"block": targetName("old")})
	b.MustPut(full(gone), body{"block": targetName("gone")})
	b.Settle()
	kept, err := store.Read.Kept(ctx)
	require.NoError(t, err)
	require.Empty(t, kept)

	b.Switch(bEast, "v2")
	b.Settle()
	kept, err = store.Read.Kept(ctx)
	require.NoError(t, err)
	require.Equal(t, []shadow.Kept{
		{Kind: "Gone", Resources: 1, Sample: gone},
		{Kind: "Holder", Resources: 1, Sample: old},
	}, kept)
	page, _, err := store.Read.List(ctx, shadow.ListRequest{Limit: 10})
	require.NoError(t, err)
	var listed []string
	for _, r := range page {
		listed = append(listed, r.Kind+" "+r.Name)
	}
	require.Equal(t, []string{"Holder " + fine, "Holder " + old, "Gone " + gone}, listed)
	page, _, err = store.Read.List(ctx, shadow.ListRequest{Limit: 10, Kind: "Gone"})
	require.NoError(t, err)
	require.Len(t, page, 1)
	_, _, err = store.Read.List(ctx, shadow.ListRequest{Limit: 10, Kind: "Never"})
	require.ErrorContains(t, err, "unknown kind")
	for name, target := range map[string]string{old: targetName("old"), gone: targetName("gone")} {
		require.Equal(t, peer.Active, b.Get(full(name)).State)
		_, err := b.Put(full(name), nil)
		require.ErrorAs(t, err, new(*peer.InvalidError))
		require.ErrorContains(t, err, "can be read and deleted")
		_, err = store.Operate.Explain(ctx, name)
		require.NoError(t, err)
		plan, err := store.Deletions.PlanDelete(ctx, name)
		require.NoError(t, err)
		require.Nil(t, plan.Refusal)
		_, err = b.Delete(target)
		require.ErrorAs(t, err, new(*peer.BlockedError), "it still blocks")
		b.MustDelete(full(name))
		b.Settle()
		b.Gone(full(name))
		b.MustDelete(target)
	}
	b.Settle()
	kept, err = store.Read.Kept(ctx)
	require.NoError(t, err)
	require.Empty(t, kept)
	_, err = store.Read.Get(ctx, "never/n")
	require.ErrorContains(t, err, "fits no kind")
	_, err = store.Deletions.Delete(ctx, shadow.DeleteRequest{Name: old})
	require.ErrorIs(t, err, peer.ErrNotFound)
	require.EqualError(t, err, old+": not found")
	b.Audit()
}

// The next version gives the names of a kind to another one. A resource that is stored under such a name is
// read and deleted by it, and no resource of the other kind takes its place before it is gone.
func TestANameThatIsKeptIsNotUsedByAnotherKind_I26(t *testing.T) {
	t.Parallel()
	const services = `
service: a.example.com
version: v1
kinds: [{ kind: Device, patterns: ["devices/{device}", "labs/{lab}/devices/{device}"] }]
---
service: a.example.com
version: v2
patterns_dropped: keep
kinds: [{ kind: Device, patterns: ["devices/{device}"] }, { kind: Sample, patterns: ["labs/{lab}/devices/{device}"] }]
`
	b, ctx := harness.NewBox(t, services, nil, aWest), context.Background()
	store := b.Stores[b.ID(aWest)]
	const name = "labs/l/devices/d"
	stored := b.MustPut("//"+aWest+"/"+name, body{"x": 1})
	b.Switch(aWest, "v2")
	for _, mode := range []peer.Mode{peer.Create, peer.Update, peer.Put} {
		_, err := store.Write.Save(ctx, []peer.Write{{Name: "labs/l/devices/e"}, {Name: name, Mode: mode}})
		require.ErrorIs(t, err, peer.ErrExists)
		require.ErrorContains(t, err, "an earlier version stored it as Device, which can be read and deleted")
	}
	require.Equal(t, stored.UID, b.Get("//"+aWest+"/"+name).UID)
	require.Nil(t, b.Get("//"+aWest+"/labs/l/devices/e"), "all or nothing")
	b.MustPut("//"+aWest+"/labs/l/devices/e", nil)
	b.MustDelete("//" + aWest + "/" + name)
	b.Settle()
	require.Equal(t, "Sample", b.MustPut("//"+aWest+"/"+name, nil).Kind)
	b.MustPut("//"+aWest+"/"+name, body{"x": 2})
	b.MustDelete("//" + aWest + "/" + name)
	b.Settle()
	b.Audit()
}

// A later version with the pattern takes the resource as it is stored.
func TestWhatIsKeptComesBack_I26(t *testing.T) {
	t.Parallel()
	b, ctx := harness.NewBox(t, dropping, nil, aWest, bEast), context.Background()
	uid := b.MustPut("//"+bEast+"/gones/g", nil).UID
	b.MustPut("//"+bEast+"/old/x/holders/h", nil)
	b.Switch(bEast, "v2")
	b.Settle()
	b.Switch(bEast, "v3")
	b.Settle()
	kept, err := b.Stores[b.ID(bEast)].Read.Kept(ctx)
	require.NoError(t, err)
	require.Empty(t, kept)
	require.Equal(t, uid, b.MustPut("//"+bEast+"/gones/g", body{"x": 1}).UID)
	require.Equal(t, "Back", b.Get("//"+bEast+"/gones/g").Kind)
	b.MustPut("//"+bEast+"/old/x/holders/h", body{"x": 1})
	b.Audit()
}

// References to a kept resource are established again after a failover: its unknown kind is no reason to lose
// them.
func TestWhatRefersToWhatIsKeptIsEstablishedAgain_I8_I15(t *testing.T) {
	t.Parallel()
	b, ctx := harness.NewBox(t, dropping, nil, aWest, bEast), context.Background()
	r := b.MustPut("//"+bEast+"/gones/g", nil)
	b.Switch(bEast, "v2")
	ask := func(ref peer.EstablishReference) error {
		_, err := b.Stores[b.ID(bEast)].Targets.Establish(ctx, b.ID(bWest), newAttempt(),
			[]peer.EstablishReference{ref})
		return err
	}
	ref := peer.EstablishReference{
		HolderUID: newAttempt(), HolderKind: "Holder", HolderName: "holders/w", Path: "block", TargetKind: "Gone",
		TargetName: "gones/g", Behaviour: schema.Block,
	}
	require.Equal(t, peer.UnknownKind, refusals(t, ask(ref))[0].Reason, "nothing new refers to it")
	ref.TargetUID = r.UID
	require.NoError(t, ask(ref))
	ref.TargetName = "gones/other"
	require.Equal(t, peer.UnknownKind, refusals(t, ask(ref))[0].Reason, "the kind is unknown")
}

// Another process of the deployment, such as an application with a pool of its own, adopts the running
// version: its lists have the resources of kinds that the version lacks.
func TestAProcessThatAdoptsAVersionListsWhatIsKept_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, dropping, nil, aWest, bEast)
	second := b.SecondProcess(bEast, shadow.Config{})
	b.MustPut("//"+bEast+"/gones/g", nil)
	b.Switch(bEast, "v2")
	require.NoError(t, second.Admin.Adopt(t.Context(), b.Stores[b.ID(bEast)].Model()))
	for _, kind := range []string{"", "Gone"} {
		page, _, err := second.Read.List(t.Context(), shadow.ListRequest{Limit: 10, Kind: kind})
		require.NoError(t, err)
		require.Len(t, page, 1)
		require.Equal(t, "gones/g", page[0].Name)
	}
}

// A kept resource owns its former ownees, and resources that name it as an owner later: both stay while it
// exists, and go with it.
func TestKeptResourcesOwn_I16_I17(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, dropping, graceless, aWest, bEast)
	const gone, old = "//" + bEast + "/gones/g", "//" + bEast + "/old/x/holders/h"
	b.MustPut(gone, nil)
	b.MustPut(old, nil)
	var ownees []string
	own := func(id string) {
		for kind, by := range map[string]string{"Gone": gone, "Holder": old} {
			name := targetName(id + kind)
			mustOwn(t, b, name, nil, owner(t, by, kind))
			ownees = append(ownees, name)
		}
	}
	own("before")
	b.Settle()
	own("unchecked")
	b.Switch(bEast, "v2")
	own("after")
	mustOwn(t, b, targetName("unknown"), nil, owner(t, "//"+bEast+"/gones/never", "Gone"))
	b.Settle()
	for _, name := range ownees {
		require.NotNil(t, b.Get(name), name)
	}
	b.MustDelete(gone)
	b.MustDelete(old)
	b.Settle()
	b.Gone(ownees...)
	require.NotNil(t, b.Get(targetName("unknown")), "a later version may have the kind, and the owner, again")
	b.Audit()
}

// S10: the running version has no place for the target any more, and the holder's version changes the
// behaviour of a stored reference. It is no new reference: it is derived, and a target in DELETING for which
// it blocked is removed.
func TestAReferenceToWhatIsKeptChangesItsBehaviour_I13_I26(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]string{
		"without the pattern": `{ kind: Target, patterns: ["others/{target}"] }`,
		"without the kind":    `{ kind: Other, patterns: ["others/{other}"] }`,
		"without constraints": `{ kind: Target, constraints_disabled: true, patterns: ["targets/{target}"] }`,
		"for others":          `{ kind: Target, referable_by: [c.example.com], patterns: ["targets/{target}"] }`,
		"of another kind":     `{ kind: Target, patterns: ["others/{target}"] }, { kind: Other, patterns: ["targets/{target}"] }`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := harness.NewBox(t, fmt.Sprintf(keptTargets, kind), nil, aWest, bEast)
			soft, firm := targetName("soft"), targetName("firm")
			b.MustPut(soft, nil)
			b.MustPut(firm, nil)
			doomed(b, targetName)
			b.MustPut(holder, body{"block": targetName("mid"), "firm": firm, "soft": soft})
			b.Settle()
			require.Equal(t, peer.Deleting, b.Get(targetName("mid")).State)
			b.Switch(aWest, "v2")
			b.Switch(bEast, "v2")
			b.Settle()
			b.Gone(targetName("mid"))
			require.Zero(t, b.Count(bEast, "work"))
			_, err := b.Delete(soft)
			require.ErrorAs(t, err, new(*peer.BlockedError))
			b.MustDelete(firm)
			b.Settle()
			b.Gone(firm)
			b.Renew(aWest) // the references are established again
			b.Settle()
			require.Zero(t, b.Count(bEast, "dangling"))
			_, err = b.Delete(soft)
			require.ErrorAs(t, err, new(*peer.BlockedError))
			b.Audit()
		})
	}
}

// v2 of b changes each behaviour, and v2 of a has no place for its targets.
const keptTargets = `
service: a.example.com
version: v1
kinds:
  - kind: Target
    patterns: ["targets/{target}"]
    references: [{ path: next, targets: [Target], behaviour: ASYNC_CASCADE_DELETE }]
---
service: a.example.com
version: v2
patterns_dropped: keep
kinds: [%s]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: firm, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: soft, targets: [a.example.com/Target], behaviour: UNSET }
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: firm, targets: [a.example.com/Target], behaviour: ASYNC_UNSET }
      - { path: soft, targets: [a.example.com/Target], behaviour: BLOCK }
---
service: c.example.com
version: v1
kinds: [{ kind: Any, patterns: ["anys/{any}"] }]
`
