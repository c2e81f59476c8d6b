package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// growths are the numbers of resources in each of the two deployments.
var growths = []int{10_000, 100_000, 1_000_000}

const (
	// Resources of the kind of a resource with a blockade each: half of these on a hot target.
	growTargetsSQL = `
WITH s AS (
    INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
    SELECT gen_random_uuid(), p.kind_id, 1, n % 64, n, 1, 'projects/grown-' || n
    FROM dbcontroller.shadow p, generate_series(@from::int + 1, @to::int) AS n WHERE p.name = @like
    RETURNING id, uid, kind_id, revision, name
), r AS (
    INSERT INTO dbcontroller.resource (id, body) SELECT id, '{}' FROM s
), c AS (
    INSERT INTO dbcontroller.change (uid, revision, generation, kind_id, state, created_at, name, body)
    SELECT uid, revision, 1, kind_id, 1, now(), name, '{}' FROM s
)
INSERT INTO dbcontroller.blockade (target_id, holder_uid, attempt, field_id, deployment_id, holder_kind_id, behaviour, holder_name)
SELECT CASE WHEN s.revision % 2 = 0 THEN s.id ELSE hot.id END, gen_random_uuid(), gen_random_uuid(), f.id, d.id, s.kind_id, 1, 'fleets/grown-' || s.revision
FROM s, dbcontroller.shadow hot, dbcontroller.deployment d, (SELECT min(id) AS id FROM dbcontroller.field) f
WHERE hot.name = @hot AND d.service = @service AND d.region = @region`

	// Resources of the kind of $3, each with a reference and a decided attempt: half of them to the target
	// $4, half to targets of their own.
	growHoldersSQL = `
WITH t AS (
    SELECT id, deployment_id, kind_id FROM dbcontroller.foreign_target WHERE name = $4
), s AS (
    INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
    SELECT gen_random_uuid(), p.kind_id, 1, n % 64, n, 1, 'fleets/grown-' || n
    FROM dbcontroller.shadow p, generate_series($1::int + 1, $2::int) AS n WHERE p.name = $3
    RETURNING id, uid, kind_id, revision, name
), r AS (
    INSERT INTO dbcontroller.resource (id, body) SELECT id, '{}' FROM s
), c AS (
    INSERT INTO dbcontroller.change (uid, revision, generation, kind_id, state, created_at, name, body)
    SELECT uid, revision, 1, kind_id, 1, now(), name, '{}' FROM s
), own AS (
    INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name)
    SELECT gen_random_uuid(), t.deployment_id, t.kind_id, 'projects/grown-' || s.revision FROM s, t WHERE s.revision % 2 = 0
    RETURNING id, name
), a AS (
    INSERT INTO dbcontroller.attempt (id, committed) SELECT gen_random_uuid(), true FROM s
)
INSERT INTO dbcontroller.reference (holder_id, target_id, attempt, field_id, behaviour)
SELECT s.id, COALESCE(own.id, t.id), gen_random_uuid(), f.id, 1
FROM t, (SELECT min(id) AS id FROM dbcontroller.field) f, s LEFT JOIN own ON own.name = 'projects/grown-' || s.revision`

	// The rows that sequential scans, and the entries that index scans, have read so far, of tables that have
	// grown.
	readRowsSQL = `
SELECT t.relname, t.seq_tup_read + (SELECT COALESCE(sum(i.idx_tup_read), 0)::bigint FROM pg_stat_user_indexes i WHERE i.relid = t.relid)
FROM pg_stat_user_tables t WHERE t.schemaname = 'dbcontroller' AND t.n_live_tup >= $1`
)

