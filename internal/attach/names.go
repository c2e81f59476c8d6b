package attach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/schema"
)

// names are the present names of a table and of its columns. The names of an attached table are followed when
// they change.
type names struct {
	table    schema.TableName
	columns  map[string]string // by the declared name; a column that is missing has that name
	replaced []string          // columns whose declared name another column has than the attached one
	// the columns of the view of the table by their declared names; none when no table is attached
	view []string
}

func (n names) column(declared string) string {
	if present, ok := n.columns[declared]; ok {
		return present
	}
	return declared
}

func (n names) all(declared []string) []string {
	out := make([]string, len(declared))
	for i, c := range declared {
		out[i] = n.column(c)
	}
	return out
}

// selected returns the query for the rows t of the table, whose columns have the declared names.
func (n names) selected(declared []string) string {
	columns := make([]string, len(declared))
	for i, c := range declared {
		columns[i] = fmt.Sprintf("t.%s AS %s", schema.QuoteIdentifier(n.column(c)), schema.QuoteIdentifier(c))
	}
	return fmt.Sprintf("SELECT %s FROM %s AS t", strings.Join(columns, ", "), n.table.SQL())
}

const (
	relationSQL = `
SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = dbcontroller.attached_relation($1)`

	columnsSQL = `
SELECT c.declared, c.present, c.declared <> c.present AND EXISTS (
    SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = dbcontroller.attached_relation($1) AND a.attname = c.declared AND NOT a.attisdropped)
FROM dbcontroller.attached_columns($1) AS c`

	attachedKindSQL = `
SELECT a.kind_id, a.definition FROM dbcontroller.attachment a JOIN dbcontroller.kind k ON k.id = a.kind_id WHERE k.service = $1 AND k.kind = $2 AND a.ready`
)

// followed returns the present names of the attached table of a kind; false: there is none.
func followed(ctx context.Context, tx pgx.Tx, kindID int32) (n names, attached bool, err error) {
	n.columns = map[string]string{}
	switch err := tx.QueryRow(ctx, relationSQL, kindID).Scan(&n.table.Schema, &n.table.Name); {
	case errors.Is(err, pgx.ErrNoRows):
		return n, false, nil
	case err != nil:
		return n, false, fmt.Errorf("read the attached table: %w", err)
	}
	rows, err := tx.Query(ctx, columnsSQL, kindID)
	if err != nil {
		return n, false, fmt.Errorf("read the columns of the attached table: %w", err)
	}
	var declared, present string
	var replaced bool
	_, err = pgx.ForEachRow(rows, []any{&declared, &present, &replaced}, func() error {
		if n.columns[declared] = present; replaced {
			n.replaced = append(n.replaced, declared)
		}
		n.view = append(n.view, declared)
		return nil
	})
	if err != nil {
		return n, false, fmt.Errorf("read the columns of the attached table: %w", err)
	}
	return n, true, nil
}

// namesOf returns the present names of the table of a kind. It takes the table, or column, with the declared
// name; if there is none, the attached one, which has another name now.
func namesOf(ctx context.Context, tx pgx.Tx, db *catalogue.Database, kind schema.KindID,
	declared schema.TableName,
) (names, error) {
	none := names{table: declared}
	var kindID int32
	var was schema.Definition
	switch err := tx.QueryRow(ctx, attachedKindSQL, kind.Service, kind.Kind).Scan(&kindID, &was); {
	case errors.Is(err, pgx.ErrNoRows):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("read the attachment of %s: %w", kind, err)
	}
	n, attached, err := followed(ctx, tx, kindID)
	switch {
	case err != nil:
		return none, err
	case n.table != declared && was.Table != declared: // another declaration, and not another name of the table
		return none, nil
	case !attached, db.Table(n.table) == nil, n.table != declared && db.Table(declared) != nil:
		return none, nil
	}
	for name := range n.columns {
		if db.Table(n.table).Column(name) != nil {
			delete(n.columns, name)
		}
	}
	return n, nil
}

// surplus reports whether the view has columns that nothing needs any more, and that cannot be dropped
// because of it.
func (p *Plan) surplus() bool {
	needed := append(p.Definition.Columns(), p.former...)
	return slices.ContainsFunc(p.names.view, func(c string) bool { return !slices.Contains(needed, c) })
}

const swappedSQL = `SELECT COALESCE(dbcontroller.attached_relation($1) <> pg_catalog.to_regclass($2), false)`

