package shadow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
)

// answersInAnyOrder delays each answer by a random time.
func answersInAnyOrder(b *harness.Box) {
	b.OnPlan = func(ctx context.Context, _ schema.DeploymentID) error {
		select {
		case <-time.After(rand.N(3 * time.Millisecond)):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Equal questions give equal plans in any order of answers: counts, tree, samples of groups, and blockers.
func TestEqualQuestionsGiveEqualPlans(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, graphServices, nil, "a.example.com/us", "a.example.com/eu", "a.example.com/as")
	for seed := range seeds(t) {
		for round := range rounds.Of(12, 3) {
			ns := randomGraph(rand.New(rand.NewPCG(seed, uint64(100+round))), fmt.Sprintf("e%d-%d", seed, round),
				8+round)
			putGraph(t, b, ns)
			root, err := schema.ParseFullName(ns[0].name)
			require.NoError(t, err)
			answersInAnyOrder(b)
			var first *shadow.DeletePlan
			for range 8 {
				plan, err := b.Stores[root.Deployment].Deletions.PlanDelete(t.Context(), root.Name)
				require.NoError(t, err)
				require.Empty(t, plan.Unasked)
				if first == nil {
					first = plan
				}
				require.Equal(t, first, plan, "seed %d, round %d:\n%s", seed, round, draw(ns))
			}
			b.OnPlan = nil
			takeDown(t, b, ns)
		}
	}
}

// A deployment with ownees is asked about all owners at each level: an ownee in two answers counts once.
func TestAPlanCountsAnUnsetOnce(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, graphServices, nil, "a.example.com/us", "a.example.com/eu", "a.example.com/as")
	const r, middle = "//a.example.com/us/nodes/r", "//a.example.com/as/nodes/middle"
	b.MustPut(r, nil)
	b.MustPut(middle, body{"c": []any{r}})
	mustOwn(t, b, "//a.example.com/eu/nodes/owned", nil, owner(t, r, "Node"))
	b.MustPut("//a.example.com/eu/nodes/loses", body{"u": []any{r}})
	b.MustPut("//a.example.com/eu/nodes/goes", body{"c": []any{middle}})
	b.Settle()
	answersInAnyOrder(b)
	for range 20 {
		plan, err := b.Stores[b.ID("a.example.com/us")].Deletions.PlanDelete(t.Context(), "nodes/r")
		require.NoError(t, err)
		unset := 0
		for _, g := range plan.Groups {
			if g.Unset {
				unset += g.Count
			}
		}
		require.Equal(t, 1, unset)
	}
}

// A compact plan has the members of the plan, for the same reasons, and names the members about which other
// deployments have to be asked.
func TestACompactPlanHasTheSameMembers(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, graphServices, nil, "a.example.com/us", "a.example.com/eu", "a.example.com/as")
	leaves, named, truncated, counted := 0, 0, 0, 0
	for round := range rounds.Of(20, 6) {
		ns := randomGraph(rand.New(rand.NewPCG(7, uint64(round))), fmt.Sprintf("c%d", round), 12)
		putGraph(t, b, ns)
		for _, n := range ns[:4] {
			target, err := schema.ParseFullName(n.name)
			require.NoError(t, err)
			root := peer.PlanTarget{Deployment: target.Deployment, UID: b.Get(n.name).UID}
			for _, limit := range []int{1, peer.PlanLimit} {
				for id, s := range b.Stores {
					full, err := s.Deletions.Plan(t.Context(), peer.PlanQuestion{
						Targets: []peer.PlanTarget{root},
						Limit:   limit,
					})
					require.NoError(t, err)
					compact, err := s.Deletions.Plan(t.Context(), peer.PlanQuestion{
						Targets: []peer.PlanTarget{root},
						Limit:   limit, Compact: true,
					})
					require.NoError(t, err)
					count, err := s.Deletions.Plan(t.Context(), peer.PlanQuestion{
						Targets: []peer.PlanTarget{root},
						Limit:   limit, Compact: true, CountLeaves: true,
					})
					require.NoError(t, err)
					if count.Leaves > 0 {
						counted++
						require.Equal(t, &peer.Plan{Leaves: len(full.Members), Truncated: full.Truncated}, count)
						require.Empty(t, full.Blockers)
						require.False(t, slices.ContainsFunc(compact.Members, func(m peer.PlanMember) bool {
							return !m.Leaf()
						}))
					} else {
						require.ElementsMatch(t, uidsOf(compact.Members), uidsOf(count.Members))
						require.ElementsMatch(t, compact.Blockers, count.Blockers)
					}
					require.Equal(t, full.Truncated, compact.Truncated)
					require.ElementsMatch(t, full.Blockers, compact.Blockers)
					require.Len(t, compact.Members, len(full.Members), "%s at %s:\n%s", n.name, id, draw(ns))
					if full.Truncated {
						truncated++
					}
					for _, m := range full.Members {
						i := slices.IndexFunc(compact.Members, func(c peer.PlanMember) bool { return c.UID == m.UID })
						require.GreaterOrEqual(t, i, 0)
						c := compact.Members[i]
						require.ElementsMatch(t, m.Vias, c.Vias)
						require.Equal(t, len(m.Entries)+len(m.Ownees) == 0 && !m.BlockDeletion, c.Leaf(), "%+v", m)
						if c.Leaf() {
							leaves++
							continue
						}
						named++
						m.Vias, c.Vias = nil, nil
						require.Equal(t, m, c)
					}
				}
			}
		}
		takeDown(t, b, ns)
	}
	require.Positive(t, leaves)
	require.Positive(t, named)
	require.Positive(t, truncated)
	require.Positive(t, counted)
}

func uidsOf(members []peer.PlanMember) (uids []uuid.UUID) {
	for _, m := range members {
		uids = append(uids, m.UID)
	}
	return uids
}
