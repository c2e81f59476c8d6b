package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// delegated measures creates with a reference to another deployment that is asked, and then, by processes
// that are started anew, with one that is written under a right, also while the target's deployment is
// stopped. Those without a reference are beside them.
func (r *run) delegated(ctx context.Context) error {
	project, account := schema.FullName{Deployment: targets, Name: "projects/delegated"},
		schema.FullName{Deployment: targets, Name: "projects/delegated/serviceAccounts/a"}
	for _, name := range []schema.FullName{project, account, {Deployment: holders, Name: "fleets/delegated"}} {
		if _, err := r.put(ctx, name, nil); err != nil {
			return err
		}
	}
	for _, prefix := range []string{project.Name + "-", account.Name} {
		if err := dev.PutMany(ctx, r.Client, targets, prefix, manyTargets, nil); err != nil {
			return err
		}
	}
	clients := []int{1, 16, 64, 240}
	acting := writeShape{
		"acting-asked", "fleets/asked-%s",
		map[string]any{"project": project.String() + "-*"},
		manyTargets, 1, true, clients,
	}
	if err := r.shapes(ctx, acting); err != nil {
		return err
	}
	for _, id := range []schema.DeploymentID{targets, holders} {
		if err := r.restart(ctx, id, "--delegations", "--block-right-from=1"); err != nil {
			return err
		}
	}
	acting.name, acting.pattern, acting.foreign = "acting-delegated", "fleets/delegated-%s", false
	blocking := writeShape{
		"blocking-delegated", "fleets/delegated/devices/%s",
		map[string]any{"account": account.String() + "*"},
		manyTargets, 2, false, clients,
	}
	if err := r.obtain(ctx, acting, blocking); err != nil {
		return err
	}
	none := writeShape{"delegated-none", "fleets/beside-%s", map[string]any{"model": "sensor"}, 1, 0, false, clients}
	local := writeShape{
		"delegated-local", "fleets/delegated/devices/local-%s",
		map[string]any{"model": "sensor"},
		1, 1,
		false, clients,
	}
	if err := r.shapes(ctx, none, acting, local, blocking); err != nil {
		return err
	}
	if err := r.Playground.Deployments[targets].Stop(); err != nil {
		return err
	}
	acting.name, acting.pattern = "acting-away", "fleets/away-%s"
	blocking.name, blocking.pattern = "blocking-away", "fleets/delegated/devices/away-%s"
	if err := r.shapes(ctx, acting, blocking); err != nil {
		return err
	}
	return r.restart(ctx, targets)
}

// restart starts the process of a deployment with further arguments.
func (r *run) restart(ctx context.Context, id schema.DeploymentID, args ...string) error {
	d := r.Playground.Deployments[id]
	if err := d.Stop(); err != nil {
		return err
	}
	for _, arg := range args {
		d.Add(arg)
	}
	if err := d.Start(); err != nil {
		return err
	}
	return d.WaitReady(ctx)
}

// obtain writes a resource of each shape for each target, whose confirms bring the rights.
func (r *run) obtain(ctx context.Context, shapes ...writeShape) error {
	resources, err := r.Client.Resources(ctx, holders)
	if err != nil {
		return err
	}
	for _, shape := range shapes {
		bodies, err := shape.bodies()
		if err != nil {
			return err
		}
		g, within := errgroup.WithContext(ctx)
		g.SetLimit(16)
		for i, body := range bodies {
			g.Go(func() error {
				name := fmt.Sprintf(shape.pattern, fmt.Sprint("first-", i))
				_, err := resources.PutResource(within,
					&resourcev1.PutResourceRequest{Resource: &resourcev1.Resource{Name: name, Body: body}})
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	if err := r.settle(ctx); err != nil {
		return err
	}
	return onConnection(ctx, r.Playground.Deployments[holders].DSN, func(conn *pgx.Conn) error {
		var acting, block int
		err := conn.QueryRow(ctx, `SELECT count(acting_epoch), count(block_epoch) FROM dbcontroller.foreign_target`).
			Scan(&acting, &block)
		if err == nil && (acting < manyTargets || block < manyTargets) {
			err = fmt.Errorf("the deployment has the acting right to %d resources and the right to block to %d of %d",
				acting, block, manyTargets)
		}
		return err
	})
}
