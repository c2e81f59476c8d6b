package main

import (
	"context"
	"fmt"
	"time"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// chainLevels is the length of a chain; each level is in another deployment than the one above it.
const chainLevels = 100

// removedLimit is how long a measured delete may take.
const removedLimit = 10 * time.Minute

// hop is the kind of a chain's resources.
const hop = "Hop"

// WithChains adds to each service a kind whose resources refer to one another, within the service and over
// its imports.
func WithChains(services []*schema.Descriptor) {
	for _, d := range services {
		targets := []string{hop}
		for _, imported := range d.Imports {
			targets = append(targets, imported.Service+"/"+hop)
		}
		d.Kinds = append(d.Kinds, schema.Kind{
			Name: hop, Patterns: []string{"hops/{hop}"},
			References: []schema.Reference{{Path: "above", Targets: targets, Behaviour: schema.CascadeDelete}},
		})
	}
}

// chain measures a chain of resources that refer to one another over four deployments: from the Delete call
// for the first one until it is removed, which is after all others. The result is the time of a level.
func (r *run) chain(ctx context.Context) error {
	var took []float64
	for i := range r.Runs {
		ms, err := r.chainOnce(ctx, i)
		if err != nil {
			return err
		}
		took = append(took, ms/chainLevels)
		r.Progress("chain, run %d: %.2f ms a level", i+1, took[i])
	}
	r.add(Result{Case: "chain-level", N: chainLevels, Unit: "ms"}.of(took))
	return nil
}

// place returns the resource of a level. The upper half is in the imported service, the lower half in the
// importing one; regions alternate.
func place(run, level int) schema.FullName {
	at := schema.DeploymentID{Service: targets.Service, Region: targets.Region}
	if level >= chainLevels/2 {
		at.Service = holders.Service
	}
	if level%2 == 1 {
		at.Region = holders.Region
	}
	return schema.FullName{Deployment: at, Name: fmt.Sprintf("hops/%d-%d", run, level)}
}

func (r *run) chainOnce(ctx context.Context, run int) (float64, error) {
	root := place(run, 0)
	if _, err := r.put(ctx, root, nil); err != nil {
		return 0, err
	}
	for level := 1; level < chainLevels; level++ {
		if _, err := r.put(ctx, place(run, level), map[string]any{"above": place(run, level-1).String()}); err != nil {
			return 0, err
		}
	}
	if err := r.settle(ctx); err != nil {
		return 0, err
	}
	return r.removed(ctx, root, hop)
}

// removed returns the time from a Delete call until a watch says that the resource is removed, in
// milliseconds.
func (r *run) removed(ctx context.Context, name schema.FullName, kind string) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resources, err := r.Client.Resources(ctx, name.Deployment)
	if err != nil {
		return 0, err
	}
	gone, err := r.watchGone(ctx, name.Deployment, kind)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := resources.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: name.Name}); err != nil {
		return 0, err
	}
	for {
		select {
		case removed := <-gone:
			if removed == name.Name {
				return milliseconds(time.Since(began)), nil
			}
		case <-time.After(removedLimit):
			return 0, fmt.Errorf("%s was not removed within %s", name, removedLimit)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
