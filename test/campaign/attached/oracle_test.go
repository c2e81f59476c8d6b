package attached

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

// oracle is one database with all tables. Each reference between the databases is a native key there, over
// columns of its own (fk_…) that a trigger keeps equal to the values of the application while their target
// exists, so that a value without a target can be stored: it is treated as the reference declares for missing
// targets.
type oracle struct {
	t    testing.TB
	conn *pgx.Conn
}

func newOracle(t testing.TB, strict bool) *oracle {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, harness.Postgres(t).NewDatabase(t, ""))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(ctx) })
	sql := tables[crm] + tables[shop] + tables[post] + "CREATE TABLE acted (at int);"
	for _, r := range references {
		sql += r.native()
	}
	for _, table := range []string{"orders", "lines", "invoices", "parcels"} {
		sql += holderTrigger(table, strict)
	}
	for _, target := range []string{"customers", "seats", "orders"} {
		sql += targetTrigger(target)
	}
	for table, condition := range alive {
		sql += deletedByColumn(table, condition)
	}
	_, err = conn.Exec(ctx, sql)
	require.NoError(t, err, sql)
	return &oracle{t: t, conn: conn}
}

func prefixed(prefix string, names []string) string {
	return prefix + strings.Join(names, ", "+prefix)
}

// fk are the columns of the native key.
func (r reference) fk() []string {
	out := make([]string, len(r.columns))
	for i, c := range r.columns {
		out[i] = "fk_" + c
	}
	return out
}

func (r reference) native() string {
	var sql strings.Builder
	for i, fk := range r.fk() {
		kind := map[string]string{"id": "bigint", "room": "text", "number": "integer"}[r.key[i]]
		if r.target == "orders" {
			kind = "text"
		}
		fmt.Fprintf(&sql, "ALTER TABLE %s ADD %s %s;", r.table, fk, kind)
	}
	fmt.Fprintf(&sql, "ALTER TABLE %s ADD FOREIGN KEY (%s) REFERENCES %s (%s) ON DELETE %s;", r.table,
		prefixed("", r.fk()), r.target, prefixed("", r.key), r.action)
	return sql.String()
}

func (r reference) given() string {
	given := fmt.Sprintf("num_nulls(%s) = 0", prefixed("NEW.", r.columns))
	if r.region != "" {
		given += fmt.Sprintf(" AND NEW.%s IS NOT NULL", r.region)
	}
	return given
}

func (r reference) assign(to []string, value func(i int) string) (sql string) {
	for i, c := range to {
		sql += fmt.Sprintf(" NEW.%s := %s;", c, value(i))
	}
	return sql
}

func null(int) string { return "NULL" }

func holderTrigger(table string, strict bool) string {
	var acts, computes strings.Builder
	for _, r := range of(table) {
		fmt.Fprintf(&acts, `
    IF TG_OP = 'UPDATE' THEN IF num_nulls(%s) = 0 AND num_nonnulls(%s) = 0 AND (%s) = (%s) THEN%s RETURN NEW; END IF; END IF;`,
			prefixed("OLD.", r.fk()), prefixed("NEW.", r.fk()), prefixed("OLD.", r.columns),
			prefixed("NEW.", r.columns), r.assign(r.columns, null))
		missing, exists := "", fmt.Sprintf("EXISTS (SELECT FROM %s WHERE (%s) = (%s))", r.target, prefixed("", r.key),
			prefixed("NEW.", r.columns))
		switch {
		case strict: // the native key refuses it
			exists = "true"
		case r.missing == "unset":
			missing = r.assign(r.columns, null) + " INSERT INTO acted VALUES (1);"
		case r.missing == "delete":
			missing = " NEW.doomed := true; INSERT INTO acted VALUES (1);"
		}
		fmt.Fprintf(&computes, `
    IF NOT (%s) THEN%s
    ELSIF %s THEN%s
    ELSE%s%s END IF;`, r.given(), r.assign(r.fk(), null), exists,
			r.assign(r.fk(), func(i int) string { return "NEW." + r.columns[i] }), r.assign(r.fk(), null), missing)
	}
	return fmt.Sprintf(`
ALTER TABLE %[1]s ADD doomed boolean NOT NULL DEFAULT false;
CREATE FUNCTION keep_%[1]s() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN%[2]s
    NEW.doomed := false;%[3]s
    RETURN NEW;
END $$;
CREATE TRIGGER keep BEFORE INSERT OR UPDATE ON %[1]s FOR EACH ROW EXECUTE FUNCTION keep_%[1]s();`, table, acts.String(), computes.String())
}

