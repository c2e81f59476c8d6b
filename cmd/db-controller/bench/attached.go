package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
)

const attachedServices = `
service: bench.example.com
version: v1
kinds:
  - {kind: Parent, table: public.attached_parent, key: [id], patterns: ["parents/{parent}"]}
  - kind: Child
    table: public.attached_child
    key: [id]
    patterns: ["children/{child}"]
    references: [{columns: [parent_id], targets: [Parent], behaviour: BLOCK}]
`

// Two pairs of equal tables: one with a native key, one that is attached.
const attachedTablesSQL = `
CREATE TABLE native_parent (id bigint PRIMARY KEY, name text);
CREATE TABLE native_child (id bigint PRIMARY KEY, parent_id bigint REFERENCES native_parent, name text);
CREATE INDEX ON native_child (parent_id);
CREATE TABLE attached_parent (id bigint PRIMARY KEY, name text);
CREATE TABLE attached_child (id bigint PRIMARY KEY, parent_id bigint, name text);
CREATE INDEX ON attached_child (parent_id)`

// attachedStep is a piece of work on one of the pairs: single statements, or one about many rows.
type attachedStep struct {
	name     string
	each, at int // statements, and rows of each
	sql      string
}

const (
	attachedRows = 50_000
	attachedEach = 2_000
)

// The order matters: rows that are deleted were inserted before.
var attachedSteps = []attachedStep{
	{"attached insert 50,000 targets", 1, attachedRows, `INSERT INTO %s_parent SELECT g, 'n' FROM generate_series($1::bigint, $2) g`},
	{"attached insert a row", attachedEach, 1, `INSERT INTO %s_child SELECT -g, 1 + g %% 1000, 'n' FROM generate_series($1::bigint, $2) g`},
	{"attached insert 50,000 rows", 1, attachedRows, `INSERT INTO %s_child SELECT g, 1 + g %% 1000, 'n' FROM generate_series($1::bigint, $2) g`},
	{"attached update another column", 1, attachedRows, `UPDATE %s_child SET name = 'x' WHERE id BETWEEN $1::bigint AND $2`},
	{"attached delete a row", attachedEach, 1, `DELETE FROM %s_parent WHERE id BETWEEN 40000 + $1::bigint AND 40000 + $2`},
	{"attached delete 35,000 rows", 1, 35_000, `DELETE FROM %s_parent WHERE id BETWEEN 4000 + $1::bigint AND 4000 + $2`},
	{"attached delete 50,000 holders", 1, attachedRows, `DELETE FROM %s_child WHERE id BETWEEN $1::bigint AND $2`},
}

// attached measures the cost of the triggers of attached tables for the application: the same statements on both pairs of tables, in turn, in
// one connection, each step one transaction, and the order changing with each run. Nothing captures meanwhile.
func (r *run) attached(ctx context.Context) error {
	times := map[string]map[string][]float64{}
	pairs := []string{"native", "attached"}
	for range r.Runs {
		slices.Reverse(pairs)
		conn, err := r.attachedDatabase(ctx)
		if err != nil {
			return err
		}
		for i, step := range attachedSteps {
			if i > 0 {
				if _, err := conn.Exec(ctx, `VACUUM ANALYZE`); err != nil {
					return err
				}
			}
			if times[step.name] == nil {
				times[step.name] = map[string][]float64{}
			}
			for _, pair := range pairs {
				took, err := step.run(ctx, conn, pair)
				if err != nil {
					return fmt.Errorf("%s (%s): %w", step.name, pair, err)
				}
				times[step.name][pair] = append(times[step.name][pair], milliseconds(took))
			}
		}
		if err := conn.Close(ctx); err != nil {
			return err
		}
	}
	for _, step := range attachedSteps {
		r.add(Result{Case: step.name, N: step.each * step.at, Unit: "ms", Baseline: median(times[step.name]["native"])}.of(times[step.name]["attached"]))
	}
	return nil
}

// run runs a step in one transaction.
func (s attachedStep) run(ctx context.Context, conn *pgx.Conn, pair string) (took time.Duration, err error) {
	sql := fmt.Sprintf(s.sql, pair)
	began := time.Now()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for i := range s.each {
			if _, err := tx.Exec(ctx, sql, 1+i*s.at, (i+1)*s.at); err != nil {
				return err
			}
		}
		return nil
	})
	return time.Since(began), err
}

// attachedDatabase makes a database of a deployment with both pairs of tables.
func (r *run) attachedDatabase(ctx context.Context) (*pgx.Conn, error) {
	dsns, err := r.Databases(ctx, 1)
	if err != nil {
		return nil, err
	}
	file, err := schema.ParseFile("attached.yaml", strings.NewReader(attachedServices))
	if err != nil {
		return nil, err
	}
	model, err := schema.NewModel(file.Services[0].ServiceVersion, file.Services)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, dsns[0])
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, attachedTablesSQL); err != nil {
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
