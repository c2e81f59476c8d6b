package shadow_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

func modelOf(t *testing.T, text, service, version string) *schema.Model {
	t.Helper()
	file, err := schema.ParseFile("services.yaml", strings.NewReader(text))
	require.NoError(t, err)
	m, err := schema.NewModel(schema.ServiceVersion{Service: service, Version: version}, file.Services)
	require.NoError(t, err)
	return m
}

// gate stops the first query of one process that contains a text, or the batch with it.
type gate struct {
	text    string
	whole   bool
	armed   bool
	mu      sync.Mutex
	reached chan struct{}
	open    chan struct{}
	skip    int
}

func newGate(text string) *gate {
	return &gate{text: text, reached: make(chan struct{}), open: make(chan struct{})}
}

func (g *gate) arm(skip int) { g.mu.Lock(); g.armed, g.skip = true, skip; g.mu.Unlock() }

func (g *gate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	g.mu.Lock()
	hit := g.armed && strings.Contains(data.SQL, g.text) && (!g.whole || data.SQL == g.text)
	if hit && g.skip > 0 {
		g.skip--
		hit = false
	}
	if hit {
		g.armed = false
	}
	g.mu.Unlock()
	if hit {
		close(g.reached)
		<-g.open
	}
	return ctx
}

func (g *gate) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart makes it a pgx.BatchTracer.
func (g *gate) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		g.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: q.SQL})
	}
	return ctx
}

func (g *gate) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (g *gate) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// gatedProcess opens a deployment's database with connections of its own, which g can stop.
func gatedProcess(t *testing.T, b *harness.Box, deployment string, g *gate, model *schema.Model) *shadow.Store {
	t.Helper()
	cfg := b.Pools[b.ID(deployment)].Config().Copy()
	cfg.ConnConfig.Tracer = g
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store, err := shadow.Open(context.Background(), shadow.Config{
		Pool: pool, Deployment: b.ID(deployment),
		Peers: b.Peers(deployment),
	})
	require.NoError(t, err)
	require.NoError(t, store.Admin.Switch(context.Background(), model))
	return store
}

const chainOfTwo = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: a.example.com
version: v2
kinds: [{ kind: Goal, previous_name: Target, patterns: ["targets/{target}"] }]
`

const chain = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: a.example.com
version: v2
kinds: [{ kind: Goal, previous_name: Target, patterns: ["targets/{target}"] }]
---
service: a.example.com
version: v3
kinds: [{ kind: Aim, previous_name: Goal, patterns: ["targets/{target}"] }]
---
service: a.example.com
version: v4
kinds:
  - { kind: Aim, previous_name: Goal, patterns: ["targets/{target}"] }
  - { kind: Target, patterns: ["others/{other}"] }
---
service: a.example.com
version: v5
kinds:
  - { kind: Goal, patterns: ["targets/{target}"] }
  - { kind: Target, patterns: ["others/{other}"] }
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Target], behaviour: BLOCK }
---
service: b.example.com
version: v2
imports: [a.example.com@v2]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Goal], behaviour: BLOCK }
---
service: b.example.com
version: v3
imports: [a.example.com@v3]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: block, targets: [a.example.com/Aim], behaviour: BLOCK }
`

// A kind with three names, two of which the database has stored.
func TestAChainOfRenames(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, chain, nil, aWest, bEast)
	b.MustPut(targetName("t"), nil)
	mustOwn(t, b, holder, nil, owner(t, targetName("t"), "Target"))
	b.Settle()
	// The third version is not described yet.
	require.NoError(t, b.Stores[b.ID(aWest)].Admin.Switch(context.Background(),
		modelOf(t, chainOfTwo, "a.example.com", "v2")))
	b.Settle() // the owner reference follows: b has stored Target and Goal
	for range 3 {
		err := b.Stores[b.ID(bEast)].Admin.Switch(context.Background(), modelOf(t, chain, "b.example.com", "v3"))
		require.NoError(t, err, "b can never switch to a version that imports the third name")
	}
}