// targetTrigger joins rows to a target that appears, at the end of the transaction: no other transaction sees
// a target that is inserted and deleted in one transaction.
func targetTrigger(target string) string {
	var sql strings.Builder
	for _, r := range references {
		if r.target == target {
			fmt.Fprintf(&sql, " UPDATE %s SET %s = %s WHERE (%s) = (%s);", r.table, r.columns[0], r.columns[0],
				prefixed("", r.columns), prefixed("NEW.", r.key))
		}
	}
	return fmt.Sprintf(`
CREATE FUNCTION appeared_%[1]s() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN%[2]s RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER appeared AFTER INSERT OR UPDATE ON %[1]s DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION appeared_%[1]s();`, target, sql.String())
}

// deletedByColumn deletes the rows that the application says are deleted.
func deletedByColumn(table, condition string) string {
	key := "(id) = (OLD.id)"
	if table == "seats" {
		key = "(room, number) = (OLD.room, OLD.number)"
	}
	return fmt.Sprintf(`
CREATE FUNCTION go_%[1]s() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM %[1]s WHERE %[2]s; RETURN NULL; END $$;
CREATE TRIGGER goes BEFORE UPDATE ON %[1]s FOR EACH ROW WHEN (NOT (NEW.%[3]s)) EXECUTE FUNCTION go_%[1]s();`, table, key, strings.Replace(condition, "NOT gone", "gone IS NOT TRUE", 1))
}

// play plays a transaction, and reports whether rows without targets were changed as declared. err is the
// refusal of a native key; then, and without keep, nothing changes.
func (o *oracle) play(t transaction, keep bool) (acted bool, err error) {
	ctx := context.Background()
	tx, err := o.conn.Begin(ctx)
	require.NoError(o.t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	for _, sql := range slices.Concat(t.statements, []string{
		`SET CONSTRAINTS ALL IMMEDIATE`,
		`DELETE FROM parcels WHERE doomed`,
	}) {
		if _, err := tx.Exec(ctx, sql); err != nil {
			var pg *pgconn.PgError
			require.True(o.t, errors.As(err, &pg), "%s: %v", sql, err)
			require.Contains(o.t, []string{"23503", "23505", "21000"}, pg.Code, "%s: %v", sql, err)
			return false, err
		}
	}
	require.NoError(o.t,
		tx.QueryRow(ctx, `WITH gone AS (DELETE FROM acted RETURNING at) SELECT count(*) > 0 FROM gone`).Scan(&acted))
	if keep {
		require.NoError(o.t, tx.Commit(ctx))
	}
	return acted, nil
}

// read returns the rows of a table, and which references of them have their target.
func read(t testing.TB, conn *pgx.Conn, table string) []string {
	t.Helper()
	sql := fmt.Sprintf("SELECT concat_ws('|', %s) FROM %s WHERE %s ORDER BY 1", nullable(columns[table]), table,
		aliveIn(table))
	found, err := conn.Query(context.Background(), sql)
	require.NoError(t, err)
	rows, err := pgx.CollectRows(found, pgx.RowTo[string])
	require.NoError(t, err)
	return rows
}

func nullable(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = "coalesce(" + n + "::text, '-')"
	}
	return strings.Join(out, ", ")
}

// table returns the connection for a table.
func (o *oracle) table(string) *pgx.Conn { return o.conn }
