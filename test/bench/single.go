package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// singles is how often the single case is repeated in a run.
const singles = 100

// single measures one target with one holder in another deployment: from the Delete call until a watch says
// that the holder is gone.
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
	r.add(Result{Case: "single-p50", N: singles, Unit: "ms"}.of(p50))
	r.add(Result{Case: "single-p99", N: singles, Unit: "ms"}.of(p99))
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
	gone, err := r.watchGone(ctx, holders, "Fleet")
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

// watchGone returns a channel with the name of each resource of a kind that is removed at a deployment from
// now on.
func (r *run) watchGone(ctx context.Context, at schema.DeploymentID, kind string) (<-chan string, error) {
	resources, err := r.Client.Resources(ctx, at)
	if err != nil {
		return nil, err
	}
	token, err := tokenOfNow(ctx, resources, kind)
	if err != nil {
		return nil, err
	}
	stream, err := resources.WatchResources(ctx, &resourcev1.WatchResourcesRequest{Kind: kind, ResumeToken: token})
	if err != nil {
		return nil, err
	}
	gone := make(chan string)
	go func() {
		for {
			msg, err := stream.Recv()
			if err != nil {
				return
			}
			if msg.GetDelete() == nil {
				continue
			}
			select {
			case gone <- msg.GetDelete().GetName():
			case <-ctx.Done():
				return
			}
		}
	}()
	return gone, nil
}
