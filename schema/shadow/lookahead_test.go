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
	"github.com/db-controller/db-controller/test/rounds"
)

// A project cascades to places and fleets of other services; deliveries cascade with their fleet, and block
// their place.
const deliveries = `
service: a.example.com
version: v1
kinds:
  - {kind: Project, patterns: ["projects/{project}"]}
  - kind: Label
    patterns: ["labels/{label}"]
    references: [{path: project, targets: [Project], behaviour: CASCADE_DELETE}]
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - {path: label, targets: [Label], behaviour: CASCADE_DELETE}
      - {path: blocks, targets: [Project], behaviour: BLOCK}
---
service: c.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Place
    patterns: ["places/{place}"]
    references: [{path: project, targets: [a.example.com/Project], behaviour: CASCADE_DELETE}]
---
service: b.example.com
version: v1
imports: [a.example.com@v1, c.example.com@v1]
kinds:
  - kind: Fleet
    patterns: ["fleets/{fleet}"]
    references: [{path: project, targets: [a.example.com/Project], behaviour: CASCADE_DELETE}]
  - kind: Delivery
    patterns: ["fleets/{fleet}/deliveries/{delivery}"]
    parents: [{kind: Fleet, behaviour: CASCADE_DELETE}]
    references: [{path: place, targets: [c.example.com/Place], behaviour: BLOCK}]
`

const (
	project = "//a.example.com/us/projects/p"
	place   = "//c.example.com/us/places/x"
	outside = "//b.example.com/us/fleets/q/deliveries/outside"
)

func newDeliveries(t *testing.T, n int) *harness.Box {
	t.Helper()
	patient := func(cfg *shadow.Config) {
		if n > 1000 {
			cfg.Times.DeleteTimeout = 20 * time.Second // these tests do not depend on time
		}
	}
	b := harness.NewBox(t, deliveries, patient, "a.example.com/us", "a.example.com/eu", "b.example.com/us",
		"c.example.com/us")
	b.MustPut(project, nil)
	b.MustPut(place, body{"project": project})
	b.MustPut("//b.example.com/us/fleets/p", body{"project": project})
	b.MustPut("//b.example.com/us/fleets/q", nil)
	putMany(t, b, "b.example.com/us", "fleets/p/deliveries/d", n, body{"place": place})
	return b
}

func putMany(t *testing.T, b *harness.Box, deployment, prefix string, n int, content body) {
	t.Helper()
	for first := 0; first < n; first += 1000 {
		var writes []peer.Write
		for i := first; i < min(n, first+1000); i++ {
			writes = append(writes, peer.Write{Name: fmt.Sprint(prefix, i), Body: content})
		}
		_, err := b.Stores[b.ID(deployment)].Write.Save(context.Background(), writes)
		require.NoError(t, err)
	}
}

// Any number of excused blockers refuses nothing; one blocker from outside among them refuses the delete.
func TestBlockersAreJudgedOneByOneHoweverMany_I3(t *testing.T) {
	t.Parallel()
	// more than one question holds, and more than a walk's limit
	for _, n := range rounds.Of([]int{1100, 10_300}, []int{1100}) {
		b := newDeliveries(t, n)
		if n < peer.PlanLimit {
			b.MustPut(outside, body{"place": place})
			b.Settle()
			_, err := b.Delete(project)
			requireBlocked(t, err, outside)
			b.MustPut(outside, nil)
		}
		b.Settle()
		b.MustDelete(project)
		b.Settle()
		b.Gone(project, place, "//b.example.com/us/fleets/p")
		require.LessOrEqual(t, b.Count("b.example.com/us", "shadow"), 2,
			"the other fleet, and the delivery from outside")
		b.Audit()
	}
}

// Local holders of the root that the deletion removes by way of another region.
func TestLocalBlockersThatGoByWayOfAnotherRegionAreExcused_I14(t *testing.T) {
	t.Parallel()
	b := newDeliveries(t, 0)
	b.MustPut("//a.example.com/eu/labels/l", body{"project": project})
	putMany(t, b, "a.example.com/us", "holders/h", 1200, body{
		"label":  "//a.example.com/eu/labels/l",
		"blocks": project,
	})
	b.Settle()
	b.MustDelete(project)
	b.Settle()
	b.Gone(project)
	b.Audit()
}

