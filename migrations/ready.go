package migrations

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrNotReady is the error of a database that answers, and lacks a migration or a right. Its text has the
// remedy, and no host names.
var ErrNotReady = errors.New("the database is not ready")

// Querier is a pool, or a connection.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Role is the part of a serving process that a user of the database has the rights for.
type Role string

// The roles: of the calls, and of the process's own work.
const (
	API        Role = "api"
	Controller Role = "controller"
)

// Ready fails unless the database has every migration of the set, and its user has the rights of the roles;
// without any, of all. It changes nothing.
func Ready(ctx context.Context, q Querier, set Set, of ...Role) error {
	if err := hasNewest(ctx, q, set); err != nil {
		return err
	}
	if err := compatible(ctx, q, set); err != nil {
		return err
	}
	rights, beside, err := servingRights(set, of)
	if err != nil {
		return err
	}
	var relations, columns, privileges []string
	for _, r := range rights {
		relations, columns, privileges = append(relations, r.relation), append(columns, r.column),
			append(privileges, r.privilege)
	}
	rows, err := q.Query(ctx, missingRightsSQL, pgx.NamedArgs{
		"relations": relations, "columns": columns, "privileges": privileges, "schema": set.schema(),
		"functions": beside.functions, "sequences": beside.sequences,
	})
	if err != nil {
		return fmt.Errorf("read the rights of the database's user: %w", err)
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read the rights of the database's user: %w", err)
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: its user lacks %s: %s", ErrNotReady, firstOf(missing), grantRemedy(set))
}

// firstOf joins the first rights of a list, which can have hundreds.
func firstOf(missing []string) string {
	const named = 5
	text := strings.Join(missing[:min(len(missing), named)], ", ")
	if more := len(missing) - named; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (s Set) schema() string {
	if s == Registry {
		return "dbcontroller_registry"
	}
	return "dbcontroller"
}

func hasNewest(ctx context.Context, q Querier, set Set) error {
	all, err := sources(set)
	if err != nil {
		return err
	}
	newest := all[len(all)-1]
	has, err := appliedOf(ctx, q, set)
	if err == nil && has < newest.version {
		err = fmt.Errorf("%w: it lacks migration %s: run `db-controller migrate up --set %s`", ErrNotReady,
			newest.name, set)
	}
	return err
}

// right is a privilege on a table, or, with a column, on that column alone.
type right struct{ relation, column, privilege string }

// rightsBeside are the rights besides those on tables: the functions that may be executed, and the privileges
// on all sequences.
type rightsBeside struct{ functions, sequences []string }

var (
	sequencesLine = regexp.MustCompile(`'GRANT ([A-Z, ]+) ON ALL SEQUENCES IN SCHEMA \w+ TO ([^\n]*)`)
	executeLine   = regexp.MustCompile(`'GRANT EXECUTE ON FUNCTION \w+\.(\w+) TO %I', prefix \|\| '_(api|controller)'`)

	grantLine = regexp.MustCompile(`\('(api|controller)', '([^']+)', '([^']+)'\)`)
	ofColumns = regexp.MustCompile(`^(\w+) \(([^)]+)\)$`)
)

// servingRights returns the rights of roles, as roles/*.sql grants them; without any, of all of serving
// processes.
func servingRights(set Set, of []Role) (out []right, beside rightsBeside, err error) {
	script, err := roles.ReadFile("roles/" + string(set) + ".sql")
	if err != nil {
		return nil, beside, err
	}
	if len(of) == 0 {
		of = []Role{API, Controller}
	}
	for _, grant := range sequencesLine.FindAllStringSubmatch(string(script), -1) {
		if !slices.ContainsFunc(of, func(r Role) bool { return strings.Contains(grant[2], "'_"+string(r)+"'") }) {
			continue
		}
		beside.sequences = append(beside.sequences, strings.Split(grant[1], ", ")...)
	}
	for _, grant := range executeLine.FindAllStringSubmatch(string(script), -1) {
		if slices.Contains(of, Role(grant[2])) {
			beside.functions = append(beside.functions, grant[1])
		}
	}
	for _, grant := range grantLine.FindAllStringSubmatch(string(script), -1) {
		if !slices.Contains(of, Role(grant[1])) {
			continue
		}
		privileges, columns := strings.Split(grant[2], ", "), []string{""}
		if m := ofColumns.FindStringSubmatch(grant[2]); m != nil {
			privileges, columns = m[1:2], strings.Split(m[2], ", ")
		}
		for i, table := range strings.Split(grant[3], ", ") {
			if i == 0 {
				table = set.schema() + "." + table
			}
			for _, privilege := range privileges {
				for _, column := range columns {
					out = append(out, right{table, column, privilege})
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, beside, fmt.Errorf("roles/%s.sql grants nothing", set)
	}
	return out, beside, nil
}

// missingRightsSQL lists the rights that the user lacks, sorted; only USAGE on the schema when the user lacks
// that.
const missingRightsSQL = `
WITH usable AS (
    SELECT COALESCE(bool_and(pg_catalog.has_schema_privilege(oid, 'USAGE')), false) AS yes FROM pg_catalog.pg_namespace WHERE nspname = @schema
), needed AS (
    SELECT DISTINCT i.relation, i.col, i.privilege, c.oid
    FROM unnest(@relations::text[], @columns::text[], @privileges::text[]) AS i (relation, col, privilege)
    LEFT JOIN pg_catalog.pg_class c ON c.relname = split_part(i.relation, '.', 2)
        AND c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = @schema) AND split_part(i.relation, '.', 1) = @schema
)
SELECT format('USAGE on schema %s', @schema::text) FROM usable WHERE NOT yes
UNION ALL
SELECT format('%s on %s%s', privilege, relation, ' (' || NULLIF(col, '') || ')') FROM needed, usable
WHERE yes AND (oid IS NULL OR NOT CASE WHEN col = '' THEN pg_catalog.has_table_privilege(oid, privilege)
    ELSE pg_catalog.has_column_privilege(oid, col, privilege) END)
UNION ALL
SELECT format('%s on sequence %s.%s', p, @schema::text, c.relname)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace, unnest(@sequences::text[]) AS p, usable
WHERE yes AND n.nspname = @schema AND CASE WHEN c.relkind = 'S' THEN NOT pg_catalog.has_sequence_privilege(c.oid, p) ELSE false END
UNION ALL
SELECT format('EXECUTE on function %s.%s', @schema::text, f) FROM unnest(@functions::text[]) AS f, usable
WHERE yes AND NOT COALESCE((
    SELECT bool_and(pg_catalog.has_function_privilege(p.oid, 'EXECUTE')) FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = @schema AND p.proname = f
), false)
ORDER BY 1`
