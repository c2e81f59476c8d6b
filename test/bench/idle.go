package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// idleTime is how long nothing is asked of the deployments.
	idleTime = time.Minute
	// reportTime is how long a session may keep its counts to itself.
	reportTime = 10 * time.Second
)

// activitySQL counts the transactions and the written rows of this database, including the question itself.
const activitySQL = `
SELECT xact_commit + xact_rollback, tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname = current_database()`

// idle measures deployments that have nothing to do: transactions and written rows a second in their
// databases, and the part of a processor that a controller takes, and PostgreSQL for it.
func (r *run) idle(ctx context.Context) error {
	var transactions, rows, cpu, postgres []float64
	deployments := float64(len(r.Playground.Deployments))
	if err := r.settle(ctx); err != nil {
		return err
	}
	if err := pause(ctx, reportTime); err != nil {
		return err
	}
	for i := range r.Runs {
		before, err := r.activity(ctx)
		if err != nil {
			return err
		}
		times := cpuNow(r.server)
		if err := pause(ctx, idleTime); err != nil {
			return err
		}
		used := times.since(r.server, deployments)
		after, err := r.activity(ctx)
		if err != nil {
			return err
		}
		each := deployments * idleTime.Seconds()
		transactions, rows = append(transactions, (after.transactions-before.transactions)/each),
			append(rows, (after.rows-before.rows)/each)
		cpu = append(cpu, used.controllers/float64(idleTime.Milliseconds())*100)
		postgres = append(postgres, used.postgres/float64(idleTime.Milliseconds())*100)
		r.Progress(
			"idle, run %d, a deployment: %.2f transactions/s, %.2f rows/s, %.2f %% of a processor, and %.2f %% for it in PostgreSQL",
			i+1, transactions[i], rows[i], cpu[i], postgres[i])
	}
	n := len(r.Playground.Deployments)
	r.add(Result{Case: "idle-transactions", N: n, Unit: "1/s"}.of(transactions))
	r.add(Result{Case: "idle-rows", N: n, Unit: "1/s"}.of(rows))
	r.add(Result{Case: "idle-cpu", N: n, Unit: "%"}.of(cpu))
	r.add(Result{Case: "idle-postgres-cpu", N: n, Unit: "%"}.of(postgres))
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

type activity struct{ transactions, rows float64 }

// activity adds up the activity of all deployments' databases. Sessions report it within reportTime, so the
// result lags.
func (r *run) activity(ctx context.Context) (sum activity, err error) {
	for _, d := range r.Playground.Deployments {
		err := onConnection(ctx, d.DSN, func(conn *pgx.Conn) error {
			var a activity
			err := conn.QueryRow(ctx, activitySQL).Scan(&a.transactions, &a.rows)
			sum.transactions, sum.rows = sum.transactions+a.transactions, sum.rows+a.rows
			return err
		})
		if err != nil {
			return activity{}, err
		}
	}
	return sum, nil
}