// swapped reports whether a kind is attached to another table than this one.
func swapped(ctx context.Context, tx pgx.Tx, kindID int32, table schema.TableName) (swap bool, err error) {
	if err := tx.QueryRow(ctx, swappedSQL, kindID, table.SQL()).Scan(&swap); err != nil {
		return false, fmt.Errorf("read the attached table: %w", err)
	}
	return swap, nil
}

// renamed returns the table of a kind under the names of its declaration; nil when it does not exist.
func (n names) renamed(db *catalogue.Database, k *schema.Kind) *catalogue.Table {
	table := db.Table(n.table)
	if table == nil {
		return nil
	}
	of := map[string]string{}
	for _, c := range declaredColumns(k) {
		if present := n.column(c); present != c {
			of[present] = c
		}
	}
	return table.Renamed(k.Table, of)
}

// declaredColumns returns the columns that a kind names.
func declaredColumns(k *schema.Kind) []string {
	columns := append(slices.Clone(k.Key), k.Gone)
	for i := range k.References {
		r := &k.References[i]
		columns = append(append(columns, r.Columns...), r.Region.Column, r.When.Column)
	}
	return columns
}

// changes says which names have changed, and are free. other: another table has the declared one.
func (n names) changes(declared schema.TableName, other bool) (out []string) {
	const next = "the triggers follow it; declare that name in the next version"
	if n.table != declared && !other {
		out = append(out, fmt.Sprintf("the table %s is called %s now: %s", declared, n.table, next))
	}
	for _, column := range n.view {
		if present := n.column(column); present != column && !slices.Contains(n.replaced, column) {
			out = append(out, fmt.Sprintf("the column %s is called %s now: %s", column, present, next))
		}
	}
	slices.Sort(out)
	return out
}

func rowFunction(kindID int32) string { return fmt.Sprintf("dbcontroller.attached_%d_row", kindID) }

// viewStatements make the view through which the controller reads and changes the rows of a table, and the
// function through which triggers read one row. PostgreSQL follows the names of the table and of its columns
// in both, until one of the columns is dropped with CASCADE. The view has no rights of its own. Rows that are
// deleted by a column are in neither; the second argument of the function asks for them too.
func (p *Plan) viewStatements() []string {
	view, columns := schema.TableView(p.kindID).SQL(), p.Definition.Columns()
	for _, former := range p.former {
		if !slices.Contains(columns, former) {
			columns = append(columns, former)
		}
	}
	types := p.Definition.Types()
	var fields, results []string
	for _, c := range p.Definition.Columns() {
		t, ok := types[c]
		if !ok { // of a region, or of a condition: their texts are compared
			t = "text"
		}
		t = schema.CastType(t)
		fields = append(fields, fmt.Sprintf("($1).%s::%s", schema.QuoteIdentifier(p.names.column(c)), t))
		results = append(results, schema.QuoteIdentifier(c)+" "+t)
	}
	// The arguments have names, because pg_dump writes the body with them.
	there, all, of := "", "", "dbcontroller_row "+p.names.table.SQL()
	if gone := p.Definition.Gone; gone != nil {
		is := map[bool]string{true: " IS NOT TRUE", false: " IS NULL"}[gone.Type == schema.GoneFlag]
		column := schema.QuoteIdentifier(p.names.column(gone.Name)) + is
		there, all, of = " WHERE t."+column, " WHERE $2 OR ($1)."+column, of+", dbcontroller_any boolean"
	}
	var defaults []string
	for _, column := range slices.Sorted(maps.Keys(p.defaults)) {
		defaults = append(defaults, fmt.Sprintf("ALTER VIEW %s ALTER COLUMN %s SET DEFAULT %s", view,
			schema.QuoteIdentifier(column), p.defaults[column]))
	}
	if len(p.readers) > 0 {
		defaults = append(defaults, "GRANT SELECT, UPDATE, DELETE ON "+view+" TO "+strings.Join(p.readers, ", "))
	}
	return append([]string{
		"DROP VIEW IF EXISTS " + view,
		fmt.Sprintf("CREATE VIEW %s WITH (security_invoker = true) AS %s%s", view, p.names.selected(columns), there),
		"DROP FUNCTION IF EXISTS " + rowFunction(p.kindID),
		fmt.Sprintf(
			"CREATE FUNCTION %s(%s) RETURNS TABLE (%s) LANGUAGE sql STABLE ROWS 1 BEGIN ATOMIC SELECT %s%s; END",
			rowFunction(p.kindID), of, strings.Join(results, ", "), strings.Join(fields, ", "), all),
		"REVOKE ALL ON FUNCTION " + rowFunction(p.kindID) + " FROM PUBLIC",
	}, defaults...)
}

