package shadow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const rootOfMany = "//a.example.com/r0/nodes/root"

// newMany creates a root in the first of n regions, and in each other region a node that cascades with it.
func newMany(t *testing.T, n int, configure harness.BoxConfig) *harness.Box {
	t.Helper()
	var deployments []string
	for i := range n {
		deployments = append(deployments, fmt.Sprintf("a.example.com/r%d", i))
	}
	b := harness.NewBox(t, graphServices, configure, deployments...)
	b.MustPut(rootOfMany, nil)
	for i := 1; i < n; i++ {
		b.MustPut(nodeOf(i), body{"c": []any{rootOfMany}})
	}
	b.Settle()
	return b
}

func nodeOf(region int) string { return fmt.Sprintf("//a.example.com/r%d/nodes/n", region) }

// unaskedIDs returns the deployments that a delete or a plan could not ask.
func unaskedIDs(unasked []peer.Unasked) (ids []string) {
	for _, u := range unasked {
		ids = append(ids, u.Deployment.String())
	}
	return ids
}

// No deployment answers before all are asked: asked one after the other, they would never answer.
func TestADeleteAsksALevelAtTheSameTime(t *testing.T) {
	t.Parallel()
	const n = 18
	b := newMany(t, n, nil)
	var mu sync.Mutex
	arrived := map[schema.DeploymentID]bool{} // guarded by mu
	all := make(chan struct{})
	b.OnPlan = func(ctx context.Context, to schema.DeploymentID) error {
		mu.Lock()
		if arrived[to] = true; len(arrived) == n-1 {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	require.Empty(t, b.MustDelete(rootOfMany).Unasked)
	b.OnPlan = nil
	b.Settle()
	b.Gone(rootOfMany, nodeOf(1), nodeOf(n-1))
}

// A deployment answers only after the walk of all others has ended: it delays none of them, and its answer
// counts.
func TestASlowDeploymentIsWaitedForAndDelaysNoOther_I20(t *testing.T) {
	t.Parallel()
	b := newMany(t, 6, nil)
	below, blocker := "//a.example.com/r5/nodes/below", "//a.example.com/r5/nodes/blocker"
	b.MustPut(nodeOf(3), body{"c": []any{nodeOf(2)}})
	b.MustPut(nodeOf(4), body{"c": []any{nodeOf(3)}})
	b.MustPut(nodeOf(5), body{"c": []any{nodeOf(4)}})
	b.MustPut(below, body{"c": []any{nodeOf(1)}}) // reachable only through the slow deployment
	b.MustPut(blocker, body{"b": []any{below}})
	b.Settle()
	slow := func() { // until the walk of the others has ended
		deepest := make(chan struct{})
		var once sync.Once
		b.OnPlan = func(ctx context.Context, to schema.DeploymentID) error {
			switch to.Region {
			case "r5":
				once.Do(func() { close(deepest) })
			case "r1":
				select {
				case <-deepest:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}
	}
	slow()
	_, err := b.Delete(rootOfMany)
	requireBlocked(t, err, blocker)
	slow()
	late, err := b.Stores[b.ID("a.example.com/r0")].Deletions.PlanDelete(t.Context(), "nodes/root")
	require.NoError(t, err)
	require.Empty(t, late.Unasked)
	b.OnPlan = nil
	plan, err := b.Stores[b.ID("a.example.com/r0")].Deletions.PlanDelete(t.Context(), "nodes/root")
	require.NoError(t, err)
	require.Equal(t, plan, late, "the plan does not depend on the order of answers")
}

// Each call has a time limit of its own: a deployment that never answers leaves the others their time, and
// the answer and the log name it with the reason.
func TestADeleteSaysWhyADeploymentWasNotAsked_I15(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	b := newMany(t, 8, func(cfg *shadow.Config) { cfg.Logger = zap.New(core) })
	for i := 3; i < 7; i++ {
		b.MustPut(nodeOf(i+1), body{"c": []any{nodeOf(i)}})
	}
	b.Settle()
	b.OnPlan = func(ctx context.Context, to schema.DeploymentID) error {
		if to.Region == "r1" || to.Region == "r5" { // on two levels
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	b.SetDown("a.example.com/r2", true)
	result, err := b.Delete(rootOfMany)
	require.NoError(t, err)
	require.Equal(t, []string{"a.example.com/r1", "a.example.com/r2", "a.example.com/r5"}, unaskedIDs(result.Unasked))
	require.Equal(t, []peer.Why{peer.TimedOut, peer.Unreachable, peer.TimedOut}, []peer.Why{
		result.Unasked[0].Why,
		result.Unasked[1].Why, result.Unasked[2].Why,
	})
	require.Contains(t, result.Unasked[0].Error(), "did not answer within")
	require.Contains(t, result.Unasked[1].Error(), "cut off")
	told := logs.FilterMessageSnippet("cannot ask a deployment").All()
	require.Len(t, told, 3)
	require.Contains(t, told[0].ContextMap()["deployment"], "a.example.com/r1")
}

// A walk that stops at its limit names the deployments that were not asked, with that reason.
func TestAWalkThatStopsAtItsLimitNamesWhoWasNotAsked(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("ten thousand resources")
	}
	b := newMany(t, 3, func(cfg *shadow.Config) { cfg.Times.DeleteTimeout = time.Minute })
	putMany(t, b, "a.example.com/r1", "nodes/m", peer.PlanLimit, body{"c": []any{rootOfMany}})
	b.MustPut("//a.example.com/r2/nodes/below", body{"c": []any{nodeOf(1)}})
	b.Settle()
	plan, err := b.Stores[b.ID("a.example.com/r0")].Deletions.PlanDelete(t.Context(), "nodes/root")
	require.NoError(t, err)
	require.True(t, plan.Truncated)
	for _, u := range plan.Unasked {
		require.Equal(t, peer.LimitReached, u.Why, u.Error())
	}
	require.Equal(t, []string{"a.example.com/r2"}, unaskedIDs(plan.Unasked))
	require.Equal(t, peer.PlanLimit+1, plan.Groups[1].Count, "all direct holders, whatever the limit")
	require.True(t, plan.Groups[1].AtLeast)
	require.False(t, plan.Groups[0].AtLeast)
}

// A deployment, asked for a plan, has to ask another deployment, which does not answer: it answers in time
// all the same.
func TestWhoAsksADeploymentThatIsSilentAnswersAllTheSame_I15(t *testing.T) {
	t.Parallel()
	b := newMany(t, 4, nil)
	b.MustPut("//a.example.com/r3/nodes/blocker", body{"b": []any{nodeOf(2)}})
	b.MustPut(nodeOf(3), nil) // does not cascade any more
	b.Settle()
	b.OnResolveIn = func(ctx context.Context, to schema.DeploymentID) error {
		if to.Region == "r3" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	_, err := b.Delete(rootOfMany)
	requireBlocked(t, err, "//a.example.com/r3/nodes/blocker") // the confirmed blockade counts
	require.ErrorContains(t, err, "a.example.com/r2/nodes/n, which would be deleted with it")
	require.ErrorContains(t, err, "could not be asked whether their holders still refer: a.example.com/r3",
		"and not r2, which is healthy")
	plan, err := b.Stores[b.ID("a.example.com/r0")].Deletions.PlanDelete(t.Context(), "nodes/root")
	require.NoError(t, err)
	require.Empty(t, plan.Unasked)
	require.True(t, plan.Blockers[0].Unanswered)
}

// The deadline of a delete passes during its last question: earlier answers count, and deployments without
// time for an answer are not reported as unreachable.
func TestADeleteThatRunsOutOfTimeSaysWhatItKnew_I29(t *testing.T) {
	t.Parallel()
	// the first question ends within a part of it
	b := newPair(t, func(cfg *shadow.Config) { cfg.Times.DeleteTimeout = 5 * time.Second })
	b.MustPut(target, nil)
	_, err := b.Stores[b.ID(aWest)].Targets.Establish(t.Context(), b.ID(bEast), newAttempt(),
		[]peer.EstablishReference{reference("block", schema.Block, uuid.New())})
	require.NoError(t, err)
	asked := false
	b.OnResolveIn = func(ctx context.Context, _ schema.DeploymentID) error {
		if !asked { // the blockade is undecided
			asked = true
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	_, err = b.Delete(target)
	var blocked *peer.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.True(t, blocked.Undecided)
}
