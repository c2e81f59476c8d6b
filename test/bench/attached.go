package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
)

const attachedServices = `
service: far.example.com
version: v1
kinds:
  - {kind: Parent, patterns: ["parents/{parent}"]}
---
service: bench.example.com
version: v1
imports: [far.example.com@v1]
kinds:
  - {kind: Parent, table: public.attached_parent, key: [id], patterns: ["parents/{parent}"]}
  - kind: Child
    table: public.attached_child
    key: [id]
    patterns: ["children/{child}"]
    references: [{columns: [parent_id], targets: [far.example.com/Parent], region: eu, behaviour: BLOCK}]
  - kind: Strict
    table: public.strict_child
    key: [id]
    patterns: ["stricts/{strict}"]
    references: [{columns: [parent_id], targets: [far.example.com/Parent], region: eu, behaviour: BLOCK, enforce: strict}]
`

// Equal tables: with a native key, and with an async and a strict reference to another deployment.
const attachedTablesSQL = `
CREATE TABLE native_parent (id bigint PRIMARY KEY, name text);
CREATE TABLE native_child (id bigint PRIMARY KEY, parent_id bigint REFERENCES native_parent, name text);
CREATE INDEX ON native_child (parent_id);
CREATE TABLE attached_parent (id bigint PRIMARY KEY, name text);
CREATE TABLE attached_child (id bigint PRIMARY KEY, parent_id bigint, name text);
CREATE INDEX ON attached_child (parent_id);
CREATE TABLE strict_child (id bigint PRIMARY KEY, parent_id bigint, name text);
CREATE INDEX ON strict_child (parent_id)`

// The database is one of a deployment that has the right to block each target in the other deployment.
const strictRightsSQL = `
INSERT INTO dbcontroller.meta (service, region, epoch, server, timeline)
SELECT 'bench.example.com', 'eu', gen_random_uuid(), 'x.' || oid, left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_database WHERE datname = current_database();
INSERT INTO dbcontroller.deployment (service, region) VALUES ('far.example.com', 'eu');
INSERT INTO dbcontroller.kind (service, kind) VALUES ('far.example.com', 'Parent');
INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name, block_epoch, block_own)
SELECT gen_random_uuid(), d.id, k.id, 'parents/' || g, gen_random_uuid(), m.epoch
FROM dbcontroller.deployment d JOIN dbcontroller.kind k USING (service), dbcontroller.meta m, generate_series(1, 50000) g`

// attachedStep is a piece of work on one of the tables: single statements, or one about many rows.
type attachedStep struct {
	name     string
	first    int // the first key
	each, at int // statements, and rows of each
	sql      string
	holders  bool // it is played to the strict table too
}

const (
	attachedRows = 50_000
	attachedEach = 1_000
)

// attachedSteps returns the steps. Their order matters: rows that are deleted were inserted before.
func attachedSteps() (steps []attachedStep) {
	sizes := []attachedStep{
		{"a row", 1, attachedEach, 1, "", true},
		{"100 rows", 100_001, 50, 100, "", true},
		{"50,000 rows", 200_001, 1, attachedRows, "", true},
	}
	holders := func(name, sql string, sizes []attachedStep) {
		for _, s := range sizes {
			s.name, s.sql = name+" "+s.name, sql
			steps = append(steps, s)
		}
	}
	steps = []attachedStep{{
		"insert 50,000 targets", 1, 1, attachedRows,
		`INSERT INTO %s_parent SELECT g, 'n' FROM generate_series($1::bigint, $2) g`, false,
	}}
	holders("insert", `INSERT INTO %s_child SELECT g, 1 + g %% 1000, 'n' FROM generate_series($1::bigint, $2) g`, sizes)
	holders("update the target of",
		`UPDATE %s_child SET parent_id = 1 + (parent_id + 1) %% 1000 WHERE id BETWEEN $1::bigint AND $2`, sizes)
	holders("update another column of", `UPDATE %s_child SET name = 'x' WHERE id BETWEEN $1::bigint AND $2`, sizes)
	holders("delete", `DELETE FROM %s_child WHERE id BETWEEN $1::bigint AND $2`, sizes)
	return append(
		steps,
		attachedStep{
			"delete a target", 40_000, attachedEach, 1,
			`DELETE FROM %s_parent WHERE id BETWEEN $1::bigint AND $2`, false,
		},
		attachedStep{
			"delete 35,000 targets", 2_000, 1, 35_000,
			`DELETE FROM %s_parent WHERE id BETWEEN $1::bigint AND $2`, false,
		},
	)
}