// The roles that read the attachments, and the one as which rows are changed.
const readersSQL = `
SELECT DISTINCT pg_catalog.quote_ident(r.rolname) FROM (
    SELECT a.grantee AS id FROM pg_catalog.pg_class c CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) AS a WHERE c.oid = pg_catalog.to_regclass('dbcontroller.attachment') AND a.privilege_type = 'SELECT'
    UNION ALL SELECT p.proowner FROM pg_catalog.pg_proc p WHERE p.oid = pg_catalog.to_regproc('dbcontroller.change_rows')
) AS x JOIN pg_catalog.pg_roles r ON r.oid = x.id ORDER BY 1`

// readers returns the roles that read and change rows by the view of a table.
func readers(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, readersSQL)
	if err != nil {
		return nil, fmt.Errorf("read who reads attached tables: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// noDefaults finds columns that UNSET cannot set to their default.
func noDefaults(d *schema.Definition, table *catalogue.Table, defaults map[string]string) (out []Finding) {
	for _, r := range d.References {
		for _, column := range r.UnsetColumns() {
			if _, ok := defaults[column]; r.ToDefault && !ok && table.Column(column).NotNull {
				out = append(out,
					Finding{
						Text:    column + ": UNSET sets it to its DEFAULT, and it is NOT NULL and has none",
						Refuses: true,
					})
			}
		}
	}
	return out
}

// defaultsOf returns the defaults of the columns that UNSET sets to them: an UPDATE of the view takes the
// defaults of the view.
func defaultsOf(ctx context.Context, tx pgx.Tx, d *schema.Definition, n names) (map[string]string, error) {
	defaults := map[string]string{}
	for _, r := range d.References {
		for _, column := range r.UnsetColumns() {
			var text *string
			if !r.ToDefault {
				continue
			}
			if err := tx.QueryRow(ctx, `SELECT dbcontroller.default_of($1::text::regclass, $2)`, n.table.SQL(),
				n.column(column)).Scan(&text); err != nil {
				return nil, fmt.Errorf("read the default of %s: %w", column, err)
			}
			if text != nil {
				defaults[column] = *text
			}
		}
	}
	return defaults, nil
}

// goneBefore returns the number of resources whose rows were deleted by a column before it was declared: with
// the declaration their deletion is carried out.
func (p *Plan) goneBefore(ctx context.Context, tx pgx.Tx) (n int64, err error) {
	gone := p.Definition.Gone
	if gone == nil {
		return 0, nil
	}
	is := map[bool]string{true: " IS TRUE", false: " IS NOT NULL"}[gone.Type == schema.GoneFlag]
	sql := fmt.Sprintf(`
SELECT count(*) FROM dbcontroller.attachment a JOIN dbcontroller.shadow s ON s.kind_id = a.kind_id AND NOT s.hidden
WHERE a.kind_id = $1 AND a.ready AND a.definition #>> '{gone,name}' IS DISTINCT FROM $2 AND s.name IN (SELECT %s FROM (%s WHERE t.%s%s) AS r)`,
		unshielded(rowName(&p.Definition)), p.names.selected(p.Definition.Columns()),
		schema.QuoteIdentifier(p.names.column(gone.Name)), is)
	if err := tx.QueryRow(ctx, sql, p.kindID, gone.Name).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the deleted rows of %s: %w", p.Table, err)
	}
	return n, nil
}

const formerColumnsSQL = `
SELECT DISTINCT c FROM dbcontroller.attachment a CROSS JOIN LATERAL (
    SELECT jsonb_array_elements(a.former) AS r UNION ALL SELECT jsonb_array_elements(COALESCE(a.definition -> 'references', '[]'))
) AS f CROSS JOIN LATERAL jsonb_array_elements_text(f.r -> 'columns' || CASE WHEN f.r ? 'region' THEN jsonb_build_array(f.r -> 'region') ELSE '[]' END
    || CASE WHEN f.r ? 'when' THEN jsonb_build_array(f.r #> '{when,column}') ELSE '[]' END) AS c
WHERE a.kind_id = $1 AND a.ready ORDER BY c`

// formerColumns returns the columns of former references that the table has: rows count under them until each
// value has its new right.
func formerColumns(ctx context.Context, tx pgx.Tx, kindID int32, n names, table *catalogue.Table) ([]string, error) {
	rows, err := tx.Query(ctx, formerColumnsSQL, kindID)
	if err != nil {
		return nil, fmt.Errorf("read the former references: %w", err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the former references: %w", err)
	}
	return slices.DeleteFunc(columns, func(c string) bool {
		return slices.Contains(n.replaced, c) || table.Column(c) == nil && !slices.Contains(n.view, c)
	}), nil
}
