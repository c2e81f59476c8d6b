package bench

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// delegated measures creates with one acting reference to another deployment: established and confirmed, and then written under a
// right, by processes that are started anew for that.
func (r *run) delegated(ctx context.Context) error {
	project := schema.FullName{Deployment: targets, Name: "projects/delegated"}
	if _, err := r.put(ctx, project, nil); err != nil {
		return err
	}
	if err := r.acting(ctx, "asked", project); err != nil {
		return err
	}
	for _, id := range []schema.DeploymentID{targets, holders} {
		d := r.Playground.Deployments[id]
		if err := d.Stop(); err != nil {
			return err
		}
		d.Add("--delegations")
		if err := d.Start(); err != nil {
			return err
		}
		if err := d.WaitReady(ctx); err != nil {
			return err
		}
	}
	if _, err := r.put(ctx, schema.FullName{Deployment: holders, Name: "fleets/first"}, map[string]any{"project": project.String()}); err != nil {
		return err
	}
	if err := r.settle(ctx); err != nil { // the confirm brings the right
		return err
	}
	return r.acting(ctx, "delegated", project)
}

// acting measures the rate of creates, beside inserts of the same rows.
func (r *run) acting(ctx context.Context, how string, project schema.FullName) error {
	body, err := structpb.NewStruct(map[string]any{"project": project.String()})
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`{"project": %q}`, project)
	resources, err := r.Client.Resources(ctx, holders)
	if err != nil {
		return err
	}
	for _, clients := range []int{1, 8, 16, 64} {
		var ours, plain []float64
		for i := range r.Runs {
			rate, err := r.rate(ctx, clients, func(ctx context.Context, n int64) error {
				name := fmt.Sprintf("fleets/%s-%d-%d-%d", how, clients, i, n)
				_, err := resources.CreateResource(ctx, &resourcev1.CreateResourceRequest{Resource: &resourcev1.Resource{Name: name, Body: body}})
				return err
			})
			if err != nil {
				return err
			}
			if err := r.settle(ctx); err != nil {
				return err
			}
			ours = append(ours, rate)
			rate, err = r.rate(ctx, clients, func(ctx context.Context, n int64) error {
				_, err := r.baseline.Exec(ctx, insertRowsSQL, uuid.Must(uuid.NewV7()), fmt.Sprintf("fleets/%s-%d-%d-%d", how, clients, i, n), text, 1, true)
				return err
			})
			if err != nil {
				return err
			}
			plain = append(plain, rate)
			r.Progress("acting reference, %s, %d clients, run %d: %.0f/s, plain inserts %.0f/s", how, clients, i+1, ours[i], plain[i])
		}
		r.add(Result{Case: fmt.Sprintf("acting-%s-%d-clients", how, clients), N: clients, Unit: "writes/s", Baseline: median(plain)}.of(ours))
	}
	return nil
}
