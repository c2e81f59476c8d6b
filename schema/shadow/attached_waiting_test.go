package shadow_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/test/harness"
)

// patiently lets a statement that gets its rights wait for as long as a slow machine needs.
const patiently = `SET dbcontroller.acquire_timeout = '5min'`

// newWaiting is newStrict with statements that wait for their rights.
func newWaiting(t *testing.T) *attached {
	t.Helper()
	a := newStrict(t)
	lacking, err := attach.Waiting(context.Background(), a.shop, "")
	require.NoError(t, err)
	require.Nil(t, lacking)
	a.exec(a.shop, patiently)
	t.Cleanup(func() { // the role is the server's, and outlives the database
		a.exec(a.shop, `ROLLBACK; UPDATE dbcontroller.attachment SET strict = false`)
		require.NoError(t, attach.StopWaiting(context.Background(), a.shop))
	})
	return a
}

// waits runs a statement on a connection while the controller gives rights, and returns its error.
func (a *attached) waits(conn *pgx.Conn, sql string) error {
	a.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), sql)
		done <- err
	}()
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(time.Millisecond):
			a.AnswerRequests(shop)
			a.Settle()
		}
	}
}

// code returns the SQLSTATE of an error of PostgreSQL.
func (a *attached) code(err error) string {
	a.t.Helper()
	var pg *pgconn.PgError
	require.True(a.t, errors.As(err, &pg), "%v", err)
	return pg.Code
}

// An application that does not know of rights writes plain SQL: an existing target can be named, a missing
// one is 23503, as with a native key.
func TestAStatementWaitsForItsRights_I30(t *testing.T) {
	t.Parallel()
	a := newWaiting(t)
	require.NoError(t, a.waits(a.shop, `INSERT INTO invoices VALUES ('i', 1, 'a,b', 1)`))
	require.NoError(t,
		a.waits(a.shop,
			`INSERT INTO orders (customer_id, approver_id, approver_region, note) SELECT g, g + 1, 'eu', 'x' FROM generate_series(1, 8) g`))
	require.NoError(t, a.waits(a.shop, `UPDATE invoices SET customer_id = 9`))
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 9`)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('known', 9)`) // no question is asked

	err := a.waits(a.shop, `INSERT INTO invoices (id, customer_id) SELECT 'm' || g, g FROM generate_series(5, 11) g`)
	require.Equal(t, "23503", a.code(err), "%v", err)
	require.ErrorContains(t, err, "does not exist")
	a.exec(a.shop, `DELETE FROM invoices`)
	a.returned()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 9`)
	a.Settle()
	require.Equal(t, []string{"7"}, a.rows(a.shop, `SELECT count(approver_id)::text FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A transaction that uses one right to a target waits for the other one to the same target, while others do