// Deployments first answer with the number of members that concern no other deployment. The holder of a
// blocker elsewhere can be one of them.
func TestABlockerThatWasOnlyCountedIsExcused_I14(t *testing.T) {
	t.Parallel()
	const root, member, holder, outside = "//a.example.com/us/nodes/t", "//a.example.com/eu/nodes/m",
		"//a.example.com/as/nodes/h", "//a.example.com/as/nodes/o"
	b := harness.NewBox(t, graphServices, nil, "a.example.com/us", "a.example.com/eu", "a.example.com/as")
	b.MustPut(root, nil)
	b.MustPut(member, body{"c": map[string]any{"x": root}})
	b.MustPut(holder, body{"c": map[string]any{"x": root}, "b": map[string]any{"x": member}})
	b.MustPut(outside, body{"b": map[string]any{"x": member}})
	b.Settle()
	_, err := b.Delete(root)
	requireBlocked(t, err, outside)
	b.MustPut(outside, nil)
	b.Settle()
	b.MustDelete(root)
	b.Settle()
	b.Gone(root, member, holder)
	b.Audit()
}

// A bounded number of references is not taken for a number of holders: one holder can have several.
func TestHoldersAreCountedAndNotTheirReferences(t *testing.T) {
	t.Parallel()
	const root = "//a.example.com/us/nodes/t"
	b := harness.NewBox(t, graphServices, nil, "a.example.com/us", "a.example.com/eu")
	b.MustPut(root, nil)
	for i := range 3 {
		b.MustPut(fmt.Sprint("//a.example.com/eu/nodes/h", i), body{
			"c":  map[string]any{"x": root, "y": root},
			"ac": map[string]any{"z": root},
		})
	}
	b.Settle()
	for limit := 1; limit <= 10; limit++ {
		for _, names := range []bool{true, false} {
			plan, err := b.Stores[b.ID("a.example.com/eu")].Deletions.Plan(t.Context(), peer.PlanQuestion{
				Targets: []peer.PlanTarget{{Deployment: b.ID("a.example.com/us"), UID: b.Get(root).UID}}, Limit: limit,
				Compact: true, CountLeaves: !names,
			})
			require.NoError(t, err)
			require.Equal(t, min(limit, 3), plan.Leaves+len(plan.Members))
			require.Equal(t, limit < 3, plan.Truncated)
		}
	}
}

// A member that is blocked, here or elsewhere, that is protected, or with which a blocked one goes, is not
// only counted.
func TestWhatConcernsSomebodyIsNotOnlyCounted_I3(t *testing.T) {
	t.Parallel()
	const root, member, further, outside = "nodes/t", "nodes/m", "nodes/f", "nodes/o"
	us, eu, as := "//a.example.com/us/", "//a.example.com/eu/", "//a.example.com/as/"
	to := func(names ...string) map[string]any {
		refs := map[string]any{}
		for i, n := range names {
			refs[fmt.Sprint(i)] = n
		}
		return refs
	}
	b := harness.NewBox(t, graphServices, nil, "a.example.com/us", "a.example.com/eu", "a.example.com/as")
	for name, put := range map[string]func() (undo func()){
		"blocked here": func() func() {
			b.MustPut(eu+outside, body{"b": to(eu + member)})
			return func() { b.MustDelete(eu + outside) }
		},
		"blocked elsewhere": func() func() {
			b.MustPut(as+outside, body{"b": to(eu + member)})
			return func() { b.MustDelete(as + outside) }
		},
		"protected": func() func() {
			protect(t, b, eu+member, true)
			return func() { protect(t, b, eu+member, false) }
		},
		"a blocked one goes with it here": func() func() {
			b.MustPut(eu+further, body{"c": to(eu + member)})
			b.MustPut(as+outside, body{"b": to(eu + further)})
			return func() { b.MustDelete(as + outside) }
		},
		"a blocked one goes with it elsewhere": func() func() {
			b.MustPut(as+further, body{"c": to(eu + member)})
			b.MustPut(as+outside, body{"b": to(as + further)})
			return func() { b.MustDelete(as + outside) }
		},
	} {
		b.MustPut(us+root, nil)
		b.MustPut(eu+member, body{"c": to(us + root)})
		undo := put()
		b.Settle()
		_, err := b.Delete(us + root)
		require.Error(t, err, name)
		undo()
		b.Settle()
		b.MustDelete(us + root)
		b.Settle()
		b.Gone(us+root, eu+member, eu+further, as+further)
	}
	b.Audit()
}

