package shadow_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
)

const graphServices = `
service: a.example.com
version: v1
kinds:
  - kind: Node
    patterns: ["nodes/{node}"]
    references:
      - {path: c.*, targets: [Node], behaviour: CASCADE_DELETE}
      - {path: b.*, targets: [Node], behaviour: BLOCK}
      - {path: u.*, targets: [Node], behaviour: UNSET}
      - {path: ac.*, targets: [Node], behaviour: ASYNC_CASCADE_DELETE}
      - {path: d.*, targets: [Node], behaviour: ALLOW_DANGLING}
`

// A graphNode is a resource of a random graph: by path and as owners, the numbers of the nodes that it refers
// to.
type graphNode struct {
	name           string
	refs           map[string][]int
	owners         []int
	blocksDeletion bool
}

// Random graphs over three deployments: the plan, the delete, and a short walk over the graph agree on the
// refusal, its kind of error, and the removed resources.
func TestAPlanMatchesItsDelete(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, graphServices, nil, "a.example.com/us", "a.example.com/eu", "a.example.com/as")
	rounds := rounds.Of(25, 6)
	refused := 0
	for seed := range seeds(t) {
		for round := range rounds {
			r := rand.New(rand.NewPCG(seed, uint64(round)))
			ns := randomGraph(r, fmt.Sprintf("%d-%d", seed, round), 4+r.IntN(4))
			putGraph(t, b, ns)
			if t.Failed() {
				return
			}
			gone, why := expected(ns)
			if why != "" {
				refused++
			}
			planAndDelete(t, b, ns, gone, why)
			if t.Failed() {
				t.Fatalf("seed %d, round %d:\n%s", seed, round, draw(ns))
			}
			takeDown(t, b, ns)
		}
	}
	b.Audit()
	t.Logf("%d of %d deletes a seed refused", refused, rounds)
	require.Positive(t, refused)
}

func randomGraph(r *rand.Rand, prefix string, n int) []graphNode {
	regions := []string{"us", "eu", "as"}
	paths := []string{"c", "c", "b", "u", "ac"}
	ns := make([]graphNode, n)
	for i := range ns {
		ns[i] = graphNode{
			name:           fmt.Sprintf("//a.example.com/%s/nodes/n%s-%d", regions[r.IntN(len(regions))], prefix, i),
			refs:           map[string][]int{},
			blocksDeletion: r.IntN(14) == 0,
		}
	}
	for range r.IntN(2 * n) {
		if from, to := r.IntN(n), r.IntN(n); from != to {
			path := paths[r.IntN(len(paths))]
			ns[from].refs[path] = append(ns[from].refs[path], to)
		}
	}
	for range r.IntN(n / 2) {
		if from, to := r.IntN(n), r.IntN(n); from != to && !slices.Contains(ns[from].owners, to) {
			ns[from].owners = append(ns[from].owners, to)
		}
	}
	return ns
}

func putGraph(t *testing.T, b *harness.Box, ns []graphNode) {
	t.Helper()
	for _, n := range ns {
		b.MustPut(n.name, nil)
	}
	b.Settle()
	for _, n := range ns {
		content := body{}
		for path, numbers := range n.refs {
			var names []any
			for _, to := range numbers {
				names = append(names, ns[to].name)
			}
			content[path] = names
		}
		var owners []peer.OwnerReference
		for _, o := range n.owners {
			owners = append(owners, owner(t, ns[o].name, "Node"))
		}
		_, err := b.PutOwned(n.name, content, owners...)
		require.NoError(t, err)
	}
	b.Settle()
	for _, n := range ns {
		if n.blocksDeletion {
			protect(t, b, n.name, true)
		}
	}
}

// The members of the deletion of the first node, and its blockers: by cascades alone, since ownees are not
// collected before their owners are gone.
func expected(ns []graphNode) (gone map[int]bool, why string) {
	gone = map[int]bool{0: true}
	cascaded := map[int]bool{0: true}
	for changed := true; changed; {
		changed = false
		add := func(to map[int]bool, i int) {
			changed = changed || !to[i]
			to[i] = true
		}
		for i, n := range ns {
			for _, to := range slices.Concat(n.refs["c"], n.refs["ac"]) {
				if gone[to] {
					add(gone, i)
				}
				if cascaded[to] {
					add(cascaded, i)
				}
			}
			if len(n.owners) > 0 && !slices.ContainsFunc(n.owners, func(o int) bool { return !gone[o] }) {
				add(gone, i)
			}
		}
	}
	for i, n := range ns {
		if cascaded[i] && n.blocksDeletion {
			why += fmt.Sprintf(" %d blocks its own deletion", i)
		}
		for _, to := range n.refs["b"] {
			if !gone[i] && cascaded[to] {
				why += fmt.Sprintf(" %d blocks %d", i, to)
			}
		}
	}
	return gone, why
}

func planAndDelete(t *testing.T, b *harness.Box, ns []graphNode, gone map[int]bool, why string) {
	t.Helper()
	root, err := schema.ParseFullName(ns[0].name)
	require.NoError(t, err)
	store := b.Stores[root.Deployment]
	plan, err := store.Deletions.PlanDelete(t.Context(), root.Name)
	require.NoError(t, err)
	_, deleteErr := store.Deletions.Delete(t.Context(), shadow.DeleteRequest{Name: root.Name})
	b.Settle()
	switch {
	case (plan.Refusal == nil) != (deleteErr == nil) || (why == "") != (deleteErr == nil):
		t.Errorf("the plan says %v, the delete %v, the graph %q", plan.Refusal, deleteErr, why)
	case deleteErr != nil && fmt.Sprintf("%T", errors.Unwrap(deleteErr)) != fmt.Sprintf("%T",
		errors.Unwrap(plan.Refusal)):
		t.Errorf("the plan says %T %v, the delete %T %v", plan.Refusal, plan.Refusal, deleteErr, deleteErr)
	case deleteErr != nil && deleteErr.Error() != plan.Refusal.Error():
		t.Errorf("the plan says %v, the delete %v", plan.Refusal, deleteErr)
	case deleteErr == nil:
		planned, went := 0, 0
		for _, group := range plan.Groups {
			if !group.Unset {
				planned += group.Count
			}
		}
		for i, n := range ns {
			got := b.Get(n.name)
			goes := got == nil || got.State == peer.Deleting // a resource in DELETING waits for its blockers
			if goes {
				went++
			}
			if goes != gone[i] {
				t.Errorf("%d goes: %v, of the graph: %v", i, goes, gone[i])
			}
		}
		if planned != went {
			t.Errorf("%d are planned to go, %d go", planned, went)
		}
	}
}

// The remaining resources are deleted before the next graph.
func takeDown(t *testing.T, b *harness.Box, ns []graphNode) {
	t.Helper()
	for _, act := range []func(name string) error{
		func(name string) error {
			full, err := schema.ParseFullName(name)
			require.NoError(t, err)
			_, err = b.Stores[full.Deployment].Write.SetBlockDeletion(t.Context(), full.Name, uuid.Nil, false)
			return err
		},
		func(name string) error { _, err := b.Put(name, nil); return err },
		func(name string) error { _, err := b.Delete(name); return err },
	} {
		for _, n := range ns {
			if got := b.Get(n.name); got != nil && got.State == peer.Active {
				require.NoError(t, act(n.name))
			}
		}
		b.Settle()
	}
}

func draw(ns []graphNode) (s string) {
	for i, n := range ns {
		s += fmt.Sprintf("  %d %s refers to %v, is owned by %v, blocks its deletion: %v\n", i, n.name, n.refs, n.owners,
			n.blocksDeletion)
	}
	return s
}
