package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

const ownerSQL = `
SELECT pg_catalog.quote_ident(o.rolname), o.rolsuper, pg_catalog.quote_ident(current_user)
FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles o ON o.oid = n.nspowner WHERE n.nspname = 'dbcontroller'`

// strange explains why a role cannot read the tables of the controller. err is PostgreSQL's error.
func strange(ctx context.Context, conn *pgx.Conn, err error) error {
	var owner, role string
	var super bool
	if e := conn.QueryRow(ctx, ownerSQL).Scan(&owner, &super, &role); e != nil {
		return errors.Join(err, e)
	}
	if super {
		return fmt.Errorf(
			"%w: schema dbcontroller belongs to the superuser %s: attach as a superuser, or give the schema an owner of its own by db-controller migrate up --roles", err, owner)
	}
	return fmt.Errorf(
		"%w: attach needs a role that owns the tables and is a member of %[2]s, the owner of schema dbcontroller: GRANT %[2]s TO %[3]s", err, owner, role)
}

// lackingSQL finds the roles that have to read, lock and delete the rows of a table, and change these
// columns, but lack a right: the owner of dbcontroller.change_rows, as which rows are changed, and the roles
// of the deployment's running processes that are no members of the owner. A right to update one column is
// enough for the locks. The owner comes first.
const lackingSQL = `
WITH r AS (
    SELECT p.proowner AS id, true AS owns FROM pg_catalog.pg_proc p WHERE p.oid = pg_catalog.to_regproc('dbcontroller.change_rows')
    UNION
    SELECT a.usesysid, false FROM pg_catalog.pg_stat_activity a, dbcontroller.meta m, pg_catalog.pg_proc p
    WHERE m.singleton AND a.datname = pg_catalog.current_database() AND a.application_name = pg_catalog.left('db-controller ' || m.service || '/' || m.region, 63)
        AND p.oid = pg_catalog.to_regproc('dbcontroller.change_rows') AND NOT pg_catalog.pg_has_role(a.usesysid, p.proowner, 'USAGE')
)
SELECT pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(r.id)), r.owns, NOT pg_catalog.has_schema_privilege(r.id, n.oid, 'USAGE')
FROM r, pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2
    AND NOT (pg_catalog.has_schema_privilege(r.id, n.oid, 'USAGE') AND pg_catalog.has_table_privilege(r.id, c.oid, 'SELECT')
        AND pg_catalog.has_table_privilege(r.id, c.oid, 'DELETE') AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute t
            WHERE t.attrelid = c.oid AND t.attname = ANY ($3::text[]) AND NOT t.attisdropped AND NOT pg_catalog.has_column_privilege(r.id, c.oid, t.attnum, 'UPDATE')))
ORDER BY r.owns DESC, 1`

// lackingRole is a role without the rights that it needs, and the statements that grant them.
type lackingRole struct {
	role   string
	owns   bool // dbcontroller.change_rows
	grants []string
}

// changes returns the columns that the controller may change: the columns of the references, which UNSET sets
// to NULL. Without references it returns the first column of the key, for the locks.
func changes(key []string, references [][]string) []string {
	columns := slices.Concat(references...)
	if len(columns) == 0 {
		columns = key[:1]
	}
	columns = slices.Clone(columns)
	slices.Sort(columns)
	return slices.Compact(columns)
}

// findLacking finds the roles that lack rights on a table, whose columns they may have to change: until they
// have them, none of its rows is read.
func findLacking(ctx context.Context, tx pgx.Tx, table schema.TableName, columns []string) ([]lackingRole, error) {
	found, err := tx.Query(ctx, lackingSQL, table.Schema, table.Name, columns)
	if err != nil {
		return nil, fmt.Errorf("read the rights on %s: %w", table, err)
	}
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = schema.QuoteIdentifier(c)
	}
	var out []lackingRole
	var l lackingRole
	var closed bool // the schema
	_, err = pgx.ForEachRow(found, []any{&l.role, &l.owns, &closed}, func() error {
		l.grants = nil
		if closed {
			l.grants = append(l.grants, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s",
				schema.QuoteIdentifier(table.Schema), l.role))
		}
		l.grants = append(l.grants, fmt.Sprintf("GRANT SELECT, DELETE, UPDATE (%s) ON %s TO %s",
			strings.Join(quoted, ", "), table.SQL(), l.role))
		out = append(out, l)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the rights on %s: %w", table, err)
	}
	return out, nil
}

// finding describes the rights that the role lacks.
func (l lackingRole) finding() Finding {
	text := l.role + ", the role of a process of the deployment, cannot read, update and delete the rows"
	if l.owns {
		text = l.role + ", as which the controller changes rows, cannot read, update and delete the rows"
	}
	return Finding{Text: text, SQL: strings.Join(l.grants, "; ") + ";"}
}

// ownerOfChangesSQL finds the role as which rows are changed, when it has its rights on a table by grants.
const ownerOfChangesSQL = `
SELECT pg_catalog.quote_ident(o.rolname) FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_roles o ON o.oid = p.proowner, pg_catalog.pg_class c
WHERE p.oid = pg_catalog.to_regproc('dbcontroller.change_rows') AND c.oid = pg_catalog.to_regclass($1) AND NOT o.rolsuper AND o.oid <> c.relowner`