// An unreachable deployment may have members of the deletion: the delete is neither refused with a named
// resource nor accepted.
func TestADeploymentThatIsAwayIsNamedAndNotItsResources_I15(t *testing.T) {
	t.Parallel()
	b := newDeliveries(t, 3)
	b.Settle()
	b.SetDown("b.example.com/us", true)
	_, err := b.Delete(project)
	var unavailable *peer.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.Equal(t, "b.example.com/us", unavailable.Deployments[0].String())
	require.Equal(t, peer.Active, b.Get(project).State)
	plan, err := b.Stores[b.ID("a.example.com/us")].Deletions.PlanDelete(context.Background(), "projects/p")
	require.NoError(t, err)
	require.ErrorAs(t, plan.Refusal, &unavailable)
	require.True(t, plan.Blockers[0].Undecided)
	b.SetDown("b.example.com/us", false)
	b.MustDelete(project)
	b.Settle()
	b.Gone(project, place)
	b.Audit()
}

// A resource that an owner's deletion collects is excused like a cascading one, if it is really collected.
func TestABlockerThatLosesItsLastOwnerIsExcused(t *testing.T) {
	t.Parallel()
	b := newDeliveries(t, 0)
	b.MustPut("//a.example.com/eu/projects/other", nil)
	mustOwn(t, b, outside, body{"place": place}, owner(t, project, "Project"),
		owner(t, "//a.example.com/eu/projects/other", "Project"))
	b.Settle()
	_, err := b.Delete(project)
	requireBlocked(t, err, outside) // it has another owner
	mustOwn(t, b, outside, body{"place": place}, owner(t, project, "Project"))
	b.Settle()
	b.MustDelete(project)
	b.Settle()
	b.Gone(project, place, outside)
	b.Audit()
}

// A plan that stops at its limit counts the direct references that it left out, also to its own members.
func TestAPlanCountsWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	uid := b.MustPut(target, nil).UID
	for i := range 8 {
		b.MustPut(fmt.Sprint("//", bEast, "/holders/c", i), body{"cascade": target, "unset": target})
		b.MustPut(fmt.Sprint("//", bEast, "/holders/u", i), body{"unset": target})
	}
	b.MustPut("//"+bEast+"/holders/below", body{"near": map[string]any{"cascade": "//" + bEast + "/holders/c0"}})
	b.Settle()
	q := peer.PlanQuestion{Targets: []peer.PlanTarget{{Deployment: b.ID(aWest), UID: uid}}, Limit: 5, Detailed: true}
	plan, err := b.Stores[b.ID(bEast)].Deletions.Plan(t.Context(), q)
	require.NoError(t, err)
	require.True(t, plan.Truncated && plan.MoreUnsets)
	require.Len(t, plan.Members, 5)
	require.Len(t, plan.Unsets, 5)
	require.ElementsMatch(t, []peer.PlanCount{
		{Path: "cascade", Behaviour: schema.CascadeDelete, Count: 8},
		{Path: "near.cascade", Behaviour: schema.CascadeDelete, Count: 1},
		{Path: "unset", Behaviour: schema.Unset, Count: 8},
	}, plan.Counts, "holders that are deleted lose no value")
	require.Equal(t, 9, plan.Holders)
	q.Limit = 9
	plan, err = b.Stores[b.ID(bEast)].Deletions.Plan(t.Context(), q)
	require.NoError(t, err)
	require.False(t, plan.Truncated || plan.MoreUnsets)
	require.Empty(t, plan.Counts)
}