// growth measures the operations of cost while both deployments grow: the processor time of a call beside
// that with the least resources, and how many rows of large tables a call reads. It runs last: the added
// resources stay.
func (r *run) growth(ctx context.Context) error {
	counted, off, err := r.counting(ctx)
	if err != nil {
		return err
	}
	defer off()
	least := map[string]float64{}
	grown := 0
	for _, n := range growths {
		name := fmt.Sprintf("growth%d", n)
		operations, err := r.operations(ctx, name)
		if err != nil {
			return err
		}
		if err := r.grow(ctx, name, grown, n); err != nil {
			return err
		}
		grown = n
		if err := r.settle(ctx); err != nil {
			return err
		}
		before, err := r.rowsRead(ctx, growths[0])
		if err != nil {
			return err
		}
		if _, err := r.workNow(ctx, counted); err != nil { // forgets the statements that have made the resources
			return err
		}
		for _, op := range operations {
			used, err := r.calls(ctx, op)
			if err != nil {
				return fmt.Errorf("%s: %w", op.name, err)
			}
			if least[op.name] == 0 {
				least[op.name] = used.sum()
			}
			r.add(Result{Case: "growth-" + op.name, N: n, Unit: "ms", Value: used.sum(), Baseline: least[op.name]})
		}
		after, err := r.rowsRead(ctx, growths[0])
		if err != nil {
			return err
		}
		rows, by := readSince(before, after)
		r.add(Result{
			Case: "growth-read", N: n, Unit: "rows",
			Value: float64(rows) / float64(costCalls*len(operations)),
		})
		if rows > 0 {
			r.Progress("rows of large tables that were read: %s", by)
		}
		if counted && n == growths[len(growths)-1] {
			return r.writePlans(ctx, n)
		}
	}
	return nil
}

// grow adds resources until both deployments have n of them, with references to a target of operations.
func (r *run) grow(ctx context.Context, of string, from, n int) error {
	account := "projects/" + of + "/serviceAccounts/of"
	first := schema.FullName{Deployment: holders, Name: "fleets/" + of + "/devices/first"}
	if _, err := r.put(ctx, first,
		map[string]any{"account": schema.FullName{Deployment: targets, Name: account}.String()}); err != nil {
		return err
	}
	err := onConnection(ctx, r.Playground.Deployments[targets].DSN, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, growTargetsSQL, pgx.StrictNamedArgs{
			"from": from, "to": n, "like": "projects/" + of, "hot": account, "service": holders.Service,
			"region": holders.Region,
		})
		return errors.Join(err, vacuum(ctx, conn))
	})
	if err != nil {
		return err
	}
	return onConnection(ctx, r.Playground.Deployments[holders].DSN, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, growHoldersSQL, from, n, "fleets/"+of, account)
		return errors.Join(err, vacuum(ctx, conn))
	})
}

// vacuum does the work that autovacuum would do about the new rows while operations are measured.
func vacuum(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `VACUUM (ANALYZE)`)
	return err
}

// rowsRead returns the rows and entries of indexes that were read so far, of tables with so many rows, by
// table, in both deployments.
func (r *run) rowsRead(ctx context.Context, size int) (map[string]int64, error) {
	if err := pause(ctx, reportTime); err != nil { // sessions report late
		return nil, err
	}
	out := map[string]int64{}
	for _, id := range []schema.DeploymentID{targets, holders} {
		err := onConnection(ctx, r.Playground.Deployments[id].DSN, func(conn *pgx.Conn) error {
			rows, err := conn.Query(ctx, readRowsSQL, size)
			if err != nil {
				return err
			}
			var table string
			var read int64
			_, err = pgx.ForEachRow(rows, []any{&table, &read}, func() error { out[table] += read; return nil })
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readSince returns the rows that were read between two counts, and by table. A table that has grown in
// between is not counted.
func readSince(before, after map[string]int64) (rows int64, by string) {
	var tables []string
	for _, table := range slices.Sorted(maps.Keys(after)) {
		if was, counted := before[table]; counted && after[table] > was {
			rows += after[table] - was
			tables = append(tables, fmt.Sprintf("%s %d", table, after[table]-was))
		}
	}
	return rows, strings.Join(tables, ", ")
}
