package attach

import (
	"context"
	"errors"
	"fmt"

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

// lackingSQL finds the roles of running processes of the deployment that cannot read and change the rows of a table. A right to update one
// column is enough for the locks.
const lackingSQL = `
SELECT DISTINCT pg_catalog.quote_ident(a.usename) FROM pg_catalog.pg_stat_activity a, dbcontroller.meta m, pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND m.singleton AND a.datname = pg_catalog.current_database() AND a.application_name = pg_catalog.left('db-controller ' || m.service || '/' || m.region, 63)
    AND NOT (pg_catalog.has_schema_privilege(a.usesysid, n.oid, 'USAGE') AND pg_catalog.has_table_privilege(a.usesysid, c.oid, 'SELECT')
        AND pg_catalog.has_table_privilege(a.usesysid, c.oid, 'DELETE') AND pg_catalog.has_any_column_privilege(a.usesysid, c.oid, 'UPDATE'))
ORDER BY 1`

// checkRights finds the roles of the deployment's processes that lack rights on a table: until they have them, none of its rows is read.
func checkRights(ctx context.Context, tx pgx.Tx, table schema.TableName) ([]Finding, error) {
	found, err := tx.Query(ctx, lackingSQL, table.Schema, table.Name)
	if err != nil {
		return nil, fmt.Errorf("read the rights on %s: %w", table, err)
	}
	roles, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the rights on %s: %w", table, err)
	}
	var out []Finding
	for _, role := range roles {
		out = append(out, Finding{
			Text: fmt.Sprintf("%s, the role of a process of the deployment, cannot read, update and delete the rows", role),
			SQL: fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s; GRANT SELECT, UPDATE, DELETE ON %s TO %[2]s;",
				schema.QuoteIdentifier(table.Schema), role, table.SQL()),
		})
	}
	return out, nil
}
