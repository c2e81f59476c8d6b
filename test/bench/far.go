package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// farDeployments is how many deployments a deletion reaches, and farRoundTrips how many round trips it may
// take to be answered.
const (
	farDeployments = 18
	farRoundTrips  = 5
)

// Between deployments, as between zones, coasts, and continents.
var farDelays = []time.Duration{0, 80 * time.Millisecond, 230 * time.Millisecond}

const farService = `
service: far.example.com
version: v1
kinds:
  - kind: Node
    patterns: ["nodes/{node}"]
    references:
      - {path: above, targets: [Node], behaviour: CASCADE_DELETE}
      - {path: needs, targets: [Node], behaviour: BLOCK}
`

// far measures deletes that reach 18 deployments, level below level, with blockers that are deleted as well.
// The deployments are stores of this process, joined by calls that take a round trip each: the result is the
// number of round trips until the answer.
func (r *run) far(ctx context.Context) error {
	f, err := openFar(ctx, r.Databases)
	if err != nil {
		return err
	}
	defer f.close()
	for _, delay := range farDelays {
		var took []float64
		for i := range r.Runs {
			root := fmt.Sprintf("nodes/%d-%d", delay.Milliseconds(), i)
			ms, err := f.measure(ctx, root, delay)
			if err != nil {
				return fmt.Errorf("with %s between deployments: %w", delay, err)
			}
			took = append(took, ms)
			r.Progress("far with %s between deployments, run %d: answered after %.0f ms, everybody was asked",
				delay, i+1, ms)
		}
		r.add(Result{
			Case: fmt.Sprintf("far-%dms", delay.Milliseconds()), N: farDeployments, Unit: "ms",
			Baseline: milliseconds(farRoundTrips * delay),
		}.of(took))
	}
	return nil
}

// farAway is a set of deployments with a round trip between any two of them.
type farAway struct {
	ids    []schema.DeploymentID
	stores map[schema.DeploymentID]*shadow.Store
	close  func()

	mu       sync.Mutex
	delay    time.Duration                               // guarded by mu
	attempts map[[2]schema.DeploymentID][]peer.AttemptID // from a holder's deployment to a target's; guarded by mu
}

func openFar(ctx context.Context, databases func(context.Context, int) ([]string, error)) (*farAway, error) {
	dsns, err := databases(ctx, farDeployments)
	if err != nil {
		return nil, err
	}
	file, err := schema.ParseFile("far.yaml", strings.NewReader(farService))
	if err != nil {
		return nil, err
	}
	model, err := schema.NewModel(file.Services[0].ServiceVersion, file.Services)
	if err != nil {
		return nil, err
	}
	f := &farAway{
		stores:   map[schema.DeploymentID]*shadow.Store{},
		attempts: map[[2]schema.DeploymentID][]peer.AttemptID{}, close: func() {},
	}
	for i, dsn := range dsns {
		pool, err := postgres.Connect(ctx, dsn, "bench", postgres.MinConnections)
		if err != nil {
			f.close()
			return nil, err
		}
		before := f.close
		f.close = func() { pool.Close(); before() }
		id := schema.DeploymentID{Service: "far.example.com", Region: fmt.Sprintf("r%02d", i)}
		store, err := shadow.Open(ctx, shadow.Config{Pool: pool, Deployment: id, Peers: peer.PeersOf(&farPeers{f, id})})
		if err == nil {
			err = store.Admin.Switch(ctx, model)
		}
		if err != nil {
			f.close()
			return nil, err
		}
		f.ids, f.stores[id] = append(f.ids, id), store
	}
	return f, nil
}

