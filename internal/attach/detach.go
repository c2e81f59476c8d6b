package attach

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// Attached is an attached table, as the database says.
type Attached struct {
	KindID     int32             `json:"-"`
	Kind       string            `json:"kind"`
	Definition schema.Definition `json:"definition"`
	Checksum   string            `json:"checksum"`
	// Ready is false for a table that is detached, while the controller removes the resources of its rows.
	Ready bool `json:"ready"`
	// Walked: the values that were there when it was attached have been read.
	Walked bool `json:"walked"`
	// Waiting counts the deleted rows, and the values without a right, that are not settled yet. Missing
	// counts the values whose target does not exist, and Failed the waiting ones whose last try failed.
	// Problem is the reason of one of Missing, and Failure the reason of one of Failed.
	Waiting int64   `json:"waiting"`
	Missing int64   `json:"missing"`
	Failed  int64   `json:"failed"`
	Problem *string `json:"problem,omitempty"`
	Failure *string `json:"failure,omitempty"`
	// MissingRows are the rows whose targets do not exist, by reference.
	MissingRows []Missing `json:"missing_rows,omitempty"`
	// Drift are the differences between the triggers, the definition, and the version that runs.
	Drift []string `json:"drift,omitempty"`
	// Renamed are the names of the table and of its columns that have changed: the triggers follow them.
	Renamed []string `json:"renamed,omitempty"`
	// Grants are rights that roles of the deployment's processes lack.
	Grants []Finding `json:"grants,omitempty"`
}

// State says in words how far the attachment is.
func (a *Attached) State() string {
	switch {
	case !a.Ready:
		return "detached, gives up its rights"
	case !a.Walked:
		return "attached, its values are read for the first time"
	}
	return "attached"
}

func (a *Attached) changes() []string {
	var key []string
	for _, c := range a.Definition.Key {
		key = append(key, c.Name)
	}
	var references [][]string
	for _, r := range a.Definition.References {
		references = append(references, r.Columns)
	}
	if gone := a.Definition.Gone; gone != nil {
		references = append(references, []string{gone.Name})
	}
	return changes(key, references)
}

// Declared adds to the differences of attached tables that the version that runs declares a table otherwise,
// or not at all: while it does, no row is read.
func Declared(all []*Attached, running *schema.Model) {
	for _, a := range all {
		if !a.Ready {
			continue
		}
		otherwise, same := false, false
		for _, name := range running.KindNames() {
			if kind, err := running.Kind(name); err == nil && kind.Table != nil &&
				kind.Table.Name == a.Definition.Table {
				otherwise, same = true, same || a.Definition.Describes(kind)
			}
		}
		version := running.Descriptor.Version
		switch {
		case same:
		case otherwise:
			a.Drift = append(a.Drift, "declared otherwise in "+version+
				", which runs: no row is read until you attach again")
		default:
			a.Drift = append(a.Drift, "not declared in "+version+
				", which runs: no row is read; detach, or let a version with the table run")
		}
	}
}

// Deleted rows, and values without a right.
const listSQL = `
SELECT a.kind_id, a.kind, a.definition, a.checksum, a.ready, a.walked, count(*) FILTER (WHERE NOT c.missing),
    count(*) FILTER (WHERE c.missing), count(*) FILTER (WHERE c.problem IS NOT NULL AND NOT c.missing),
    min(c.problem) FILTER (WHERE c.missing), min(c.problem) FILTER (WHERE NOT c.missing)
FROM dbcontroller.attachment a LEFT JOIN (
    SELECT kind_id, false AS missing, problem FROM dbcontroller.deleted_row UNION ALL SELECT kind_id, missing, path || ': ' || problem FROM dbcontroller.lacking
) AS c USING (kind_id)
GROUP BY a.kind_id ORDER BY a.kind`

// All returns the attached tables with their drift.
func All(ctx context.Context, conn *pgx.Conn) (all []*Attached, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		all, err = list(ctx, tx)
		return err
	})
	return all, err
}

