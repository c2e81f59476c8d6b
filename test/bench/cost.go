package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/cmd/db-controller/dev"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Each operation is called costCalls times by costClients clients.
const (
	costCalls   = 400
	costClients = 8
)

// costs measures one call of each operation, with its consequences in all deployments: writing transactions,
// bytes of the log, and processor time by process. Rates depend on the machine and its load; these measures
// hardly do.
func (r *run) costs(ctx context.Context) error {
	operations, err := r.operations(ctx, "cost")
	if err != nil {
		return err
	}
	counted, off, err := r.counting(ctx)
	if err != nil {
		return err
	}
	defer off()
	for _, op := range operations {
		if err := r.cost(ctx, op, counted); err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
	}
	return nil
}

// operation is an operation that is called costCalls times, with a number each. A watch of all resources runs
// beside a watched operation.
type operation struct {
	name    string
	call    func(ctx context.Context, i int) error
	watched bool
}

// operations returns all operations, in their order, and makes the resources to which they refer. The names
// of their resources contain a name.
func (r *run) operations(ctx context.Context, of string) ([]operation, error) {
	project, err := r.costFixture(ctx, of)
	if err != nil {
		return nil, err
	}
	at, err := r.Client.Resources(ctx, targets)
	if err != nil {
		return nil, err
	}
	full := schema.FullName{Deployment: targets, Name: project}.String()
	account := full + "/serviceAccounts/of"
	put := func(id schema.DeploymentID, name string, body map[string]any) func(context.Context, int) error {
		return func(ctx context.Context, i int) error {
			_, err := r.put(ctx, schema.FullName{Deployment: id, Name: fmt.Sprint(name, i)}, body)
			return err
		}
	}
	there, err := r.Client.Resources(ctx, holders)
	if err != nil {
		return nil, err
	}
	remove := func(from resourcev1.ResourceServiceClient, prefix string) func(context.Context, int) error {
		return func(ctx context.Context, i int) error {
			_, err := from.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: fmt.Sprint(prefix, i)})
			return err
		}
	}
	update := func(title string) func(context.Context, int) error {
		return put(targets, "projects/"+of+"-none-", map[string]any{"title": title})
	}
	return []operation{
		{name: "create", call: put(targets, "projects/"+of+"-none-", nil)},
		{name: "create-local", call: put(targets, project+"/serviceAccounts/", nil)},
		{name: "create-acting", call: put(holders, "fleets/"+of+"-", map[string]any{"project": full})},
		{name: "create-blocking", call: put(holders, "fleets/"+of+"/devices/", map[string]any{"account": account})},
		{name: "update", call: update("changed")},
		{name: "update-watched", call: update("changed again"), watched: true},
		{name: "get", call: func(ctx context.Context, i int) error {
			_, err := at.GetResource(ctx, &resourcev1.GetResourceRequest{Name: fmt.Sprint("projects/"+of+"-none-", i)})
			return err
		}},
		{name: "list-100", call: func(ctx context.Context, _ int) error {
			_, err := at.ListResources(ctx, &resourcev1.ListResourcesRequest{Kind: "Project", PageSize: 100})
			return err
		}},
		{name: "delete-blocking", call: remove(there, "fleets/"+of+"/devices/")},
		{name: "delete", call: remove(at, "projects/"+of+"-none-")},
		{name: "delete-cascade", call: remove(at, "projects/"+of+"-root-")},
	}, nil
}

// costFixture makes the targets of the operations, and returns the project.
func (r *run) costFixture(ctx context.Context, of string) (project string, err error) {
	project = "projects/" + of
	for _, name := range []schema.FullName{
		{Deployment: targets, Name: project},
		{Deployment: targets, Name: project + "/serviceAccounts/of"},
		{Deployment: holders, Name: "fleets/" + of},
	} {
		if _, err := r.put(ctx, name, nil); err != nil {
			return "", err
		}
	}
	if err := dev.PutMany(ctx, r.Client, targets, "projects/"+of+"-root-", costCalls, nil); err != nil {
		return "", err
	}
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(costClients)
	for i := 1; i <= costCalls; i++ {
		g.Go(func() error {
			root := schema.FullName{Deployment: targets, Name: fmt.Sprint("projects/", of, "-root-", i)}
			_, err := r.put(within, schema.FullName{Deployment: holders, Name: fmt.Sprint("fleets/", of, "-root-", i)},
				map[string]any{"project": root.String()})
			return err
		})
	}
	return project, g.Wait()
}

// cost measures all calls once.
func (r *run) cost(ctx context.Context, op operation, counted bool) error {
	if err := r.settle(ctx); err != nil {
		return err
	}
	if op.watched {
		stop, err := r.watchAll(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	before, err := r.workNow(ctx, counted)
	if err != nil {
		return err
	}
	used, err := r.calls(ctx, op)
	if err != nil {
		return err
	}
	done, err := r.workSince(ctx, before, counted)
	if err != nil {
		return err
	}
	results := []Result{
		{Case: "transactions", Value: done.transactions, Unit: "1"},
		{Case: "log", Value: done.bytes, Unit: "bytes"},
		{Case: "cpu-client", Value: used.client, Unit: "ms"},
		{Case: "cpu-controllers", Value: used.controllers, Unit: "ms"},
		{Case: "cpu-postgresql", Value: max(0, used.postgres), Unit: "ms"},
	}
	if counted {
		results = append(results, Result{Case: "statements", Value: done.statements, Unit: "1"},
			Result{Case: "rows", Value: done.rows, Unit: "1"}, Result{
				Case: "index-entries", Value: done.entries,
				Unit: "1",
			})
	}
	for _, result := range results {
		if result.Unit != "ms" {
			result.Value /= costCalls
		}
		result.Case, result.N = "cost-"+op.name+"-"+result.Case, costCalls
		r.add(result)
	}
	return nil
}

// watchAll reads the events of all projects until stop is called.
func (r *run) watchAll(ctx context.Context) (stop func(), err error) {
	at, err := r.Client.Resources(ctx, targets)
	if err != nil {
		return nil, err
	}
	token, err := tokenOfNow(ctx, at, "Project")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := at.WatchResources(ctx, &resourcev1.WatchResourcesRequest{Kind: "Project", ResumeToken: token})
	if err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for err == nil {
			_, err = stream.Recv()
		}
	}()
	return func() { cancel(); <-ended }, nil
}

// calls makes all calls, waits for their consequences, and returns the processor time of each call.
func (r *run) calls(ctx context.Context, op operation) (cpuTimes, error) {
	before := cpuNow(r.server)
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(costClients)
	for i := 1; i <= costCalls; i++ {
		g.Go(func() error { return op.call(within, i) })
	}
	if err := g.Wait(); err != nil {
		return cpuTimes{}, err
	}
	err := r.quiet(ctx)
	return before.since(r.server, costCalls), err
}