// measure makes a tree with its root in the first deployment: a node in each other one; below each of these a
// node in the next one; and below that a node in the one after, which also blocks the node at the top of its
// branch. Then it deletes the root.
func (f *farAway) measure(ctx context.Context, root string, delay time.Duration) (float64, error) {
	f.slow(0)
	at := func(region int) schema.DeploymentID { return f.ids[1+region%(farDeployments-1)] }
	name := func(d schema.DeploymentID, node string) string {
		return schema.FullName{Deployment: d, Name: node}.String()
	}
	put := func(d schema.DeploymentID, node string, body map[string]any) error {
		_, err := f.stores[d].Write.Save(ctx, []peer.Write{{Name: node, Body: body}})
		return err
	}
	if err := put(f.ids[0], root, nil); err != nil {
		return 0, err
	}
	for i := range farDeployments - 1 {
		err := errors.Join(
			put(at(i), root+"-top", map[string]any{"above": name(f.ids[0], root)}),
			put(at(i+1), root+"-middle", map[string]any{"above": name(at(i), root+"-top")}),
			put(at(i+2), root+"-bottom", map[string]any{
				"above": name(at(i+1), root+"-middle"),
				"needs": name(at(i), root+"-top"),
			}),
		)
		if err != nil {
			return 0, err
		}
	}
	if err := f.confirm(ctx); err != nil {
		return 0, err
	}
	f.slow(delay)
	began := time.Now()
	result, err := f.stores[f.ids[0]].Deletions.Delete(ctx, shadow.DeleteRequest{Name: root})
	took := milliseconds(time.Since(began))
	if err == nil && len(result.Unasked) > 0 {
		err = fmt.Errorf("%d deployments were not asked: %w", len(result.Unasked), result.Unasked[0])
	}
	return took, err
}

func (f *farAway) slow(delay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = delay
}

// confirm confirms committed attempts, as the controllers would.
func (f *farAway) confirm(ctx context.Context) error {
	f.mu.Lock()
	attempts := f.attempts
	f.attempts = map[[2]schema.DeploymentID][]peer.AttemptID{}
	f.mu.Unlock()
	for between, ids := range attempts {
		holder, target := between[0], between[1]
		if _, err := f.stores[target].Targets.Confirm(ctx, holder,
			peer.Confirm{Epoch: f.stores[holder].Gate.PresentEpoch(), Attempts: ids}); err != nil {
			return err
		}
	}
	return nil
}

// farPeers are the other deployments as one of them reaches them.
type farPeers struct {
	*farAway
	self schema.DeploymentID
}

// reach waits for a round trip; a call within one deployment has none.
func (p *farPeers) reach(ctx context.Context, to schema.DeploymentID) (*shadow.Store, error) {
	p.mu.Lock()
	delay := p.delay
	p.mu.Unlock()
	if to == p.self || delay == 0 {
		return p.stores[to], nil
	}
	select {
	case <-time.After(delay):
		return p.stores[to], nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *farPeers) Establish(ctx context.Context, to schema.DeploymentID, attempt peer.AttemptID,
	refs []peer.EstablishReference,
) (*peer.Established, error) {
	store, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	between := [2]schema.DeploymentID{p.self, to}
	p.attempts[between] = append(p.attempts[between], attempt)
	p.mu.Unlock()
	return store.Targets.Establish(ctx, p.self, attempt, refs)
}

func (p *farPeers) Resolve(ctx context.Context, to schema.DeploymentID,
	questions []peer.Question,
) (*peer.Answers, error) {
	store, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	return store.Attempts.Answer(ctx, p.self, questions)
}

func (p *farPeers) Recall(ctx context.Context, to schema.DeploymentID, asked []peer.Recall) (*peer.Recalled, error) {
	store, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	return store.Rights.Recall(ctx, p.self, asked)
}

func (p *farPeers) Plan(ctx context.Context, to schema.DeploymentID, q peer.PlanQuestion) (*peer.Plan, error) {
	store, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	return store.Deletions.Plan(ctx, q)
}

func (p *farPeers) Trace(ctx context.Context, to schema.DeploymentID,
	uids []uuid.UUID,
) (map[uuid.UUID]peer.Trace, error) {
	store, err := p.reach(ctx, to)
	if err != nil {
		return nil, err
	}
	return store.Deletions.Trace(ctx, uids)
}

var errNotMeasured = errors.New("nothing that is measured asks for it")

func (p *farPeers) WouldEstablish(context.Context, schema.DeploymentID, peer.AttemptID,
	[]peer.EstablishReference,
) (*peer.Established, error) {
	return nil, errNotMeasured
}

func (p *farPeers) CheckReferences(context.Context, schema.DeploymentID,
	[]peer.CheckedReference,
) ([]peer.Known, error) {
	return nil, errNotMeasured
}

func (p *farPeers) WouldCheckOwners(context.Context, schema.DeploymentID,
	[]peer.OwnerQuestion,
) (*peer.OwnerAnswers, error) {
	return nil, errNotMeasured
}
