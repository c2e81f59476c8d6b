package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

const (
	// The functions are compared with the functions that attach created; an attachment of an older release
	// has no list of them.
	driftSQL = `
WITH made AS (
    SELECT f.key AS trigger, f.value AS source FROM dbcontroller.attachment a, jsonb_each_text(a.functions) AS f WHERE a.kind_id = $1
), there AS (
    SELECT g.tgname::text AS trigger, g.tgenabled, CASE WHEN p.prosecdef AND 'search_path=pg_catalog, pg_temp' = ANY (p.proconfig) THEN md5(p.prosrc) ELSE '' END AS source
    FROM pg_catalog.pg_trigger g JOIN pg_catalog.pg_proc p ON p.oid = g.tgfoid
    WHERE g.tgrelid = dbcontroller.attached_relation($1) AND NOT g.tgisinternal
)
SELECT CASE WHEN there.trigger IS NULL THEN 'the trigger ' || trigger || ' is missing'
    WHEN tgenabled NOT IN ('O', 'A') THEN 'the trigger ' || trigger || ' is disabled'
    ELSE 'the function of the trigger ' || trigger || ' was changed' END
FROM made LEFT JOIN there USING (trigger)
WHERE there.trigger IS NULL OR tgenabled NOT IN ('O', 'A') OR there.source <> made.source
UNION ALL
SELECT d FROM dbcontroller.table_drift($1) AS d
ORDER BY 1`

	// A deletion with a note is carried out anyway.
	notedRowsSQL = `SELECT name FROM dbcontroller.deleted_row WHERE kind_id = $1 AND (name = ANY ($2) OR name IS NULL)`

	knownPageSQL = `SELECT name FROM dbcontroller.shadow WHERE kind_id = $1 AND name > $2 AND NOT hidden ORDER BY name LIMIT $3`

	lookAtRowsSQL = `INSERT INTO dbcontroller.deleted_row (kind_id, name) SELECT $1, n FROM unnest($2::text[]) AS n`
)

var activeRowsSQL = db.Codes(
	`SELECT s.name FROM dbcontroller.shadow s WHERE s.kind_id = $1 AND s.name = ANY ($2) AND s.state = {active}`)

// tables compares attached tables with the stored resources, and finds the changes that no trigger saw.
func (v *verifying) tables(ctx context.Context) error {
	if err := v.store.rows.Load(ctx); err != nil {
		return err
	}
	tables := v.store.rows.Tables()
	for _, id := range slices.Sorted(maps.Keys(tables)) {
		t := tables[id]
		kind := v.declared(t)
		if kind == nil || !t.Walked { // it waits for attach, or for its first walk
			continue
		}
		if err := v.drift(ctx, t); err != nil {
			return err
		}
		for _, r := range t.References() {
			if err := v.values(ctx, r); err != nil {
				return err
			}
		}
		if err := v.resourcesOf(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// values finds the values of a reference that have no right and are not noted as lacking: of rows that no
// trigger saw. Each is looked at twice. With Repair they are noted, so that their right is asked for.
func (v *verifying) values(ctx context.Context, r rows.Reference) error {
	return v.store.rows.WalkValues(ctx, r, func(page []rows.Value) error {
		v.out.Bodies += int64(len(page))
		unknown, err := v.store.rights.Unknown(ctx, r, page)
		if err == nil && len(unknown) > 0 {
			if err = v.wait(ctx); err == nil {
				unknown, err = v.store.rights.Unknown(ctx, r, unknown)
			}
		}
		if err != nil {
			return err
		}
		if v.how.Repair {
			if err := v.store.rights.Lack(ctx, r, unknown); err != nil {
				return err
			}
		}
		for _, u := range unknown {
			d := Difference{
				Kind: RowMissed, Holder: v.store.FullName(r.Table.Definition.Collection), Target: u.Target.FullName,
				Path: r.Path(), Behaviour: r.Declared().Behaviour, Repaired: v.how.Repair,
			}
			if err := v.found(d); err != nil {
				return err
			}
		}
		return v.how.Progress(ctx, v.out)
	})
}

// declared returns the kind whose table is attached as the version declares it; nil when none is.
func (v *verifying) declared(t *rows.Table) *schema.KindModel {
	current, err := v.store.Current()
	if err != nil {
		return nil
	}
	return t.Declared(current.Model)
}

func (v *verifying) drift(ctx context.Context, t *rows.Table) error {
	found, err := v.store.Pool.Query(ctx, driftSQL, t.KindID)
	if err != nil {
		return fmt.Errorf("read triggers of %s: %w", t.Definition.Table, err)
	}
	drifts, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read triggers of %s: %w", t.Definition.Table, err)
	}
	for _, drift := range drifts {
		table := v.store.FullName(t.Definition.Collection)
		if err := v.found(Difference{Kind: TriggerDrift, Holder: table, Target: table, Path: drift}); err != nil {
			return err
		}
	}
	return nil
}

// resourcesOf finds the resources of a kind without a row, whose deletion no trigger saw. With Repair it is
// carried out.
func (v *verifying) resourcesOf(ctx context.Context, t *rows.Table) error {
	for after := ""; ; {
		found, err := v.store.Pool.Query(ctx, knownPageSQL, t.KindID, after, pageRows)
		if err != nil {
			return fmt.Errorf("read resources of %s: %w", t.Definition.Table, err)
		}
		names, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("read resources of %s: %w", t.Definition.Table, err)
		}
		if len(names) == 0 {
			return nil
		}
		after = names[len(names)-1]
		v.out.Bodies += int64(len(names))
		gone, err := v.rowless(ctx, t, names)
		if err == nil && len(gone) > 0 { // each is looked at twice
			if err = v.wait(ctx); err == nil {
				gone, err = v.rowless(ctx, t, gone)
			}
		}
		if err == nil && v.how.Repair && len(gone) > 0 {
			_, err = v.store.Pool.Exec(ctx, lookAtRowsSQL, t.KindID, gone)
		}
		if err != nil {
			return err
		}
		for _, name := range gone {
			self := v.store.FullName(name)
			if err := v.found(Difference{
				Kind: RowMissed, Holder: self, Target: self, Path: "the row is gone",
				Repaired: v.how.Repair,
			}); err != nil {
				return err
			}
		}
		if err := v.how.Progress(ctx, v.out); err != nil {
			return err
		}
	}
}

// rowless returns the names of active resources without a row and without a note. The resources are read
// first, then the rows, then the notes: a deletion in between has a note.
func (v *verifying) rowless(ctx context.Context, t *rows.Table, names []string) ([]string, error) {
	found, err := v.store.Pool.Query(ctx, activeRowsSQL, t.KindID, names)
	if err != nil {
		return nil, fmt.Errorf("read resources of %s: %w", t.Definition.Table, err)
	}
	active, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read resources of %s: %w", t.Definition.Table, err)
	}
	there, err := t.Existing(ctx, v.store.Pool, active)
	if err != nil {
		return nil, err
	}
	gone := slices.DeleteFunc(active, func(name string) bool { return slices.Contains(there, name) })
	if len(gone) == 0 {
		return nil, nil
	}
	if found, err = v.store.Pool.Query(ctx, notedRowsSQL, t.KindID, gone); err != nil {
		return nil, fmt.Errorf("read deleted rows: %w", err)
	}
	noted, err := pgx.CollectRows(found, pgx.RowTo[*string])
	for _, name := range noted {
		if name == nil { // after TRUNCATE each row is looked at
			return nil, err
		}
		gone = slices.DeleteFunc(gone, func(n string) bool { return n == *name })
	}
	return gone, err
}
