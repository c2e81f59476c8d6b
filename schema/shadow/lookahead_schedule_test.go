package shadow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const asyncServices = `
service: a.example.com
version: v1
kinds:
  - {kind: Target, patterns: ["targets/{target}"]}
  - kind: Job
    patterns: ["jobs/{job}"]
    references:
      - {path: soon, targets: [Target], behaviour: ASYNC_CASCADE_DELETE}
      - {path: needs, targets: [Job], behaviour: BLOCK}
`

// A job is deleted with its target, later and in the same database: block_deletion of the job refuses the
// delete of the target.
func TestBlockDeletionOfWhatGoesLaterRefuses(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, asyncServices, nil, aWest)
	b.MustPut(target, nil)
	job := "//" + aWest + "/jobs/j"
	b.MustPut(job, body{"soon": target})
	b.Settle()
	protect(t, b, job, true)
	plan, err := b.Stores[b.ID(aWest)].Deletions.PlanDelete(t.Context(), "targets/t")
	require.NoError(t, err)
	require.ErrorAs(t, plan.Refusal, new(*peer.ProtectedError))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.ProtectedError))
	require.Equal(t, peer.Active, b.Get(job).State)
}

func TestABlockerOfWhatGoesLaterRefuses(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, asyncServices, nil, aWest)
	b.MustPut(target, nil)
	job, other := "//"+aWest+"/jobs/j", "//"+aWest+"/jobs/other"
	b.MustPut(job, body{"soon": target})
	b.MustPut(other, body{"needs": job})
	b.Settle()
	plan, err := b.Stores[b.ID(aWest)].Deletions.PlanDelete(t.Context(), "targets/t")
	require.NoError(t, err)
	require.ErrorAs(t, plan.Refusal, new(*peer.BlockedError))
	_, err = b.Delete(target)
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// x is a member in two ways: its only owner is r, and it cascades from y, which cascades from r. A holder
// from outside blocks x, so that a delete of r is refused, by each way on which the walk reaches x first.
func TestACollectedResourceThatAlsoCascadesRefuses(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, graphServices, nil, "a.example.com/us", "a.example.com/eu", "a.example.com/as")
	r, y, x, z := "//a.example.com/us/nodes/r", "//a.example.com/as/nodes/y", "//a.example.com/eu/nodes/x",
		"//a.example.com/eu/nodes/z"
	b.MustPut(r, nil)
	b.MustPut(y, body{"c": []any{r}})
	mustOwn(t, b, x, body{"c": []any{y}}, owner(t, r, "Node"))
	b.MustPut(z, body{"b": []any{x}})
	b.Settle()
	refused := map[bool]int{}
	for range 40 {
		plan, err := b.Stores[b.ID("a.example.com/us")].Deletions.PlanDelete(t.Context(), "nodes/r")
		require.NoError(t, err)
		refused[plan.Refusal != nil]++
	}
	require.Zero(t, refused[false])
	_, err := b.Delete(r)
	require.ErrorAs(t, err, new(*peer.BlockedError))
}

// The same with deletes instead of plans, and with block_deletion instead of a blocker.
func TestADeleteIsRefusedEachTime(t *testing.T) {
	t.Parallel()
	// A long limit: a deployment that a busy machine could not ask in time would be reported instead.
	patient := func(cfg *shadow.Config) { cfg.Times.DeleteTimeout = 30 * time.Second }
	b := harness.NewBox(t, graphServices, patient, "a.example.com/us", "a.example.com/eu", "a.example.com/as")
	accepted := 0
	for i := range 40 {
		r, y, x := fmt.Sprint("//a.example.com/us/nodes/r", i), fmt.Sprint("//a.example.com/as/nodes/y", i),
			fmt.Sprint("//a.example.com/eu/nodes/x", i)
		b.MustPut(r, nil)
		b.MustPut(y, body{"c": []any{r}})
		mustOwn(t, b, x, body{"c": []any{y}}, owner(t, r, "Node"))
		b.Settle()
		protect(t, b, x, true)
		if result, err := b.Delete(r); err == nil {
			t.Logf("%s was accepted; deployments that could not be asked: %v", r, result.Unasked)
			accepted++
		}
	}
	require.Zero(t, accepted, "of 40 deletes that reach a resource with block_deletion")
}

