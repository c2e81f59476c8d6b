package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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

// While all deletions are atomic, and beside writers that never stop, no resource ends BLOCKED by a reference
// from outside: at rest none is in DELETING. Questions are lost, processes die before their decision, and
// participants ask before it.
func TestAtomicDeletionsBesideWriters_I35(t *testing.T) {
	t.Parallel()
	for _, delegations := range []bool{false, true} {
		t.Run(fmt.Sprintf("delegations=%t", delegations), func(t *testing.T) {
			t.Parallel()
			regions := []string{"a.example.com/us", "a.example.com/eu", "a.example.com/as"}
			b := harness.NewBox(t, graphServices, func(cfg *shadow.Config) {
				cfg.Delegations, cfg.Times.DeleteTimeout = delegations, 3*time.Second
			}, regions...)
			g := &graphRun{t: t, b: b, regions: regions}
			for n := 0; n < rounds.Of(60, 3) || g.deleted.Load() == 0 || g.refused.Load() == 0; n++ {
				require.Less(t, n, 100)
				b.OnPlan = g.disturb
				g.round()
			}
		})
	}
}

// graphRun writes and deletes random nodes.
type graphRun struct {
	t                *testing.T
	b                *harness.Box
	regions          []string
	deleted, refused atomic.Int64
}

// nodesOfRun is the number of names in each region.
const nodesOfRun = 5

func (g *graphRun) node() string {
	return fmt.Sprintf("//%s/nodes/n%d", g.regions[rand.IntN(len(g.regions))], rand.IntN(nodesOfRun))
}

func (g *graphRun) round() {
	var writers, deleters sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	for range 4 {
		writers.Go(func() {
			for ctx.Err() == nil {
				g.write(ctx)
			}
		})
	}
	for range 2 {
		deleters.Go(func() {
			for range 10 {
				g.delete()
			}
		})
	}
	deleters.Wait()
	stop()
	writers.Wait()
	g.b.OnPlan = nil
	for _, region := range g.regions {
		g.b.Expire(region)
	}
	g.b.Settle()
	for _, region := range g.regions {
		require.Zero(g.t, g.b.Count(region, "deleting"), region)
	}
	requireNothingFrozen(g.t, g.b, g.regions...)
	g.b.Audit()
}

// write writes a node with a few references, each of another behaviour.
func (g *graphRun) write(ctx context.Context) {
	name, of := g.node(), body{}
	for _, path := range []string{"c", "c", "b", "u", "ac"} {
		if to := g.node(); rand.IntN(3) == 0 && to != name {
			of[path] = []any{to}
		}
	}
	full, err := schema.ParseFullName(name)
	require.NoError(g.t, err)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = g.b.Stores[full.Deployment].Write.Save(ctx, []peer.Write{{Name: full.Name, Body: of}}) // most are refused
}

// delete deletes a node. Some processes die when they have frozen a part of the members.
func (g *graphRun) delete() {
	name := g.node()
	if rand.IntN(6) == 0 {
		if r := g.b.Get(name); r != nil && r.State == peer.Active {
			g.abandon(name, r.UID)
		}
		return
	}
	_, err := deleteAtomically(context.Background(), g.b, name)
	var blocked *peer.BlockedError
	switch {
	case err == nil:
		g.deleted.Add(1)
	case errors.As(err, &blocked):
		g.refused.Add(1)
	}
}

// abandon freezes the holders of a node in one region.
func (g *graphRun) abandon(name string, uid uuid.UUID) {
	full, err := schema.ParseFullName(name)
	require.NoError(g.t, err)
	f := &peer.Freeze{
		Coordinator: full.Deployment, Epoch: g.b.Stores[full.Deployment].Gate.PresentEpoch(),
		Deletion: uuid.Must(uuid.NewV7()), Root: full.Name, For: time.Minute,
	}
	at := g.b.ID(g.regions[rand.IntN(len(g.regions))])
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = g.b.Stores[at].Deletions.Plan(ctx,
		peer.PlanQuestion{Targets: []peer.PlanTarget{{Deployment: full.Deployment, UID: uid}}, Limit: 100, Freeze: f})
}

var errLostQuestion = errors.New("the question is lost")

// disturb loses a part of the questions of look-aheads, and lets participants ask for decisions early.
func (g *graphRun) disturb(_ context.Context, to schema.DeploymentID) error {
	switch rand.IntN(20) {
	case 0:
		return errLostQuestion
	case 1:
		g.b.Expire(to.String())
		_ = g.b.Resolve(to)
	}
	return nil
}