// attached measures the cost of the triggers of attached tables for the application: the same statements on
// equal tables, in turn, in one connection, each step one transaction, and the order changing with each run.
// No process runs meanwhile. The time is the processor's in the server, where it can be read.
func (r *run) attached(ctx context.Context) error {
	times := map[string]map[string][]float64{}
	tables := []string{"native", "attached", "strict"}
	for range r.Runs {
		slices.Reverse(tables)
		conn, err := r.attachedDatabase(ctx)
		if err != nil {
			return err
		}
		for i, step := range attachedSteps() {
			if i > 0 {
				if _, err := conn.Exec(ctx, `VACUUM ANALYZE`); err != nil {
					return err
				}
			}
			if times[step.name] == nil {
				times[step.name] = map[string][]float64{}
			}
			for _, table := range tables {
				if table == "strict" && !step.holders {
					continue
				}
				took, err := step.run(ctx, conn, table)
				if err != nil {
					return fmt.Errorf("%s (%s): %w", step.name, table, err)
				}
				times[step.name][table] = append(times[step.name][table], took)
			}
		}
		if err := conn.Close(ctx); err != nil {
			return err
		}
	}
	for _, table := range []string{"attached", "strict"} {
		for _, step := range attachedSteps() {
			if took := times[step.name][table]; took != nil {
				r.add(Result{
					Case: table + " " + step.name, N: step.each * step.at, Unit: "ms",
					Baseline: median(times[step.name]["native"]),
				}.of(took))
			}
		}
	}
	return r.attachedCascade(ctx)
}

// run runs a step in one transaction, and returns the milliseconds of it.
func (s attachedStep) run(ctx context.Context, conn *pgx.Conn, table string) (took float64, err error) {
	sql := fmt.Sprintf(s.sql, table)
	began, used := time.Now(), usedBy(conn)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for i := range s.each {
			if _, err := tx.Exec(ctx, sql, s.first+i*s.at, s.first+(i+1)*s.at-1); err != nil {
				return err
			}
		}
		return nil
	})
	if used > 0 {
		return usedBy(conn) - used, err
	}
	return milliseconds(time.Since(began)), err
}

// usedBy returns the processor time that the server has used for a connection, in milliseconds; 0 where it
// cannot be read.
func usedBy(conn *pgx.Conn) float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", conn.PgConn().PID()))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(raw), " ")
	used, _ := strconv.ParseFloat(first, 64)
	return used / 1e6
}

// attachedDatabase makes a database of a deployment with the tables.
func (r *run) attachedDatabase(ctx context.Context) (*pgx.Conn, error) {
	dsns, err := r.Databases(ctx, 1)
	if err != nil {
		return nil, err
	}
	file, err := schema.ParseFile("attached.yaml", strings.NewReader(attachedServices))
	if err != nil {
		return nil, err
	}
	model, err := schema.NewModel(file.Services[1].ServiceVersion, file.Services)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, dsns[0])
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, attachedTablesSQL+";"+strictRightsSQL); err != nil {
		return nil, err
	}
	plans, err := attach.Prepare(ctx, conn, model, false)
	for _, p := range plans {
		if err == nil {
			err = attach.Apply(ctx, conn, p, func(error) {})
		}
	}
	return conn, err
}