// A committed holder whose confirm is not delivered yet, and an entry of another deployment: members that the
// delete learns of by resolving have to be walked over as well.
func TestWhatIsLearntByAskingIsLookedAheadToo(t *testing.T) {
	for _, other := range []bool{false, true} {
		b := newBox(t, nil)
		west, blocker := "//"+bWest+"/holders/h", "//"+bWest+"/holders/blocker"
		b.MustPut(target, nil)
		if other {
			b.MustPut(holder, body{"cascade": target})
			b.Settle()
		}
		b.MustPut(west, body{"cascade": target}) // committed, its confirm is not delivered yet
		b.MustPut(blocker, body{"near": body{"block": west}})
		_, err := b.Delete(target)
		require.ErrorAs(t, err, new(*peer.BlockedError), "another deployment has an entry: %v", other)
	}
}

func TestAPlanShowsWhatIsNotConfirmedYet(t *testing.T) {
	b := newBox(t, nil)
	west, blocker := "//"+bWest+"/holders/h", "//"+bWest+"/holders/blocker"
	b.MustPut(target, nil)
	b.MustPut(west, body{"cascade": target})
	b.MustPut(blocker, body{"near": body{"block": west}})
	for range 2 { // the first settles the tentative blockades
		plan, err := b.Stores[b.ID(aWest)].Deletions.PlanDelete(t.Context(), "targets/t")
		require.NoError(t, err)
		require.ErrorAs(t, plan.Refusal, new(*peer.BlockedError))
	}
}

const judged = `
service: a.example.com
version: v1
kinds:
  - {kind: Project, patterns: ["projects/{project}"]}
---
service: c.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Place
    patterns: ["places/{place}"]
    references: [{path: project, targets: [a.example.com/Project], behaviour: CASCADE_DELETE}]
---
service: d.example.com
version: v1
kinds:
  - kind: Room
    patterns: ["rooms/{room}"]
    references: [{path: up, targets: [Room], behaviour: CASCADE_DELETE}]
---
service: b.example.com
version: v1
imports: [a.example.com@v1, c.example.com@v1, d.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - {path: blocks, targets: [a.example.com/Project], behaviour: BLOCK}
      - {path: room, targets: [d.example.com/Room], behaviour: CASCADE_DELETE}
`

func newJudged(t *testing.T) *harness.Box {
	b := harness.NewBox(t, judged, nil, "a.example.com/us", "b.example.com/us", "c.example.com/us", "d.example.com/us")
	b.MustPut(project, nil)
	b.MustPut(place, body{"project": project})
	return b
}

const judgedHolder = "//b.example.com/us/holders/h"

// All deployments that could remove the blocker answer, and none does: it blocks, with any other deployments
// unreachable.
func TestABlockerOfWhichAllIsKnownIsNamed(t *testing.T) {
	t.Parallel()
	b := newJudged(t)
	b.MustPut("//d.example.com/us/rooms/y", nil)
	b.MustPut("//d.example.com/us/rooms/x", body{"up": "//d.example.com/us/rooms/y"})
	b.MustPut(judgedHolder, body{"blocks": project, "room": "//d.example.com/us/rooms/x"})
	b.Settle()
	b.SetDown("c.example.com/us", true) // no path leads from it to the blocker
	_, err := b.Delete(project)
	requireBlocked(t, err, judgedHolder)
}

// The deletion removes the blocker's only owner, in a deployment that cannot be reached: whether the blocker
// is removed is unknown.
func TestABlockerThatIsOwnedByWhatIsAwayIsUnknown(t *testing.T) {
	t.Parallel()
	b := newJudged(t)
	mustOwn(t, b, judgedHolder, body{"blocks": project}, owner(t, place, "Place"))
	b.Settle()
	b.SetDown("c.example.com/us", true)
	_, err := b.Delete(project)
	require.ErrorAs(t, err, new(*peer.UnavailableError))
	b.SetDown("c.example.com/us", false)
	b.MustDelete(project) // with all deployments reachable, the blocker is excused
	b.Settle()
	b.Gone(project, place, judgedHolder)
}

// For a tentative blockade whose holder's deployment cannot be reached, the plan reports the same as the
// delete.
func TestPlanAndATentativeBlockadeThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	b := newJudged(t)
	b.MustPut("//a.example.com/us/projects/q", nil)
	store := b.Stores[b.ID("a.example.com/us")]
	_, err := store.Targets.Establish(t.Context(), b.ID("b.example.com/us"), newAttempt(), []peer.EstablishReference{{
		HolderUID: uuid.New(), HolderKind: "Holder", HolderName: "holders/h", Path: "blocks", TargetKind: "Project",
		TargetName: "projects/q", Behaviour: schema.Block,
	}})
	require.NoError(t, err)
	b.SetDown("b.example.com/us", true)
	plan, err := store.Deletions.PlanDelete(t.Context(), "projects/q")
	require.NoError(t, err)
	_, err = b.Delete("//a.example.com/us/projects/q")
	require.Equal(t, plan.Refusal == nil, err == nil)
}
