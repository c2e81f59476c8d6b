package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// CountingSettings are the settings of a server that can count its statements. Run switches the counting off
// outside the cases that need it.
var CountingSettings = map[string]string{
	"shared_preload_libraries":         "pg_stat_statements",
	"pg_stat_statements.track_utility": "off",
}

// Counts says whether one of the cases counts statements.
func Counts(cases []string) bool {
	for _, c := range cases {
		if c == "cost" || c == "growth" {
			return true
		}
	}
	return false
}

const (
	// writtenSQL returns how many transactions have written so far, the bytes of the log of the whole server,
	// and the position on disk.
	writtenSQL = `
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::float8, pg_current_wal_insert_lsn() - '0/0'::pg_lsn, pg_current_wal_flush_lsn()::text`

	// recordsSQL returns the rows and the entries of indexes that the whole server wrote between two
	// positions of the log. Locks of rows are not counted.
	recordsSQL = `
SELECT
    coalesce(sum(count) FILTER (WHERE "resource_manager/record_type" ~ '^Heap/(INSERT|UPDATE|HOT_UPDATE|DELETE)'), 0)::float8,
    coalesce(sum(count) FILTER (WHERE "resource_manager/record_type" ~ '^Btree/(INSERT|SPLIT)'), 0)::float8
FROM pg_get_wal_stats($1, $2, true)`

	// statementsSQL returns how many statements the deployments' databases have run since the counts were
	// reset.
	statementsSQL = `
SELECT coalesce(sum(s.calls), 0)::float8 FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname ~ '^dbc_'`

	// hottestSQL returns the statements of this database that took the most time since the counts were reset.
	hottestSQL = `
SELECT query, calls, total_exec_time + total_plan_time FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY 3 DESC LIMIT $1`
)

// counting switches the counting of statements on, and returns the function that switches it off. counted is
// false where the server cannot count.
func (r *run) counting(ctx context.Context) (counted bool, off func(), err error) {
	if !r.CountsStatements {
		return false, func() {}, nil
	}
	for _, extension := range []string{"pg_stat_statements", "pg_walinspect"} {
		if _, err := r.baseline.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS "+extension); err != nil {
			return false, nil, err
		}
	}
	return true, func() { _ = r.count(context.WithoutCancel(ctx), "none", "off") }, r.count(ctx, "top", "on")
}

// count sets which statements are counted, and whether statements get ids, which already cost time in the
// planner.
func (r *run) count(ctx context.Context, which, ids string) error {
	for _, sql := range []string{
		"ALTER SYSTEM SET pg_stat_statements.track = " + which, "ALTER SYSTEM SET compute_query_id = " + ids,
		"SELECT pg_reload_conf()",
	} {
		if _, err := r.baseline.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// work has the counts of the server's work up to a position of the log.
type work struct {
	transactions, bytes       float64
	statements, rows, entries float64 // where the server counts them
	position                  string
}

// workNow returns the transactions and bytes that the server has written so far, and resets the counts of
// statements.
func (r *run) workNow(ctx context.Context, counted bool) (w work, err error) {
	if counted {
		if _, err := r.baseline.Exec(ctx, `SELECT pg_stat_statements_reset()`); err != nil {
			return work{}, err
		}
	}
	return w, r.baseline.QueryRow(ctx, writtenSQL).Scan(&w.transactions, &w.bytes, &w.position)
}

func (r *run) workSince(ctx context.Context, before work, counted bool) (work, error) {
	var w work
	if counted {
		if err := r.baseline.QueryRow(ctx, statementsSQL).Scan(&w.statements); err != nil {
			return work{}, err
		}
	}
	if err := r.baseline.QueryRow(ctx, writtenSQL).Scan(&w.transactions, &w.bytes, &w.position); err != nil {
		return work{}, err
	}
	w.transactions, w.bytes = w.transactions-before.transactions, w.bytes-before.bytes
	if !counted || w.position == before.position {
		return w, nil
	}
	return w, r.baseline.QueryRow(ctx, recordsSQL, before.position, w.position).Scan(&w.rows, &w.entries)
}

// hottest is how many statements of a database writePlans shows.
const hottest = 10

// planSettings are the settings under which the stores plan the statements of small transactions.
const planSettings = `SET enable_seqscan = off; SET jit = off; SET plan_cache_mode = force_generic_plan; SET enable_hashjoin = off; SET enable_mergejoin = off`

// writePlans writes the statements that took the most time in both deployments since the counts were reset,
// with their generic plans.
func (r *run) writePlans(ctx context.Context, n int) error {
	if r.Plans == nil {
		return nil
	}
	for _, id := range []schema.DeploymentID{targets, holders} {
		if _, err := fmt.Fprintf(r.Plans, "== %s, %d resources\n\n", id, n); err != nil {
			return err
		}
		if err := onConnection(ctx, r.Playground.Deployments[id].DSN, func(conn *pgx.Conn) error {
			return writePlansOf(ctx, conn, r.Plans)
		}); err != nil {
			return err
		}
	}
	return nil
}

// writePlansOf writes the statements of one database, with their plans. It creates the extension there in a
// transaction that is rolled back.
func writePlansOf(ctx context.Context, conn *pgx.Conn, out io.Writer) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements; "+planSettings); err != nil {
		return err
	}
	type statement struct {
		Query string
		Calls int64
		Took  float64
	}
	rows, err := tx.Query(ctx, hottestSQL, hottest)
	if err != nil {
		return err
	}
	statements, err := pgx.CollectRows(rows, pgx.RowToStructByPos[statement])
	if err != nil {
		return err
	}
	for i, s := range statements {
		plan, err := genericPlan(ctx, tx, s.Query)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "-- %d: %d calls, %.3f ms each, %.0f ms in all\n%s\n\n%s\n\n", i+1, s.Calls,
			s.Took/float64(s.Calls), s.Took, strings.TrimSpace(s.Query), plan)
		if err != nil {
			return err
		}
	}
	return nil
}

// genericPlan returns the plan for unknown values of a statement's parameters, or why it has none: constants
// are parameters in a counted statement, and some do not parse as such.
func genericPlan(ctx context.Context, tx pgx.Tx, query string) (plan string, err error) {
	within, err := tx.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = within.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := within.Exec(ctx, "PREPARE hot AS "+query); err != nil {
		return "no plan: " + err.Error(), nil
	}
	defer func() { _, _ = tx.Exec(context.WithoutCancel(ctx), "DEALLOCATE hot") }()
	var parameters int
	if err := within.QueryRow(ctx,
		`SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'hot'`).
		Scan(&parameters); err != nil {
		return "", err
	}
	values := strings.TrimSuffix(strings.Repeat("NULL, ", parameters), ", ")
	if values != "" {
		values = "(" + values + ")"
	}
	rows, err := within.Query(ctx, "EXPLAIN EXECUTE hot"+values)
	if err != nil {
		return "", err
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "no plan: " + err.Error(), nil //nolint:nilerr // the statement is shown without it
	}
	return strings.Join(lines, "\n"), nil
}
