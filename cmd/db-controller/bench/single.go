package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// singles is how often the single case is repeated in a run.
const singles = 100

// single measures one target with one holder in another deployment: from the Delete call until a watch says that the
// holder is gone.
func (r *run) single(ctx context.Context) error {
	var p50, p99 []float64
	for i := range r.Runs {
		took, err := r.singleRun(ctx, fmt.Sprintf("single%d", i), singles)
		if err != nil {
			return err
		}
		p50, p99 = append(p50, median(took)), append(p99, percentile(took, 0.99))
		r.Progress("single, run %d: p50 %.1f ms, p99 %.1f ms", i+1, p50[i], p99[i])
	}
	r.add(Result{Case: "single-p50", N: singles, Value: median(p50), Unit: "ms"})
	r.add(Result{Case: "single-p99", N: singles, Value: median(p99), Unit: "ms"})
	return nil
}

// pair is a target and its holder.
type pair struct {
	target, holder schema.FullName
	uid            string // of the holder
}

// prepareSingles makes targets with a holder each, and waits until all is settled.
func (r *run) prepareSingles(ctx context.Context, name string, n int) ([]pair, error) {
	pairs := make([]pair, n)
	for i := range pairs {
		p := &pairs[i]
		p.target = schema.FullName{Deployment: targets, Name: fmt.Sprintf("projects/%s-%d", name, i)}
		if _, err := r.put(ctx, p.target, nil); err != nil {
			return nil, err
		}
		p.holder = schema.FullName{Deployment: holders, Name: fmt.Sprintf("fleets/%s-%d", name, i)}
		var err error
		if p.uid, err = r.put(ctx, p.holder, map[string]any{"project": p.target.String()}); err != nil {
			return nil, err
		}
	}
	return pairs, r.settle(ctx)
}

func (r *run) singleRun(ctx context.Context, name string, n int) ([]float64, error) {
	pairs, err := r.prepareSingles(ctx, name, n)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone, err := r.watchGone(ctx)
	if err != nil {
		return nil, err
	}
	resources, err := r.Client.Resources(ctx, targets)
	if err != nil {
		return nil, err
	}
	var took []float64
	for _, p := range pairs {
		began := time.Now()
		if _, err := resources.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: p.target.Name}); err != nil {
			return nil, err
		}
		select {
		case <-gone:
			took = append(took, milliseconds(time.Since(began)))
		case <-time.After(10 * time.Second):
			return nil, errors.New("a holder did not go within 10 s")
		}
	}
	return took, nil
}

// watchGone returns a channel with an entry for each removed holder.
func (r *run) watchGone(ctx context.Context) (<-chan struct{}, error) {
	resources, err := r.Client.Resources(ctx, holders)
	if err != nil {
		return nil, err
	}
	stream, err := resources.WatchResources(ctx, &resourcev1.WatchResourcesRequest{Kind: "Fleet"})
	if err != nil {
		return nil, err
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if msg.GetEndOfSnapshot() != nil {
			break
		}
	}
	gone := make(chan struct{}, singles) // one place for each, so that the sender never waits for a receiver that has returned
	go func() {
		for {
			msg, err := stream.Recv()
			if err != nil {
				return
			}
			if msg.GetDelete() != nil {
				gone <- struct{}{}
			}
		}
	}()
	return gone, nil
}

const (
	writeTime = 3 * time.Second

	// The rows that a write with one foreign reference leaves at the holder, one transaction each.
	insertRowsSQL = `
WITH n AS (SELECT nextval('revision') AS n), s AS (
    INSERT INTO shadow (id, uid, kind_id, state, shard, revision, generation, created_at, updated_at, name)
    SELECT n, $1, 3, 1, 1, n, 1, now(), now(), $2 FROM n RETURNING id, revision
), b AS (
    INSERT INTO resource SELECT id, NULL, $3::text::jsonb FROM s
), f AS (
    INSERT INTO reference (holder_id, target_id, attempt, field_id, behaviour) SELECT id, 0, $1, 1, 1 FROM s
), a AS (
    INSERT INTO attempt (id, committed) VALUES ($1, true)
)
INSERT INTO change (uid, revision, generation, kind_id, state, created_at, name, body)
SELECT $1, revision, 1, 3, 1, now(), $2, $3::text::jsonb FROM s`
)

// write measures creates with one reference to another deployment, established and confirmed.
func (r *run) write(ctx context.Context) error {
	account := schema.FullName{Deployment: targets, Name: "projects/write/serviceAccounts/a"}
	for _, name := range []schema.FullName{{Deployment: targets, Name: "projects/write"}, account, {Deployment: holders, Name: "fleets/write"}} {
		if _, err := r.put(ctx, name, nil); err != nil {
			return err
		}
	}
	body, err := structpb.NewStruct(map[string]any{"account": account.String(), "model": "sensor"})
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`{"account": %q, "model": "sensor"}`, account)
	resources, err := r.Client.Resources(ctx, holders)
	if err != nil {
		return err
	}
	for _, clients := range []int{1, 16, 64} {
		var ours, plain []float64
		for i := range r.Runs {
			rate, err := r.rate(ctx, clients, func(ctx context.Context, n int64) error {
				name := fmt.Sprintf("fleets/write/devices/c%d-%d-%d", clients, i, n)
				_, err := resources.CreateResource(ctx, &resourcev1.CreateResourceRequest{Resource: &resourcev1.Resource{Name: name, Body: body}})
				return err
			})
			if err != nil {
				return err
			}
			ours = append(ours, rate)
			if err := r.settle(ctx); err != nil {
				return err
			}
			rate, err = r.rate(ctx, clients, func(ctx context.Context, n int64) error {
				_, err := r.baseline.Exec(ctx, insertRowsSQL, uuid.Must(uuid.NewV7()), fmt.Sprintf("fleets/write/devices/c%d-%d-%d", clients, i, n), text)
				return err
			})
			if err != nil {
				return err
			}
			plain = append(plain, rate)
			r.Progress("write with %d clients, run %d: %.0f/s, plain inserts %.0f/s", clients, i+1, ours[i], plain[i])
		}
		r.add(Result{Case: fmt.Sprintf("write-%d-clients", clients), N: clients, Value: median(ours), Unit: "writes/s", Baseline: median(plain)})
	}
	return nil
}

// rate runs clients in parallel for a while, and returns their operations a second.
func (r *run) rate(ctx context.Context, clients int, do func(ctx context.Context, n int64) error) (float64, error) {
	var n atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for range clients {
		g.Go(func() error {
			for time.Since(began) < writeTime {
				if err := do(ctx, n.Add(1)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return float64(n.Load()) / time.Since(began).Seconds(), err
}
