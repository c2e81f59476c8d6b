package compare

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

const (
	// The functions are compared with the functions that attach created; an attachment of an older release has no list of them.
	driftSQL = `
WITH made AS (
    SELECT f.key AS trigger, f.value AS source FROM dbcontroller.attachment a, jsonb_each_text(a.functions) AS f WHERE a.kind_id = $1
), there AS (
    SELECT g.tgname::text AS trigger, g.tgenabled, CASE WHEN p.prosecdef AND 'search_path=pg_catalog, pg_temp' = ANY (p.proconfig) THEN md5(p.prosrc) ELSE '' END AS source
    FROM pg_catalog.pg_trigger g JOIN pg_catalog.pg_proc p ON p.oid = g.tgfoid
    WHERE g.tgrelid = to_regclass($2) AND NOT g.tgisinternal
)
SELECT CASE WHEN there.trigger IS NULL THEN 'the trigger ' || trigger || ' is missing'
    WHEN tgenabled NOT IN ('O', 'A') THEN 'the trigger ' || trigger || ' is disabled'
    ELSE 'the function of the trigger ' || trigger || ' was changed' END
FROM made LEFT JOIN there USING (trigger)
WHERE there.trigger IS NULL OR tgenabled NOT IN ('O', 'A') OR there.source <> made.source
UNION ALL
SELECT d FROM dbcontroller.table_drift($1) AS d
ORDER BY 1`

	// A row with a note is read again anyway; one whose target does not exist keeps its note.
	notedRowsSQL = `
SELECT name FROM dbcontroller.captured WHERE kind_id = $1 AND (name = ANY ($2) OR name IS NULL)
UNION
SELECT n.name FROM dbcontroller.captured_batch b CROSS JOIN LATERAL (SELECT unnest($2::text[] COLLATE "C") INTERSECT SELECT unnest(b.names)) AS n (name) WHERE b.kind_id = $1`

	knownPageSQL = `SELECT name FROM dbcontroller.shadow WHERE kind_id = $1 AND name > $2 AND NOT hidden ORDER BY name LIMIT $3`

	readAgainSQL = `INSERT INTO dbcontroller.captured (kind_id, name) SELECT $1, n FROM unnest($2::text[]) AS n`
)

var knownRowsSQL = db.Codes(`
SELECT s.name, r.body, s.state = {active} FROM dbcontroller.shadow s JOIN dbcontroller.resource r USING (id) WHERE s.kind_id = $1 AND s.name = ANY ($2)`)

// tables compares attached tables with the stored resources, and finds the changes that no trigger saw.
func (v *comparing) tables(ctx context.Context) error {
	if err := v.store.rows.Load(ctx); err != nil {
		return err
	}
	tables := v.store.rows.Tables()
	for _, id := range slices.Sorted(maps.Keys(tables)) {
		t := tables[id]
		kind := v.declared(t)
		if kind == nil || !t.Complete { // it waits for attach, or for its first reading
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
		if err := v.table(ctx, t, kind); err != nil {
			return err
		}
	}
	return nil
}

// values finds the values of a strict reference without a right that nobody asks for: of rows that no trigger saw. Each is looked at twice. With Repair they
// are asked for.
func (v *comparing) values(ctx context.Context, r rows.Reference) error {
	return v.store.rows.WalkValues(ctx, r, func(page []rows.Value) error {
		v.Out.Bodies += int64(len(page))
		unknown, err := v.store.rights.Unknown(ctx, r, page)
		if err == nil && len(unknown) > 0 {
			if err = v.Wait(ctx); err == nil {
				unknown, err = v.store.rights.Unknown(ctx, r, unknown)
			}
		}
		if err != nil {
			return err
		}
		if v.How.Repair {
			if err := v.store.rights.Lack(ctx, r, unknown); err != nil {
				return err
			}
		}
		for _, u := range unknown {
			d := Difference{
				Kind: RowMissed, Holder: v.store.FullName(r.Table.Definition.Collection), Target: u.Target.FullName, Path: r.Path(), Behaviour: r.Strict().Behaviour, Repaired: v.How.Repair,
			}
			if err := v.Found(d); err != nil {
				return err
			}
		}
		return v.How.Progress(ctx, v.Out)
	})
}

// declared returns the kind whose table is attached as the version declares it; nil when none is.
func (v *comparing) declared(t *rows.Table) *schema.KindModel {
	current, err := v.store.Current()
	if err != nil {
		return nil
	}
	return t.Declared(current.Model)
}

func (v *comparing) drift(ctx context.Context, t *rows.Table) error {
	found, err := v.store.Pool.Query(ctx, driftSQL, t.KindID, t.Definition.Table.SQL())
	if err != nil {
		return fmt.Errorf("read triggers of %s: %w", t.Definition.Table, err)
	}
	drifts, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read triggers of %s: %w", t.Definition.Table, err)
	}
	for _, drift := range drifts {
		table := v.store.FullName(t.Definition.Collection)
		if err := v.Found(Difference{Kind: TriggerDrift, Holder: table, Target: table, Path: drift}); err != nil {
			return err
		}
	}
	return nil
}

// table compares all rows of a table, and then all resources of its kind. An audit compares a part of the rows, and the next one goes
// on from there.
func (v *comparing) table(ctx context.Context, t *rows.Table, kind *schema.KindModel) error {
	if len(t.Definition.References) == len(t.References()) { // nothing is stored of its rows
		return v.resourcesOf(ctx, t, kind)
	}
	after, read := v.store.tableFrom(t, v.How.Bodies > 0), 0
	for {
		page, err := t.Page(ctx, v.store.Pool, after, Page)
		if err != nil {
			return err
		}
		names := make([]string, 0, len(page))
		for _, r := range page {
			if name, err := t.Definition.RowName(r.Key); err == nil {
				names = append(names, name)
			}
			after = r.Key
		}
		if err := v.rowsOf(ctx, t, kind, names); err != nil {
			return err
		}
		if read += len(page); len(page) < Page {
			after = nil
		}
		v.store.compared.Store(t.KindID, after)
		if after == nil {
			return v.resourcesOf(ctx, t, kind)
		}
		if v.How.Bodies > 0 && read >= v.How.Bodies {
			return nil
		}
	}
}

