package shadow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
	"github.com/db-controller/db-controller/test/wait"
)

// awake follows the work and the notices of all deployments of a box by watches that no pulse, notification
// or bookmark wakes.
type awake struct {
	t  *testing.T
	b  *harness.Box
	mu sync.Mutex
	// delivered are the numbers that the watches of a deployment have delivered, of work and of notices;
	// guarded by mu.
	delivered map[schema.DeploymentID]*[2]map[int64]bool
}

// keepAwake follows the box until the test ends, and returns when each watch has read its snapshot. Its
// stores have to poll after an hour.
func keepAwake(t *testing.T, b *harness.Box) *awake {
	t.Helper()
	a := &awake{t: t, b: b, delivered: map[schema.DeploymentID]*[2]map[int64]bool{}}
	for id := range b.Stores {
		a.delivered[id] = &[2]map[int64]bool{{}, {}}
	}
	var begun sync.WaitGroup
	for id, store := range b.Stores {
		follow := func(run func(ctx context.Context, begun func()) error) {
			begun.Add(1)
			once := sync.OnceFunc(begun.Done)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ctx.Err() == nil {
					_ = run(ctx, once) // a new epoch ends a watch
				}
			}()
			t.Cleanup(func() { cancel(); <-done })
		}
		shards := make([]int16, schema.RingSize)
		for i := range shards {
			shards[i] = int16(i)
		}
		follow(func(ctx context.Context, begun func()) error {
			return store.Read.WatchWork(ctx, shards, "", func(e schema.Event[schema.Work]) error {
				if e.EndOfSnapshot {
					begun()
				}
				for _, w := range e.Items {
					a.take(id, 0, w.Seq)
				}
				return nil
			})
		})
		for holder := range b.Stores {
			follow(func(ctx context.Context, begun func()) error {
				return store.Read.WatchDeletions(ctx, holder, "", func(e schema.Event[schema.Deletion]) error {
					if e.EndOfSnapshot {
						begun()
					}
					for _, d := range e.Items {
						a.take(id, 1, d.Seq)
					}
					return nil
				})
			})
		}
	}
	begun.Wait()
	return a
}

func (a *awake) take(id schema.DeploymentID, feed int, seq int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.delivered[id][feed][seq] = true
}

// missing returns rows that no watch has delivered.
func (a *awake) missing() (out []string) {
	for id, pool := range a.b.Pools {
		rows, err := pool.Query(context.Background(),
			`SELECT 0, seq, action FROM dbcontroller.work UNION ALL SELECT 1, seq, 0 FROM dbcontroller.notice`)
		require.NoError(a.t, err)
		var feed int
		var seq int64
		var action schema.Action
		_, err = pgx.ForEachRow(rows, []any{&feed, &seq, &action}, func() error {
			a.mu.Lock()
			defer a.mu.Unlock()
			if !a.delivered[id][feed][seq] {
				out = append(out, fmt.Sprintf("%s of %s", [2]string{action.String(), "notice"}[feed], id))
			}
			return nil
		})
		require.NoError(a.t, err)
	}
	return out
}

// after fails unless all work that the steps so far have left is delivered without a pulse.
func (a *awake) after(what string) {
	a.t.Helper()
	require.EventuallyWithT(a.t, func(c *assert.CollectT) {
		require.Empty(c, a.missing(), "after %s, watches wait for a pulse", what)
	}, wait.Limit, 2*time.Millisecond)
}

// settle takes the steps of Box.Settle, and looks after each of them.
func (a *awake) settle() {
	a.t.Helper()
	for range 12 {
		n := 0
		for id := range a.b.Stores {
			_ = a.b.Resolve(id)
			a.after("resolve at " + id.String())
			for action := schema.Confirm; action <= schema.VerifyBlockades; action++ {
				done, err := a.b.Do(id, action)
				if n += done; done > 0 || err != nil { // otherwise nothing was written
					a.after(action.String() + " at " + id.String())
				}
			}
			for holder := range a.b.Stores {
				done, err := a.b.Act(holder, id)
				if n += done; done > 0 || err != nil {
					a.after("deletions of " + id.String() + " at " + holder.String())
				}
			}
		}
		if n == 0 {
			return
		}
	}
}

