package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
)

const (
	customer = "Customer"
	order    = "Order"
)

// WithTables adds attached kinds to the services of targets and holders: customers, and orders that go with
// their customer.
func WithTables(services []*schema.Descriptor) {
	for _, d := range services {
		switch d.Service {
		case targets.Service:
			d.Kinds = append(d.Kinds, schema.Kind{
				Name: customer, Patterns: []string{"customers/{customer}"}, Table: schema.TableName{
					Schema: "public",
					Name:   "customers",
				}, Key: []string{"id"},
			})
		case holders.Service:
			d.Kinds = append(d.Kinds, schema.Kind{
				Name: order, Patterns: []string{"orders/{order}"}, Table: schema.TableName{
					Schema: "public",
					Name:   "orders",
				}, Key: []string{"id"},
				References: []schema.Reference{{
					Columns: []string{"customer_id"},
					Targets: []string{targets.Service + "/" + customer},
					Region:  schema.TargetRegion{Fixed: targets.Region}, Behaviour: schema.CascadeDelete,
				}},
			})
		}
	}
}

// The same tables with a native key, in one database; and apart.
const (
	customersSQL    = `CREATE TABLE customers (id bigint PRIMARY KEY, name text)`
	ordersSQL       = `CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, name text); CREATE INDEX ON orders (customer_id)`
	nativeOrdersSQL = customersSQL + `;` + ordersSQL +
		`; ALTER TABLE orders ADD FOREIGN KEY (customer_id) REFERENCES customers ON DELETE CASCADE`
	insertCustomerSQL  = `INSERT INTO customers VALUES (1, 'n')`
	insertOrdersSQL    = `INSERT INTO orders SELECT g, 1, 'n' FROM generate_series(1, $1) g`
	deleteCustomerSQL  = `DELETE FROM customers`
	fillNativeOrderSQL = `WITH c AS (` + insertCustomerSQL + `) ` + insertOrdersSQL
)

var attachedCascades = []int{1_000, 100_000}

// attachedCascade measures rows of one database that go with a row of another: from the DELETE in plain SQL
// until the last of them is gone. It has the baselines of the fan-out: "equal" ones with the same
// bookkeeping, and a native key of the same tables, both in one database.
func (r *run) attachedCascade(ctx context.Context) error {
	if _, err := r.baseline.Exec(ctx, nativeOrdersSQL); err != nil {
		return err
	}
	for id, sql := range map[schema.DeploymentID]string{targets: customersSQL, holders: ordersSQL} {
		if err := r.restart(ctx, id, "--delegations"); err != nil {
			return err
		}
		if err := r.attachTables(ctx, id, sql); err != nil {
			return err
		}
	}
	for _, n := range attachedCascades {
		var ours, equal, native []float64
		for i := range r.Runs {
			took, err := r.timed(ctx, fillNativeOrderSQL, n, deleteCustomerSQL)
			if err != nil {
				return err
			}
			native = append(native, took)
			if took, err = r.timed(ctx, fillEqualSQL, n, `DELETE FROM target`); err != nil {
				return err
			}
			equal = append(equal, took)
			if took, err = r.attachedCascadeOnce(ctx, n); err != nil {
				return err
			}
			ours = append(ours, took)
			r.Progress("attached cascade %d, run %d: %.0f ms, equal %.0f ms, native %.0f ms", n, i+1, took,
				equal[i], native[i])
		}
		r.add(Result{
			Case: "attached cascade", N: n, Unit: "ms", Baseline: median(equal),
			Bare: median(native),
		}.of(ours))
	}
	return nil
}

func (r *run) attachTables(ctx context.Context, id schema.DeploymentID, sql string) error {
	var version schema.ServiceVersion
	for _, d := range r.Services {
		if d.Service == id.Service {
			version = d.ServiceVersion
		}
	}
	model, err := schema.NewModel(version, r.Services)
	if err != nil {
		return err
	}
	return onConnection(ctx, r.Playground.Deployments[id].DSN, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
		plans, err := attach.Prepare(ctx, conn, model, false)
		for _, p := range plans {
			if err == nil && p.Refused() {
				err = fmt.Errorf("table %s is refused: %v", p.Table, p.Findings)
			}
			if err == nil {
				err = attach.Apply(ctx, conn, p, func(error) {})
			}
		}
		return err
	})
}

// attachedCascadeOnce returns how long the rows took to go after the commit of the deletion, in milliseconds.
func (r *run) attachedCascadeOnce(ctx context.Context, n int) (took float64, err error) {
	dsns := r.Playground.Deployments
	err = onConnection(ctx, dsns[targets].DSN, func(customers *pgx.Conn) error {
		return onConnection(ctx, dsns[holders].DSN, func(orders *pgx.Conn) error {
			if _, err := customers.Exec(ctx, insertCustomerSQL); err != nil {
				return err
			}
			if _, err := orders.Exec(ctx, insertOrdersSQL, n); err != nil {
				return err
			}
			if err := none(ctx, orders,
				`SELECT EXISTS (SELECT FROM dbcontroller.deleted_row) OR EXISTS (SELECT FROM dbcontroller.lacking)`); err != nil {
				return err
			}
			if err := r.settle(ctx); err != nil {
				return err
			}
			began := time.Now()
			if _, err := customers.Exec(ctx, deleteCustomerSQL); err != nil {
				return err
			}
			if err := none(ctx, orders, `SELECT EXISTS (SELECT FROM orders)`); err != nil {
				return err
			}
			took = milliseconds(time.Since(began))
			if err := none(ctx, customers,
				`SELECT EXISTS (SELECT FROM dbcontroller.deleted_row) OR EXISTS (SELECT FROM dbcontroller.lacking) OR EXISTS (SELECT FROM dbcontroller.shadow WHERE name = 'customers/1')`); err != nil {
				return err
			}
			return r.settle(ctx)
		})
	})
	return took, err
}

// none waits until a query returns false.
func none(ctx context.Context, conn *pgx.Conn, sql string) error {
	for {
		var some bool
		if err := conn.QueryRow(ctx, sql).Scan(&some); err != nil || !some {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
