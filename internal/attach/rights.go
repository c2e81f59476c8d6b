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

// strange explains why a role cannot read the tables of the controller. The error is that of PostgreSQL.
func strange(ctx context.Context, conn *pgx.Conn, err error) error {
	var owner, role string
	var super bool
	if e := conn.QueryRow(ctx, ownerSQL).Scan(&owner, &super, &role); e != nil {
		return errors.Join(err, e)
	}
	if super {
		return fmt.Errorf("%w: schema dbcontroller belongs to the superuser %s: attach as a superuser, or give the schema an owner of its own by db-controller migrate up --roles", err, owner)
	}
	return fmt.Errorf("%w: attach needs a role that owns the tables and is a member of %[2]s, the owner of schema dbcontroller: GRANT %[2]s TO %[3]s", err, owner, role)
}

// lackingSQL finds the roles of running processes of the deployment that cannot read, lock and delete the rows of a table, and change these
// columns of them. A right to update one column is enough for the locks.
const lackingSQL = `
SELECT DISTINCT pg_catalog.quote_ident(a.usename) FROM pg_catalog.pg_stat_activity a, dbcontroller.meta m, pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND m.singleton AND a.datname = pg_catalog.current_database() AND a.application_name = pg_catalog.left('db-controller ' || m.service || '/' || m.region, 63)
    AND NOT (pg_catalog.has_schema_privilege(a.usesysid, n.oid, 'USAGE') AND pg_catalog.has_table_privilege(a.usesysid, c.oid, 'SELECT')
        AND pg_catalog.has_table_privilege(a.usesysid, c.oid, 'DELETE') AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute t
            WHERE t.attrelid = c.oid AND t.attname = ANY ($3::text[]) AND NOT t.attisdropped AND NOT pg_catalog.has_column_privilege(a.usesysid, c.oid, t.attnum, 'UPDATE')))
ORDER BY 1`

// changes are the columns that the controller may change: those of the references, which UNSET sets to NULL. Without references, the first
// column of the key is for the locks.
func changes(key []string, references [][]string) []string {
	columns := slices.Concat(references...)
	if len(columns) == 0 {
		columns = key[:1]
	}
	columns = slices.Clone(columns)
	slices.Sort(columns)
	return slices.Compact(columns)
}

// checkRights finds the roles of the deployment's processes that lack rights on a table, whose columns they may have to change: until they
// have them, none of its rows is read.
func checkRights(ctx context.Context, tx pgx.Tx, table schema.TableName, columns []string) ([]Finding, error) {
	found, err := tx.Query(ctx, lackingSQL, table.Schema, table.Name, columns)
	if err != nil {
		return nil, fmt.Errorf("read the rights on %s: %w", table, err)
	}
	roles, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the rights on %s: %w", table, err)
	}
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = schema.QuoteIdentifier(c)
	}
	var out []Finding
	for _, role := range roles {
		out = append(out, Finding{
			Text: fmt.Sprintf("%s, the role of a process of the deployment, cannot read, update and delete the rows", role),
			SQL: fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s; GRANT SELECT, DELETE, UPDATE (%s) ON %s TO %[2]s;",
				schema.QuoteIdentifier(table.Schema), role, strings.Join(quoted, ", "), table.SQL()),
		})
	}
	return out, nil
}