// bothVersions has versions in which the references of both services are derived differently.
const bothVersions = services + `---
service: a.example.com
version: v2
kinds:
  - kind: Goal
    previous_name: Target
    patterns: ["targets/{target}"]
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: CASCADE_DELETE }
      - { path: cascade, targets: [a.example.com/Target], behaviour: UNSET }
      - { path: asyncCascade, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: dangling, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: near.asyncUnset, targets: [Holder], behaviour: BLOCK }
`

// Every transaction that leaves work or notices wakes their watches: nothing of a write, a delete, a switch,
// a recovery, a repair or a decommission waits for a pulse or a bookmark.
func TestNothingThatIsLeftWaitsForAPulse_I13(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, bothVersions, func(c *shadow.Config) {
		c.Times.PollInterval = time.Hour
		c.Times.OwnerGrace = time.Millisecond
		c.Limits.LocalCascade, c.Limits.Batch = 2, 2
	}, aWest, aEast, bWest, bEast)
	a := keepAwake(t, b)
	random := rand.New(rand.NewPCG(13, 1))
	name := func(at, kind string, n int) string {
		return fmt.Sprintf("//%s/%ss/%s%d", at, kind, kind[:1], random.IntN(n))
	}
	anyTarget := func() string { return name([]string{aWest, aEast}[random.IntN(2)], "target", 4) }
	anyHolder := func() string { return name([]string{bWest, bEast}[random.IntN(2)], "holder", 4) }
	fields := []string{"block", "unset", "cascade", "asyncCascade", "dangling"}
	step := func() string {
		switch random.IntN(6) {
		case 0:
			at := anyTarget()
			_, _ = b.Put(at, nil)
			return "put " + at
		case 1, 2:
			h := anyHolder()
			content := body{"near": body{"asyncUnset": h[:len(h)-1] + "0"}}
			for range 2 {
				content[fields[random.IntN(len(fields))]] = anyTarget()
			}
			_, _ = b.Put(h, content)
			return "put " + h
		case 3:
			o, e := anyTarget(), anyHolder()
			own := owner(t, e, "Holder")
			own.UnsetOnDelete = random.IntN(2) == 0
			_, _ = b.PutOwned(o, nil, own)
			return "put " + o + " owned by " + e
		case 4:
			at := anyTarget()
			_, _ = b.Delete(at)
			return "delete " + at
		default:
			at := anyHolder()
			_, _ = b.Delete(at)
			return "delete " + at
		}
	}
	play := func(n int) {
		for range n {
			a.after(step())
			if random.IntN(4) == 0 {
				a.settle()
			}
		}
		a.settle()
	}
	play(rounds.Of(40, 10))
	b.Switch(bEast, "v2")
	a.after("a switch")
	play(10)
	b.Switch(aWest, "v2")
	a.after("a switch of the targets' service")
	a.settle()
	for i := range 4 { // the only resource with references to derive is set aside
		_, _ = b.Delete(fmt.Sprintf("//%s/holders/h%d", bWest, i))
	}
	a.settle()
	gone := "//" + aEast + "/targets/gone"
	b.MustPut(gone, nil)
	b.MustPut("//"+bWest+"/holders/aside", body{"dangling": gone})
	a.settle()
	b.MustDelete(gone)
	a.settle()
	b.Switch(bWest, "v2")
	a.settle()
	require.Equal(t, 1, b.Count(bWest, "work"), "the piece of a resource that was set aside")
	play(10)
	for _, at := range []string{aEast, bWest} {
		b.Renew(at)
		a.after("a failover of " + at)
		play(5)
		_, err := b.Stores[b.ID(at)].Verify.Verify(t.Context(), shadow.Verification{Repair: true, Settle: 1})
		require.NoError(t, err)
		a.after("a repair")
	}
	require.NoError(t, b.Stores[b.ID(aWest)].Admin.Decommission(t.Context(),
		shadow.Decommissioned{Deployment: b.ID(bEast), Blocking: schema.Unset, Reason: "burnt down", By: "ann"}))
	a.after("a decommission")
	a.settle()
}
