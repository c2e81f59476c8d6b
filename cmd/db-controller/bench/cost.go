package bench

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// Each operation is called costCalls times by costClients clients.
const (
	costCalls   = 400
	costClients = 8
)

// writtenSQL returns how many transactions have written so far, and the bytes of the log, of the whole server.
const writtenSQL = `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::float8, pg_current_wal_insert_lsn() - '0/0'::pg_lsn`

// costs measures one call of each operation, with its consequences in all deployments: writing transactions, bytes of the log, and processor time by
// process. Rates depend on the machine and its load; these measures hardly do.
func (r *run) costs(ctx context.Context) error {
	operations, err := r.operations(ctx, "cost")
	if err != nil {
		return err
	}
	for _, op := range operations {
		if err := r.cost(ctx, op); err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
	}
	return nil
}

// operation is one that costCalls calls are made of, with a number each.
type operation struct {
	name string
	call func(ctx context.Context, i int) error
}

// operations returns all operations, in their order, and makes the resources to which they refer. The names of their resources contain a name.
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
	remove := func(prefix string) func(context.Context, int) error {
		return func(ctx context.Context, i int) error {
			_, err := at.DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: fmt.Sprint(prefix, i)})
			return err
		}
	}
	return []operation{
		{"create", put(targets, "projects/"+of+"-none-", nil)},
		{"create-local", put(targets, project+"/serviceAccounts/", nil)},
		{"create-acting", put(holders, "fleets/"+of+"-", map[string]any{"project": full})},
		{"create-blocking", put(holders, "fleets/"+of+"/devices/", map[string]any{"account": account})},
		{"update", put(targets, "projects/"+of+"-none-", map[string]any{"title": "changed"})},
		{"get", func(ctx context.Context, i int) error {
			_, err := at.GetResource(ctx, &resourcev1.GetResourceRequest{Name: fmt.Sprint("projects/"+of+"-none-", i)})
			return err
		}},
		{"list-100", func(ctx context.Context, _ int) error {
			_, err := at.ListResources(ctx, &resourcev1.ListResourcesRequest{Kind: "Project", PageSize: 100})
			return err
		}},
		{"delete", remove("projects/" + of + "-none-")},
		{"delete-cascade", remove("projects/" + of + "-root-")},
	}, nil
}

// costFixture makes the targets of the operations, and returns the project.
func (r *run) costFixture(ctx context.Context, of string) (project string, err error) {
	project = "projects/" + of
	for _, name := range []schema.FullName{
		{Deployment: targets, Name: project}, {Deployment: targets, Name: project + "/serviceAccounts/of"}, {Deployment: holders, Name: "fleets/" + of},
	} {
		if _, err := r.put(ctx, name, nil); err != nil {
			return "", err
		}
	}
	if err := PutMany(ctx, r.Client, targets, "projects/"+of+"-root-", costCalls, nil); err != nil {
		return "", err
	}
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(costClients)
	for i := 1; i <= costCalls; i++ {
		g.Go(func() error {
			root := schema.FullName{Deployment: targets, Name: fmt.Sprint("projects/", of, "-root-", i)}
			_, err := r.put(within, schema.FullName{Deployment: holders, Name: fmt.Sprint("fleets/", of, "-root-", i)}, map[string]any{"project": root.String()})
			return err
		})
	}
	return project, g.Wait()
}

// cost measures all calls once.
func (r *run) cost(ctx context.Context, op operation) error {
	if err := r.settle(ctx); err != nil {
		return err
	}
	transactions, bytes, err := r.written(ctx)
	if err != nil {
		return err
	}
	used, err := r.calls(ctx, op)
	if err != nil {
		return err
	}
	allTransactions, allBytes, err := r.written(ctx)
	if err != nil {
		return err
	}
	for _, result := range []Result{
		{Case: "transactions", Value: (allTransactions - transactions) / costCalls, Unit: "1"},
		{Case: "log", Value: (allBytes - bytes) / costCalls, Unit: "bytes"},
		{Case: "cpu-client", Value: used.client, Unit: "ms"},
		{Case: "cpu-controllers", Value: used.controllers, Unit: "ms"},
		{Case: "cpu-postgresql", Value: max(0, used.postgres), Unit: "ms"},
	} {
		result.Case, result.N = "cost-"+op.name+"-"+result.Case, costCalls
		r.add(result)
	}
	return nil
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

func (r *run) written(ctx context.Context) (transactions, bytes float64, err error) {
	err = r.baseline.QueryRow(ctx, writtenSQL).Scan(&transactions, &bytes)
	return transactions, bytes, err
}