// revoke takes the rights on a table back from the role as which rows are changed.
func revoke(ctx context.Context, tx pgx.Tx, table schema.TableName) error {
	var role string
	switch err := tx.QueryRow(ctx, ownerOfChangesSQL, table.SQL()).Scan(&role); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("read the owner of dbcontroller.change_rows: %w", err)
	}
	_, err := tx.Exec(ctx, fmt.Sprintf("REVOKE ALL ON %s FROM %s", table.SQL(), role))
	return lockOf(table.String(), err)
}

// othersSQL finds the roles beside the owner of a table whose code can run when its rows are deleted: roles
// that may create triggers on it, or tables that refer to it, and owners of such tables.
const othersSQL = `
WITH c AS (
    SELECT c.oid, c.relowner, c.relacl FROM pg_catalog.pg_class c
    WHERE c.oid = pg_catalog.to_regclass($1) OR c.relispartition AND c.oid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1)) AS t)
)
SELECT DISTINCT x.text FROM (
    SELECT pg_catalog.format('%s may create %s', COALESCE(pg_catalog.quote_ident(r.rolname), 'everyone'), CASE a.privilege_type WHEN 'TRIGGER' THEN 'triggers on it' ELSE 'tables that refer to it' END) AS text
    FROM c CROSS JOIN LATERAL (
        SELECT (pg_catalog.aclexplode(c.relacl)).*
        UNION SELECT (pg_catalog.aclexplode(t.attacl)).* FROM pg_catalog.pg_attribute t WHERE t.attrelid = c.oid AND t.attacl IS NOT NULL
    ) AS a LEFT JOIN pg_catalog.pg_roles r ON r.oid = a.grantee
    WHERE a.privilege_type IN ('TRIGGER', 'REFERENCES') AND a.grantee <> c.relowner
    UNION ALL
    SELECT pg_catalog.format('the table %s of %I refers to it', k.conrelid::pg_catalog.regclass, pg_catalog.pg_get_userbyid(h.relowner))
    FROM c JOIN pg_catalog.pg_constraint k ON k.confrelid = c.oid AND k.contype = 'f' JOIN pg_catalog.pg_class h ON h.oid = k.conrelid WHERE h.relowner <> c.relowner
) AS x ORDER BY 1`

// checkOthers names the roles whose code runs when the controller deletes rows of a table.
func checkOthers(ctx context.Context, tx pgx.Tx, table schema.TableName) ([]Finding, error) {
	found, err := tx.Query(ctx, othersSQL, table.SQL())
	if err != nil {
		return nil, fmt.Errorf("read who may create triggers on %s: %w", table, err)
	}
	others, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read who may create triggers on %s: %w", table, err)
	}
	var out []Finding
	for _, other := range others {
		out = append(out,
			Finding{Text: other +
				": its code runs when the controller deletes or changes rows, with the rights of the role as which it does so, and those are the rights on all attached tables"})
	}
	return out, nil
}

// triggersOfOthersSQL finds the triggers of a table, and of the tables whose rows go or change with its rows by
// native keys, whose functions depend on the search_path or on the rights of the session.
const triggersOfOthersSQL = `
WITH RECURSIVE c (oid) AS (
    SELECT t.oid FROM pg_catalog.pg_class t
    WHERE t.oid = pg_catalog.to_regclass($1) OR t.relispartition AND t.oid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1)) AS p)
    UNION
    SELECT k.conrelid FROM c JOIN pg_catalog.pg_constraint k ON k.confrelid = c.oid AND k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd')
)
SELECT DISTINCT ON (p.oid) pg_catalog.quote_ident(g.tgname), pg_catalog.format('%I.%I', n.nspname, t.relname), pg_catalog.format('%I.%I()', f.nspname, p.proname), pg_catalog.quote_ident(n.nspname)
FROM c JOIN pg_catalog.pg_trigger g ON g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A') AND g.tgtype & 24 <> 0
JOIN pg_catalog.pg_class t ON t.oid = g.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
JOIN pg_catalog.pg_proc p ON p.oid = g.tgfoid JOIN pg_catalog.pg_language l ON l.oid = p.prolang AND l.lanname NOT IN ('c', 'internal')
JOIN pg_catalog.pg_namespace f ON f.oid = p.pronamespace AND f.nspname <> 'dbcontroller'
WHERE NOT p.prosecdef OR NOT EXISTS (SELECT FROM pg_catalog.unnest(p.proconfig) AS s WHERE s LIKE 'search_path=%')
ORDER BY p.oid, g.tgrelid, g.tgname`

// checkTriggers names the triggers that run under another search_path, and with other rights, when the
// controller deletes or changes rows.
func checkTriggers(ctx context.Context, tx pgx.Tx, table schema.TableName) ([]Finding, error) {
	found, err := tx.Query(ctx, triggersOfOthersSQL, table.SQL())
	if err != nil {
		return nil, fmt.Errorf("read the triggers of %s: %w", table, err)
	}
	var out []Finding
	var trigger, of, function, schemaOf string
	_, err = pgx.ForEachRow(found, []any{&trigger, &of, &function, &schemaOf}, func() error {
		out = append(out, Finding{
			Text: fmt.Sprintf("the trigger %s of %s also runs when the controller deletes or changes rows: with the search_path pg_catalog, and the rights of another role; "+
				"if its function %s names tables or functions, let it run with its owner's", trigger, of, function),
			SQL: fmt.Sprintf("ALTER FUNCTION %s SECURITY DEFINER SET search_path = %s, pg_temp;", function, schemaOf),
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the triggers of %s: %w", table, err)
	}
	return out, nil
}