// the same.
func TestATransactionWaitsForBothRightsToOneTarget_I30(t *testing.T) {
	t.Parallel()
	a := newWaiting(t)
	other := a.connect(shop, patiently+`; BEGIN`)
	require.NoError(t, a.waits(other, `INSERT INTO orders (customer_id, note) VALUES (4, 'one')`))
	a.exec(a.shop, `BEGIN`)
	require.NoError(t, a.waits(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('a', 4)`))
	require.NoError(t, a.waits(other, `INSERT INTO invoices (id, customer_id) VALUES ('b', 4)`))
	require.NoError(t, a.waits(a.shop, `INSERT INTO orders (customer_id, note) VALUES (4, 'two')`))
	a.exec(other, `COMMIT`)
	a.exec(a.shop, `COMMIT`)
	a.Settle()
	require.Equal(t, []string{"2", "2"},
		a.rows(a.shop, `SELECT count(*)::text FROM orders UNION ALL SELECT count(*)::text FROM invoices`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Above READ COMMITTED a transaction cannot see the right that it has waited for: it fails with a code that
// asks for a repetition, and then succeeds.
func TestASnapshotDoesNotSeeTheRightThatItWaitedFor(t *testing.T) {
	t.Parallel()
	a := newWaiting(t)
	for _, level := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
		insert := `INSERT INTO orders (customer_id, note) VALUES (` + map[string]string{
			"REPEATABLE READ": "4",
			"SERIALIZABLE":    "5",
		}[level] + `, 'x')`
		a.exec(a.shop, `BEGIN ISOLATION LEVEL `+level+`; SELECT FROM orders`)
		require.Equal(t, "40001", a.code(a.waits(a.shop, insert)))
		a.exec(a.shop, `ROLLBACK; BEGIN ISOLATION LEVEL `+level)
		a.exec(a.shop, insert)
		a.exec(a.shop, `COMMIT`)
	}
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A statement ends in time, with a code for the reason: while the region of the target is dark, while no
// process answers, in a copy, and when the role has no connection left. It can be cancelled, and an
// application can refuse to wait.
func TestAStatementDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	a := newWaiting(t)
	insert := `INSERT INTO orders (customer_id, note) VALUES (4, 'x')`
	a.exec(a.shop, `SET dbcontroller.acquire_timeout = '300ms'`)
	a.SetDown(crm, true)
	err := a.waits(a.shop, insert)
	require.Equal(t, "RD002", a.code(err))
	require.ErrorContains(t, err, "not given in 00:00:00.")
	a.SetDown(crm, false)

	exec := func(before string) error {
		_, err := a.shop.Exec(context.Background(), before+insert)
		return err
	}
	require.Equal(t, "RD002", a.code(exec(``)), "nobody answers")
	require.Equal(t, "57014", a.code(exec(`SET statement_timeout = 100; `)))
	a.exec(a.shop, `SET statement_timeout = 0`)
	require.Equal(t, "RD001", a.code(exec(`SET dbcontroller.acquire_timeout = 0; `)))
	require.Equal(t, "22023", a.code(exec(`SET dbcontroller.acquire_timeout = 'soon'; `)))
	a.exec(a.shop, `SET dbcontroller.acquire_timeout = '1 s'`)

	var role string
	require.NoError(t, a.shop.QueryRow(context.Background(),
		`SELECT 'dbcontroller_ask_' || oid FROM pg_database WHERE datname = current_database()`).Scan(&role))
	a.exec(a.shop, `ALTER ROLE `+role+` CONNECTION LIMIT 0`)
	err = exec(``)
	require.Equal(t, "RD002", a.code(err))
	require.ErrorContains(t, err, "could not be asked for")
	a.exec(a.shop,
		`ALTER ROLE `+role+` CONNECTION LIMIT 20; ALTER SERVER dbcontroller_loopback OPTIONS (SET dbname 'postgres')`)
	require.Equal(t, "RD002", a.code(exec(``)), "another database")
	lacking, err := attach.Waiting(context.Background(), a.shop, "")
	require.NoError(t, err)
	require.Nil(t, lacking, "attach mends it")
	a.exec(a.shop, patiently)
	require.NoError(t, a.waits(a.shop, insert))
}

// The role that asks may do nothing else, and nothing is left when the last strict table is detached.
func TestWhoAsksForRightsMayDoNothingElse(t *testing.T) {
	t.Parallel()
	a := newWaiting(t)
	ctx := context.Background()
	var role, server string
	require.NoError(t,
		a.shop.QueryRow(ctx, `SELECT 'dbcontroller_ask_' || oid FROM pg_database WHERE datname = current_database()`).
			Scan(&role))
	a.exec(a.shop, `SET ROLE `+role)
	for _, sql := range []string{
		`SELECT FROM dbcontroller.right_request`, `SELECT FROM dbcontroller.meta`, `SELECT FROM invoices`,
		`SELECT dbcontroller.acquire('{}')`, `SELECT dbcontroller.take_rights(NULL, NULL, NULL, NULL, NULL, NULL)`,
		`SELECT dbcontroller.ask_outside('{}', 'x')`, `CREATE TABLE dbcontroller.mine ()`,
	} {
		_, err := a.shop.Exec(ctx, sql)
		require.Equal(t, "42501", a.code(err), sql)
	}
	a.exec(a.shop, `SELECT dbcontroller.ask('{}', 'x'); RESET ROLE`)
	const passwordSQL = `SELECT rolpassword FROM pg_authid WHERE rolname = $1`
	var before, after string
	require.NoError(t, a.shop.QueryRow(ctx, passwordSQL, role).Scan(&before))
	// No statement has a password in its text, which pg_stat_statements and a log of DDL keep.
	var texts []string
	cfg := a.shop.Config().Copy()
	cfg.Tracer = tracer(func(sql string) { texts = append(texts, sql) })
	traced, err := pgx.ConnectConfig(ctx, cfg)
	require.NoError(t, err)
	defer func() { _ = traced.Close(ctx) }()
	var passwords [3]string
	const mappedSQL = `SELECT substr(o, 10) FROM pg_user_mapping, unnest(umoptions) AS o WHERE o LIKE 'password=%'`
	require.NoError(t, a.shop.QueryRow(ctx, mappedSQL).Scan(&passwords[0]))
	a.exec(a.shop, `DROP SERVER dbcontroller_loopback CASCADE`)
	lacking, err := attach.Waiting(ctx, traced, "")
	require.NoError(t, err)
	require.Empty(t, lacking)
	require.NoError(t, a.shop.QueryRow(ctx, mappedSQL).Scan(&passwords[1]))
	rotated, err := attach.RotatePassword(ctx, traced)
	require.NoError(t, err)
	require.True(t, rotated)
	require.NoError(t, a.shop.QueryRow(ctx, mappedSQL).Scan(&passwords[2]))
	require.Len(t, map[string]bool{passwords[0]: true, passwords[1]: true, passwords[2]: true}, 3, "each is new")
	for _, p := range passwords[1:] {
		require.NotContains(t, strings.Join(texts, "\n"), p)
	}
	require.NoError(t, a.shop.QueryRow(ctx, passwordSQL, role).Scan(&after))
	require.NotEqual(t, before, after)
	require.NoError(t, attach.WhyNotWaiting(ctx, a.shop), "statements ask with the new password")
	all, err := attach.All(ctx, a.shop)
	require.NoError(t, err)
	for _, table := range all {
		require.NoError(t, attach.Detach(ctx, a.shop, table, func(err error) { t.Log(err) }))
	}
	require.NoError(t, attach.StopWaiting(ctx, a.shop))
	rotated, err = attach.RotatePassword(ctx, a.shop)
	require.NoError(t, err)
	require.False(t, rotated, "there is no such role")
	require.NoError(t, a.shop.QueryRow(ctx, `
SELECT COALESCE((SELECT rolname FROM pg_roles WHERE rolname = $1), ''),
    COALESCE((SELECT srvname FROM pg_foreign_server), (SELECT extname FROM pg_extension WHERE extname = 'dblink'), (SELECT nspname FROM pg_namespace WHERE nspname LIKE '%loopback%'), '')`, role).Scan(&role, &server))
	require.Empty(t, role+server)
}

// A role that may not make the connection names the statements that a superuser has to run, and the
// statements for applications until then; statements fail with RD001.
func TestAttachSaysWhyStatementsDoNotWait(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	require.Error(t, attach.WhyNotWaiting(ctx, a.shop))
	a.exec(a.shop, `GRANT USAGE ON SCHEMA dbcontroller TO `+harness.ServingRole+`; SET ROLE `+harness.ServingRole)
	lacking, err := attach.Waiting(ctx, a.shop, "")
	require.NoError(t, err)
	require.Len(t, lacking, 2)
	require.Contains(t, lacking[0].SQL, "CREATE EXTENSION dblink SCHEMA dbcontroller_loopback; ")
	require.Contains(t, lacking[0].Text, "permission denied")
	require.Contains(t, lacking[1].SQL, "GRANT EXECUTE ON FUNCTION dbcontroller.acquire, dbcontroller.acquired TO app;")
	a.exec(a.shop, `RESET ROLE`)
	_ = a.lacks(`INSERT INTO orders (customer_id) VALUES (4)`)
}