// tableFrom returns the key after which an audit goes on.
func (s *Comparer) tableFrom(t *rows.Table, audit bool) []string {
	if after, ok := s.compared.Load(t.KindID); ok && audit {
		return after.([]string)
	}
	return nil
}

// resourcesOf finds the resources of a kind without a row.
func (v *comparing) resourcesOf(ctx context.Context, t *rows.Table, kind *schema.KindModel) error {
	for after := ""; ; {
		found, err := v.store.Pool.Query(ctx, knownPageSQL, t.KindID, after, Page)
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
		there, err := t.Existing(ctx, v.store.Pool, names)
		if err != nil {
			return err
		}
		gone := slices.DeleteFunc(names, func(name string) bool { return slices.Contains(there, name) })
		if err := v.rowsOf(ctx, t, kind, gone); err != nil {
			return err
		}
	}
}

// rowsOf compares some rows, twice when something differs. With Repair they are read again.
func (v *comparing) rowsOf(ctx context.Context, t *rows.Table, kind *schema.KindModel, names []string) error {
	v.Out.Bodies += int64(len(names))
	differ, err := v.missed(ctx, t, kind, names)
	if err == nil && len(differ) > 0 {
		if err = v.Wait(ctx); err == nil {
			differ, err = v.missed(ctx, t, kind, slices.Sorted(maps.Keys(differ)))
		}
	}
	if err != nil {
		return err
	}
	again := slices.Sorted(maps.Keys(differ))
	if v.How.Repair && len(again) > 0 {
		if err := v.store.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, readAgainSQL, t.KindID, again)
			return err
		}); err != nil {
			return fmt.Errorf("let rows of %s be read again: %w", t.Definition.Table, err)
		}
	}
	for _, name := range again {
		d := differ[name]
		d.Repaired = v.How.Repair
		if err := v.Found(d); err != nil {
			return err
		}
	}
	return v.How.Progress(ctx, v.Out)
}

// knownRow is the stored resource of a row.
type knownRow struct {
	body   map[string]any
	active bool
}

// missed returns the rows that are not stored as they are, without those that wait to be read. The resources are read first, then
// the rows, then the notes: a change in between has a note.
func (v *comparing) missed(ctx context.Context, t *rows.Table, kind *schema.KindModel, names []string) (map[string]Difference, error) {
	stored, err := v.known(ctx, t, names)
	if err != nil {
		return nil, err
	}
	present, err := t.Read(ctx, v.store.Pool, names)
	if err != nil {
		return nil, err
	}
	out := map[string]Difference{}
	for _, name := range names {
		if why, kind := v.rowDiffers(t, kind, stored[name], present[name]); why != "" {
			self := v.store.FullName(name)
			out[name] = Difference{Kind: kind, Holder: self, Target: self, Path: why}
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, v.leaveNoted(ctx, t, out)
}

func (v *comparing) known(ctx context.Context, t *rows.Table, names []string) (map[string]knownRow, error) {
	found, err := v.store.Pool.Query(ctx, knownRowsSQL, t.KindID, names)
	if err != nil {
		return nil, fmt.Errorf("read resources of %s: %w", t.Definition.Table, err)
	}
	stored := map[string]knownRow{}
	var name string
	var raw []byte
	var active bool
	_, err = pgx.ForEachRow(found, []any{&name, &raw, &active}, func() error {
		k := knownRow{active: active}
		err := postgres.DecodeJSON(raw, &k.body)
		stored[name] = k
		return err
	})
	return stored, err
}

// rowDiffers compares one row; values is nil when it does not exist.
func (v *comparing) rowDiffers(t *rows.Table, kind *schema.KindModel, stored knownRow, values []*string) (why string, of DifferenceKind) {
	if values == nil {
		if stored.active {
			return "the row is gone", RowMissed
		}
		return "", ""
	}
	body, unnamed := t.Body(v.store.Self, kind, values)
	switch {
	case len(unnamed) > 0:
		return strings.Join(slices.Sorted(maps.Keys(unnamed)), ", "), RowMissed // unless it has a note, as a row that is read has
	case stored.body != nil && !stored.active: // it is being deleted, and its references are dropped
		return "", ""
	case !maps.Equal(body, stored.body):
		return strings.Join(slices.Sorted(differentFields(body, stored.body)), ", "), RowMissed
	}
	return "", ""
}

func differentFields(a, b map[string]any) func(func(string) bool) {
	return func(yield func(string) bool) {
		for path := range a {
			if a[path] != b[path] && !yield(path) {
				return
			}
		}
		for path := range b {
			if _, ok := a[path]; !ok && !yield(path) {
				return
			}
		}
	}
}

func (v *comparing) leaveNoted(ctx context.Context, t *rows.Table, differ map[string]Difference) error {
	found, err := v.store.Pool.Query(ctx, notedRowsSQL, t.KindID, slices.Sorted(maps.Keys(differ)))
	if err != nil {
		return fmt.Errorf("read captured rows: %w", err)
	}
	noted, err := pgx.CollectRows(found, pgx.RowTo[*string])
	for _, name := range noted {
		if name == nil { // after TRUNCATE all of them are read again
			clear(differ)
			break
		}
		delete(differ, *name)
	}
	return err
}