func list(ctx context.Context, tx pgx.Tx) ([]*Attached, error) {
	rows, err := tx.Query(ctx, listSQL)
	if err != nil {
		return nil, fmt.Errorf("read the attached tables: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Attached, error) {
		a, raw := &Attached{}, []byte{}
		err := row.Scan(&a.KindID, &a.Kind, &raw, &a.Checksum, &a.Ready, &a.Walked, &a.Waiting, &a.Missing, &a.Failed,
			&a.Problem, &a.Failure)
		if err == nil {
			err = json.Unmarshal(raw, &a.Definition)
		}
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the attached tables: %w", err)
	}
	for _, a := range all {
		if !a.Ready {
			continue
		}
		if a.Drift, err = driftOf(ctx, tx, a.KindID, &a.Definition); err != nil {
			return nil, err
		}
		if a.MissingRows, err = missingOf(ctx, tx, a.KindID, &a.Definition); err != nil {
			return nil, err
		}
		changes, err := tableDrift(ctx, tx, a.KindID)
		if err != nil {
			return nil, err
		}
		a.Drift = append(a.Drift, changes...)
		n, attached, err := followed(ctx, tx, a.KindID)
		if err != nil {
			return nil, err
		}
		if !attached {
			continue
		}
		var other bool
		if err := tx.QueryRow(ctx, otherThereSQL, a.KindID, a.Definition.Table.SQL()).Scan(&other); err != nil {
			return nil, fmt.Errorf("read the attached table: %w", err)
		}
		a.Renamed = n.changes(a.Definition.Table, other)
		lack, err := findLacking(ctx, tx, n.table, n.all(a.changes()))
		for _, l := range lack {
			a.Grants = append(a.Grants, l.finding())
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// tableDrift returns the differences between a definition and its table.
func tableDrift(ctx context.Context, tx pgx.Tx, kindID int32) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT d FROM dbcontroller.table_drift($1) AS d ORDER BY d`, kindID)
	if err != nil {
		return nil, fmt.Errorf("compare the definition with its table: %w", err)
	}
	drift, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("compare the definition with its table: %w", err)
	}
	return drift, nil
}

const (
	otherThereSQL = `SELECT pg_catalog.to_regclass($2) IS NOT NULL AND pg_catalog.to_regclass($2) <> dbcontroller.attached_relation($1)`

	checksumSQL = `SELECT checksum FROM dbcontroller.attachment WHERE kind_id = $1 AND ready`

	triggersSQL = `
SELECT n.nspname::text, c.relname::text, g.tgname::text, g.tgenabled::text, pn.nspname || '.' || p.proname, p.prosrc, p.prosecdef, COALESCE(p.proconfig, '{}')
FROM pg_catalog.pg_trigger g JOIN pg_catalog.pg_proc p ON p.oid = g.tgfoid JOIN pg_catalog.pg_namespace pn ON pn.oid = p.pronamespace
JOIN pg_catalog.pg_class c ON c.oid = g.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE g.tgrelid = ANY ($1::text[]::pg_catalog.regclass[]) AND NOT g.tgisinternal AND g.tgname = ANY ($2)`
)

// driftOf returns the differences between an attachment with this definition and the triggers of the table;
// none when there are none.
func driftOf(ctx context.Context, tx pgx.Tx, kindID int32, d *schema.Definition) (drift []string, err error) {
	rows, err := tx.Query(ctx, checksumSQL, kindID)
	if err != nil {
		return nil, fmt.Errorf("read the attachment: %w", err)
	}
	sums, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the attachment: %w", err)
	}
	if !slices.Contains(sums, d.Checksum()) {
		drift = append(drift, "the table is not attached with this definition")
	}
	triggers := make([]string, len(events))
	for i, event := range events {
		triggers[i] = triggerName(event)
	}
	n, attached, err := followed(ctx, tx, kindID)
	if err != nil {
		return nil, err
	}
	if !attached {
		n.table = d.Table
	}
	tables, err := tablesOf(ctx, tx, n.table)
	if err != nil {
		return nil, err
	}
	quoted := make([]string, len(tables))
	for i, t := range tables {
		quoted[i] = t.SQL()
	}
	if rows, err = tx.Query(ctx, triggersSQL, quoted, triggers); err != nil {
		return nil, fmt.Errorf("read the triggers of %s: %w", d.Table, err)
	}
	type found struct {
		Table                           schema.TableName
		Name, Enabled, Function, Source string
		Definer                         bool
		Settings                        []string
	}
	there, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f found, err error) {
		err = row.Scan(&f.Table.Schema, &f.Table.Name, &f.Name, &f.Enabled, &f.Function, &f.Source, &f.Definer,
			&f.Settings)
		return f, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the triggers of %s: %w", d.Table, err)
	}
	if len(tables) == 0 { // it has gone: its triggers are missing
		tables = []schema.TableName{n.table}
	}
	for _, table := range tables {
		for _, t := range triggersOf(kindID, d) {
			if !slices.Contains(t.tables(tables), table) {
				continue
			}
			name := triggerName(t.event)
			i := slices.IndexFunc(there, func(f found) bool { return f.Name == name && f.Table == table })
			if table != n.table {
				name += " of the partition " + table.String()
			}
			switch {
			case i < 0:
				drift = append(drift, "the trigger "+name+" is missing")
			case there[i].Enabled != "O" && there[i].Enabled != "A":
				drift = append(drift, "the trigger "+name+" is disabled")
			case there[i].Function != functionName(kindID, t.event):
				drift = append(drift, "the trigger "+name+" calls "+there[i].Function)
			case there[i].Source != t.source(d.Checksum()):
				drift = append(drift, "the function of the trigger "+name+" is not that of the definition")
			case !there[i].Definer || !slices.Equal(there[i].Settings, t.settings()):
				drift = append(drift, "the function of the trigger "+name+" has other settings")
			}
		}
	}
	return drift, nil
}

// DetachSQL returns the statements that remove the triggers and functions of tables, and the way by which
// statements ask for rights, for psql: of a copy of the database, which no process works on. They may be
// repeated, and work without the tables.
func DetachSQL(all []*Attached) []string {
	out := []string{"BEGIN", "SET LOCAL lock_timeout = '5s'"}
	for _, a := range all {
		for _, event := range events {
			out = append(out, dropFunction(a.KindID, event))
		}
		out = append(out, dropView(a.KindID)...)
	}
	return append(out, "DROP SERVER IF EXISTS "+loopbackServer+" CASCADE", "COMMIT")
}

// dropFunction drops a function with its triggers, also on a table that was renamed, and on a partition that
// was detached.
func dropFunction(kindID int32, event string) string {
	return "DROP FUNCTION IF EXISTS " + functionName(kindID, event) + "() CASCADE"
}

// dropView drops the view and the function by which a table is read.
func dropView(kindID int32) []string {
	return []string{"DROP VIEW IF EXISTS " + schema.TableView(kindID).SQL(), "DROP FUNCTION IF EXISTS " +
		rowFunction(kindID)}
}

const detachedSQL = `UPDATE dbcontroller.attachment SET ready = false WHERE kind_id = $1`

// Detach removes the triggers and functions of a table, and its notes, in one transaction, under short locks
// like Apply. It may be repeated, and works without the table. The controller then returns the rights of the
// rows; rows to which others refer stay unprotected.
func Detach(ctx context.Context, conn *pgx.Conn, a *Attached, told func(error)) error {
	return patiently(ctx, conn, told, func(tx pgx.Tx) error {
		n, attached, err := followed(ctx, tx, a.KindID)
		if err != nil {
			return err
		}
		var drops []string
		for _, event := range events {
			drops = append(drops, dropFunction(a.KindID, event))
		}
		for _, sql := range append(drops, dropView(a.KindID)...) {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return lockOf(a.Definition.Table.String(), err)
			}
		}
		if attached {
			if err := revoke(ctx, tx, n.table); err != nil {
				return err
			}
		}
		for _, notes := range []string{"dbcontroller.deleted_row", "dbcontroller.lacking"} {
			if _, err := tx.Exec(ctx, "DELETE FROM "+notes+" WHERE kind_id = $1", a.KindID); err != nil {
				return lockOf(notes, err)
			}
		}
		if _, err := tx.Exec(ctx, lookAll(&a.Definition, " SELECT ")); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, detachedSQL, a.KindID)
		return lockOf(attachments, err)
	})
}
