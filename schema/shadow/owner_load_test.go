package shadow_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/rounds"
)

// ownedNames are resources that own one another at random; nothing refers to them.
var ownedNames = []string{target, target2, holder, holder2, ownee, "//" + bWest + "/holders/w"}

func kindOfOwned(name string) string {
	if strings.Contains(name, "holders") {
		return "Holder"
	}
	return "Target"
}

// putRandom writes a resource with random owners and, where it may, a reference.
func putRandom(t *testing.T, b *harness.Box, r *rand.Rand) error {
	name, content := ownedNames[r.IntN(len(ownedNames))], body{}
	if kindOfOwned(name) == "Holder" {
		content[[]string{"unset", "cascade", "block"}[r.IntN(3)]] = []string{target, target2, ownee}[r.IntN(3)]
	}
	var owners []peer.OwnerReference
	for _, o := range ownedNames {
		if o != name && r.IntN(4) == 0 {
			ref := owner(t, o, kindOfOwned(o))
			ref.Requires = kindOfOwned(o) == "Holder" && r.IntN(3) == 0
			ref.UnsetOnDelete = r.IntN(5) == 0
			owners = append(owners, ref)
		}
	}
	_, err := b.PutOwned(name, content, owners...)
	return err
}

// Users and handlers at once, with the fewest connections allowed: it comes to rest, and all invariants hold.
func TestOwnersUnderLoad_I16_I17(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = time.Hour })
	for id := range b.Stores {
		pool, err := postgres.Connect(t.Context(), b.Pools[id].Config().ConnString(), "few", postgres.MinConnections)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		b.Pools[id] = pool
		b.Stores[id] = b.SecondProcess(id.String(),
			shadow.Config{Times: shadow.Times{OwnerGrace: time.Hour, TentativeTTL: time.Second}})
	}
	end := time.Now().Add(rounds.Of(2*time.Second, time.Second))
	deadline := end.Add(time.Minute)
	var mu sync.Mutex
	unexpected, succeeded := map[string]bool{}, map[string]int{}
	note := func(what string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			succeeded[what]++
			return
		}
		for _, fine := range []string{
			"not found", "is being deleted", "DELETING", "is not there", "does not exist",
			"referred to", "cannot be asked", "changed while", "aborted", "closing", "did not answer",
			"deadline exceeded", "for now",
		} {
			if strings.Contains(err.Error(), fine) {
				return
			}
		}
		unexpected[what+": "+err.Error()] = true
	}
	// A starved machine needs longer than the two seconds until a put and a delete were accepted.
	over := func() bool {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		return now.After(end) && (succeeded["put"] > 0 && succeeded["delete"] > 0 || now.After(deadline))
	}
	var wg sync.WaitGroup
	for k := range 3 {
		wg.Go(func() {
			for r := rand.New(rand.NewPCG(3, uint64(k))); !over(); {
				note("put", putRandom(t, b, r))
			}
		})
	}
	wg.Go(func() {
		r := rand.New(rand.NewPCG(4, 0))
		for range time.Tick(30 * time.Millisecond) {
			if over() {
				return
			}
			_, err := b.Delete(ownedNames[r.IntN(len(ownedNames))])
			note("delete", err)
		}
	})
	for id := range b.Stores {
		for range 2 {
			wg.Go(func() {
				for !over() {
					for action := schema.Confirm; action <= schema.Derive; action++ {
						_, err := b.Do(id, action)
						note(action.String(), err)
					}
					for from := range b.Stores {
						_, err := b.Act(id, from)
						note("act", err)
					}
				}
			})
		}
	}
	wg.Wait()
	require.Empty(t, unexpected)
	require.Positive(t, succeeded["put"])
	require.Positive(t, succeeded["delete"])
	b.Settle()
	for id := range b.Stores {
		b.Expire(id.String())
	}
	b.Settle()
	b.Audit()
	// A resource that lost its owners is DELETING for as long as a blocking reference stands; nothing else
	// may wait.
	const waitsForNothingSQL = `
SELECT count(*) FROM dbcontroller.shadow s
WHERE state = 2
    AND NOT EXISTS (SELECT FROM dbcontroller.blockade b WHERE b.target_id = s.id AND b.behaviour = 1 AND b.expires_at IS NULL)
    AND NOT EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = s.id AND r.behaviour = 1)`
	for id := range b.Stores {
		var n int
		require.NoError(t, b.Pools[id].QueryRow(t.Context(), waitsForNothingSQL).Scan(&n))
		require.Zero(t, n, "DELETING resources that wait for nothing at %s", id)
	}
}

// Random steps, one at a time, with other steps between the answer of an owners' deployment and its
// application.
func TestOwnersInRandomSteps_I16_I17(t *testing.T) {
	t.Parallel()
	for seed := range 3 * seeds(t) {
		r := rand.New(rand.NewPCG(seed, 0))
		b := newBox(t, func(cfg *shadow.Config) { cfg.Times.OwnerGrace = time.Hour })
		var ids []schema.DeploymentID
		for _, d := range []string{aWest, aEast, bWest, bEast} {
			ids = append(ids, b.ID(d))
		}
		depth := 0
		step := func() {
			switch r.IntN(8) {
			case 0, 1, 2:
				_ = putRandom(t, b, r)
			case 3:
				_, _ = b.Delete(ownedNames[r.IntN(len(ownedNames))])
			case 4:
				_, _ = b.Act(ids[r.IntN(4)], ids[r.IntN(4)])
			default:
				_, _ = b.Do(ids[r.IntN(4)], schema.Action(1+r.IntN(7)))
			}
		}
		b.AfterCheckOwners = func() {
			if depth > 1 {
				return
			}
			depth++
			for range r.IntN(4) {
				step()
			}
			depth--
		}
		for range rounds.Of(250, 80) {
			step()
		}
		b.AfterCheckOwners = nil
		for _, d := range ids {
			b.Expire(d.String())
		}
		b.Settle()
		b.Audit()
	}
}
