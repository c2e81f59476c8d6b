package shadow_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// refusals of the same delete, by the plan and by the delete itself.
func refusedTwice(t *testing.T, b *harness.Box, deployment,
	name string,
) (plan *shadow.DeletePlan, planned, refused *peer.BlockedError) {
	t.Helper()
	plan, err := b.Stores[b.ID(deployment)].Deletions.PlanDelete(t.Context(), name)
	require.NoError(t, err)
	require.ErrorAs(t, plan.Refusal, &planned)
	_, err = b.Delete("//" + deployment + "/" + name)
	require.ErrorAs(t, err, &refused)
	return plan, planned, refused
}

// A refused delete names every blocker, local and foreign, of the root and of the cascaded members, with the
// field and the target of its reference. The plan has the same list.
func TestADeleteNamesEveryBlockerAndWhatItRefersTo_I13(t *testing.T) {
	t.Parallel()
	const us, eu, as = "a.example.com/us", "a.example.com/eu", "a.example.com/as"
	b := harness.NewBox(t, graphServices, nil, us, eu, as)
	node := func(deployment, name string) string { return "//" + deployment + "/nodes/" + name }
	root, near, far := node(us, "root"), node(us, "near"), node(eu, "far")
	b.MustPut(root, nil)
	b.MustPut(near, body{"c": []any{root}})
	b.MustPut(far, body{"c": []any{root}})
	b.MustPut(node(us, "l1"), body{"b": []any{root}})
	b.MustPut(node(us, "l2"), body{"b": []any{near}})
	b.MustPut(node(as, "r1"), body{"b": []any{root}})
	b.MustPut(node(as, "r2"), body{"b": []any{near}})
	b.MustPut(node(eu, "r3"), body{"b": []any{far}})
	b.MustPut(node(as, "r4"), body{"b": []any{far}})
	want := []string{
		node(as, "r1") + " b.* " + root, node(as, "r2") + " b.* " + near, node(as, "r4") + " b.* " + far,
		node(eu, "r3") + " b.* " + far, node(us, "l1") + " b.* " + root, node(us, "l2") + " b.* " + near,
	}
	for _, settled := range []bool{false, true} {
		if settled {
			b.Settle()
		}
		plan, planned, refused := refusedTwice(t, b, us, "nodes/root")
		require.Equal(t, planned, refused)
		require.Equal(t, len(want), refused.Total)
		var named, drawn []string
		for _, h := range refused.Holders {
			named = append(named, fmt.Sprintf("%s %s %s", h.Name, h.Path, h.Target))
		}
		require.Equal(t, want, named)
		for _, p := range plan.Blockers {
			require.True(t, p.Refuses)
			drawn = append(drawn, fmt.Sprintf("%s %s %s", p.Holder.Name, p.Holder.Path, p.Holder.Target))
		}
		require.Equal(t, want, drawn)
		require.Equal(t, "nodes/root cannot be deleted: it is referred to by "+node(as, "r1")+" (b.*), "+
			node(us, "l1")+" (b.*); "+
			far+", which would be deleted with it, is referred to by "+node(as, "r4")+" (b.*), "+
			node(eu, "r3")+" (b.*); "+
			near+", which would be deleted with it, is referred to by "+node(as, "r2")+" (b.*) and 1 more",
			refused.Error())
	}
	// A blocker that the deletion removes is excused.
	b.MustPut(node(us, "l1"), body{"b": []any{root}, "c": []any{far}})
	b.MustPut(node(as, "r1"), body{"b": []any{root}, "c": []any{near}})
	b.Settle()
	_, planned, refused := refusedTwice(t, b, us, "nodes/root")
	require.Equal(t, planned, refused)
	require.Equal(t, 4, refused.Total)
}

// No member is in another deployment, so that the look-ahead asks no deployment; the list is the same.
func TestLocalAndForeignBlockersAreCountedTogether(t *testing.T) {
	t.Parallel()
	const us, eu = "a.example.com/us", "a.example.com/eu"
	b := harness.NewBox(t, graphServices, nil, us, eu)
	b.MustPut("//"+us+"/nodes/root", nil)
	putMany(t, b, us, "nodes/l", 70, body{"b": []any{"//" + us + "/nodes/root"}})
	putMany(t, b, eu, "nodes/r", 60, body{"b": []any{"//" + us + "/nodes/root"}})
	b.Settle()
	_, planned, refused := refusedTwice(t, b, us, "nodes/root")
	require.Equal(t, 130, refused.Total)
	require.Len(t, refused.Holders, peer.MaxNamedHolders)
	require.Equal(t, planned, refused)
	require.False(t, refused.AtLeast)
}

// A confirmed blockade counts until its holder's deployment reports that it has gone. While that deployment
// cannot be reached, the refusal names it.
func TestAHolderThatHasLetGoCountsUntilItsDeploymentCanSayIt_I13_I29(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"block": target})
	b.Settle()
	b.MustPut(holder, nil) // its release is not delivered
	b.SetDown(bEast, true)
	plan, planned, refused := refusedTwice(t, b, aWest, "targets/t")
	require.Equal(t, planned, refused)
	require.Equal(t, bEast, refused.Unanswered[0].String())
	require.ErrorContains(t, refused, "could not be asked whether their holders still refer: "+bEast)
	require.True(t, plan.Blockers[0].Unanswered)
	require.False(t, plan.Blockers[0].Undecided, "it was confirmed")
	require.Equal(t, peer.Active, b.Get(target).State)
	b.SetDown(bEast, false)
	require.True(t, b.MustDelete(target).Removed, "the verdict is gone")
	b.Settle()
	b.Audit()
}

// A confirmed blocker that may be excused by a deployment that does not answer is shown as such, not as about
// to refer.
func TestAPlanSaysOfWhatReferredForLongWhatItIs(t *testing.T) {
	t.Parallel()
	b := newDeliveries(t, 3)
	b.Settle()
	b.SetDown("b.example.com/us", true)
	plan, err := b.Stores[b.ID("a.example.com/us")].Deletions.PlanDelete(t.Context(), "projects/p")
	require.NoError(t, err)
	require.Len(t, plan.Blockers, 3)
	for _, p := range plan.Blockers {
		require.True(t, p.Unknown)
		require.True(t, p.Undecided)
	}
	require.ErrorContains(t, plan.Refusal, "b.example.com/us cannot be reached")
	_, err = b.Delete(project)
	require.EqualError(t, err, plan.Refusal.Error())
}