// The same in the service itself: another region was upgraded first.
func TestAChainOfRenamesOfTheServiceItself(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, chain, nil, aWest, aEast)
	b.MustPut(targetName("t"), nil)
	mustOwn(t, b, ownee, nil, owner(t, targetName("t"), "Target"))
	b.Settle()
	require.NoError(t, b.Stores[b.ID(aWest)].Admin.Switch(context.Background(),
		modelOf(t, chainOfTwo, "a.example.com", "v2")))
	b.Settle() // the owner reference follows
	require.NoError(t, b.Stores[b.ID(aEast)].Admin.Switch(context.Background(),
		modelOf(t, chain, "a.example.com", "v3")))
}

const regions = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: one, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: near, targets: [Holder], behaviour: BLOCK }
---
service: b.example.com
version: v2
imports: [a.example.com@v1]
kinds:
  - kind: Keeper
    previous_name: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: two, targets: [a.example.com/Target], behaviour: BLOCK }
      - { path: near, targets: [Keeper], behaviour: BLOCK }
`

// regionFirst switches b/us-west2 first: an owner reference has brought the new name to b/eastus2.
func regionFirst(t *testing.T) *harness.Box {
	t.Helper()
	b := harness.NewBox(t, regions, graceless, aWest, bWest, bEast)
	b.MustPut("//"+bWest+"/holders/boss", nil)
	mustOwn(t, b, "//"+bEast+"/holders/owned", nil, owner(t, "//"+bWest+"/holders/boss", "Holder"))
	b.MustPut(targetName("t"), nil)
	b.MustPut(holder, body{"one": targetName("t")})
	b.Settle()
	b.Switch(bWest, "v2")
	b.Settle()
	return b
}

// v1 -> v2 -> v1 where the new name was already stored: the switch back derives all resources again.
func TestARenamedKindIsDerivedOnTheWayBack_I26(t *testing.T) {
	t.Parallel()
	b := regionFirst(t)
	b.Switch(bEast, "v2")
	b.Settle()
	require.Equal(t, 0, b.Count(bEast, "reference"), "v2 has no such field")
	b.Switch(bEast, "v1")
	b.Settle()
	require.Equal(t, 1, b.Count(bEast, "reference"), "v1 has it again")
	_, err := b.Delete(targetName("t"))
	require.ErrorAs(t, err, new(*peer.BlockedError), "I3: the body of an ACTIVE holder names it with BLOCK")
}

// A filter accepts each name of a kind, also others than the stored one.
func TestAFilterKnowsARenamedKindByEachName(t *testing.T) {
	t.Parallel()
	b := regionFirst(t)
	for _, version := range []string{"v1", "v2"} {
		b.Switch(bEast, version)
		for _, kind := range []string{"Holder", "Keeper"} {
			found, _, err := b.Stores[b.ID(bEast)].Read.List(t.Context(),
				shadow.ListRequest{Limit: 10, Filter: `kind = "` + kind + `"`})
			require.NoError(t, err)
			require.Len(t, found, 2, "%s in %s", kind, version)
		}
	}
}

// A watch of the kind that is open, or resumes, over such a switch receives all changes.
func TestAWatchContinuesOverARename_I23(t *testing.T) {
	t.Parallel()
	b := regionFirst(t)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	seen := make(chan peer.Resource, 100)
	end := make(chan struct{})
	var ended error
	go func() {
		ended = b.Stores[b.ID(bEast)].Read.WatchResources(ctx, "Holder", "", "",
			func(e schema.Event[peer.Resource]) error {
				if e.EndOfSnapshot {
					close(end)
				}
				for _, r := range e.Items {
					seen <- r
				}
				return nil
			})
		close(seen)
	}()
	<-end
	b.Switch(bEast, "v2")
	b.MustPut(holder, body{"x": "after the switch"})
	for r := range seen {
		if strings.Contains(string(r.Body), "after the switch") {
			return
		}
	}
	t.Fatalf("the watch did not receive a change: %v", ended)
}

// A lagging process, or a call under way during the switch, never reports an existing resource as absent.
func TestALaggingProcessDeniesNoOwner_I27(t *testing.T) {
	t.Parallel()
	b := regionFirst(t)
	b.MustPut("//"+bEast+"/holders/boss2", nil)
	lagging := b.SecondProcess(bEast, shadow.Config{})
	b.Switch(bEast, "v2")
	uid := b.Get("//" + bEast + "/holders/boss2").UID
	_, err := lagging.Owners.CheckOwners(context.Background(), b.ID(bWest),
		[]peer.OwnerQuestion{{Kind: "Keeper", Name: "holders/boss2", UID: uid}})
	require.ErrorIs(t, err, peer.ErrAborted, "unknown: a deployment that reads absent deletes the ownees")
}

func TestALaggingProcessDeniesNoTarget(t *testing.T) {
	t.Parallel()
	b := regionFirst(t)
	b.MustPut("//"+bEast+"/holders/boss2", nil)
	lagging := b.SecondProcess(bEast, shadow.Config{})
	b.Switch(bEast, "v2")
	_, err := lagging.Targets.Establish(context.Background(), b.ID(bWest), newAttempt(), []peer.EstablishReference{{
		HolderUID: uuid.Must(uuid.NewV7()), HolderKind: "Holder", HolderName: "holders/x", Path: "near",
		TargetKind: "Holder", TargetName: "holders/boss2", Behaviour: schema.Block,
	}})
	require.False(t, err != nil && peer.Definite(err), "it exists: %v", err)
}

// The whole way: the check is under way while the owner's deployment switches, and the ownee of a living
// owner stays.
func TestACheckDuringASwitchDeniesNoOwner_I27(t *testing.T) {
	t.Parallel()
	b := regionFirst(t)
	b.MustPut("//"+bEast+"/holders/boss2", nil)
	g := newGate("pg_advisory_xact_lock_shared")
	asked := gatedProcess(t, b, bEast, g, modelOf(t, regions, "b.example.com", "v1"))
	uid := b.Get("//" + bEast + "/holders/boss2").UID
	g.arm(0)
	done := make(chan *peer.OwnerAnswers)
	go func() {
		a, _ := asked.Owners.CheckOwners(context.Background(), b.ID(bWest),
			[]peer.OwnerQuestion{{Kind: "Holder", Name: "holders/boss2", UID: uid}})
		done <- a
	}()
	<-g.reached
	b.Switch(bEast, "v2")
	close(g.open)
	if a := <-done; a != nil { // otherwise the answer is "unknown"
		require.NotEqual(t, peer.OwnerAbsent, a.Answers[0].Verdict)
	}
}

// The same up to the collection: the process that answers the other region lags.
func TestARolloutByRegionsCollectsNothing_I27(t *testing.T) {
	t.Parallel()
	b := regionFirst(t)
	b.MustPut("//"+bEast+"/holders/boss2", nil)
	o := owner(t, "//"+bEast+"/holders/boss2", "Keeper")
	o.UID = b.Get("//" + bEast + "/holders/boss2").UID
	lagging := b.SecondProcess(bEast, shadow.Config{})
	b.Switch(bEast, "v2")
	current := b.Stores[b.ID(bEast)]
	b.Stores[b.ID(bEast)] = lagging
	mustOwn(t, b, "//"+bWest+"/holders/w", body{"mine": true}, o)
	_, _ = b.Do(b.ID(bWest), schema.CheckOwners) // it answers "unknown" or "exists"
	b.Stores[b.ID(bEast)] = current
	b.Settle()
	require.NotNil(t, b.Get("//"+bEast+"/holders/boss2"), "the owner lives")
	require.NotNil(t, b.Get("//"+bWest+"/holders/w"), "and its ownee was deleted")
}

// Two processes: one sees v2 -> v1 -> v2, the other (the newest wins) only v2. It goes on writing.
func TestAProcessThatMissedASwitchGoesOn_I22(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, regions, nil, aWest, bEast)
	ctx := context.Background()
	v1, v2 := modelOf(t, regions, "b.example.com", "v1"), modelOf(t, regions, "b.example.com", "v2")
	first := b.Stores[b.ID(bEast)]
	second := b.SecondProcess(bEast, shadow.Config{})
	require.NoError(t, first.Admin.Switch(ctx, v2))
	require.NoError(t, second.Admin.Switch(ctx, v2))
	require.NoError(t, second.Admin.Switch(ctx, v1)) // it saw the environment in between
	require.NoError(t, second.Admin.Switch(ctx, v2))
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err := first.Write.Save(ctx, []peer.Write{{Name: "holders/h"}})
	require.NoError(t, err, "both processes and the database are at v2, and no further switch follows")
}
