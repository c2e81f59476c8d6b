package shadow_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/harness"
)

// Many other targets, and many rights.
const manyRightsSQL = `
INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name, acting_epoch, acting_own)
SELECT gen_random_uuid(), f.deployment_id, f.kind_id, 'customers/' || g, f.acting_epoch, f.acting_own
FROM (SELECT * FROM dbcontroller.foreign_target WHERE acting_epoch IS NOT NULL LIMIT 1) f, generate_series(1000, 999 + $1::bigint) g`

// A statement on a strict table finds the rights to its targets by their names, among any number of others.
// DBCONTROLLER_TEST_ROWS is their number.
func TestStrictStatementsFindRightsByName(t *testing.T) {
	t.Parallel()
	n, err := strconv.Atoi(os.Getenv("DBCONTROLLER_TEST_ROWS"))
	if err != nil {
		n = 20_000
	}
	a := newStrict(t)
	a.write(`INSERT INTO orders (customer_id, note) VALUES (1, 'x')`)
	a.Settle()
	a.exec(a.shop, manyRightsSQL, n)
	a.exec(a.shop, `ANALYZE dbcontroller.foreign_target`)
	a.exec(a.shop, `SELECT pg_stat_force_next_flush()`)
	read := func() (rows int) {
		a.exec(a.shop, `SELECT pg_stat_force_next_flush()`)
		require.NoError(t, a.shop.QueryRow(t.Context(), `
SELECT sum(idx_tup_read)::int + (SELECT seq_tup_read::int FROM pg_stat_user_tables WHERE relid = 'dbcontroller.foreign_target'::regclass)
FROM pg_stat_user_indexes WHERE relid = 'dbcontroller.foreign_target'::regclass`).Scan(&rows))
		return rows
	}
	before := read()
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) SELECT 1000 + g % 100, 'n' FROM generate_series(1, 2000) g`)
	a.exec(a.shop, `UPDATE orders SET customer_id = customer_id + 1 WHERE note = 'n'`)
	require.Less(t, read()-before, 1500, "index entries and rows of 200 targets")
}

// computed returns the processor time of a session's process so far, which other programs on the machine do
// not change: only its ratio to the time of the same work is compared. The test is skipped where the process
// cannot be seen.
func computed(t *testing.T, conn *pgx.Conn) time.Duration {
	t.Helper()
	return computedBy(t, conn.PgConn().PID())
}

func computedBy(t *testing.T, pid uint32) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	var nanoseconds int64
	if err == nil {
		_, err = fmt.Sscan(string(raw), &nanoseconds)
	}
	if err != nil {
		t.Skipf("the process of a session cannot be seen: %v", err)
	}
	return time.Duration(nanoseconds)
}

// cost returns the processor time of statements in one transaction, which is rolled back.
func (a *attached) cost(conn *pgx.Conn, statements ...string) time.Duration {
	a.t.Helper()
	tx, err := conn.Begin(a.t.Context())
	require.NoError(a.t, err)
	before := computed(a.t, conn)
	for _, sql := range statements {
		_, err = tx.Exec(a.t.Context(), sql)
		require.NoError(a.t, err)
	}
	used := computed(a.t, conn) - before
	require.NoError(a.t, tx.Rollback(a.t.Context()))
	return used
}

// The triggers of attached tables do not depend on the settings of the application's session, nor on the
// statements before: PostgreSQL keeps plans, and compiles expensive ones.
func TestTriggersDoNotDependOnTheSession(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (1, 2, 'eu', 'x')`)
	a.Settle()
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) SELECT 1, 'n' FROM generate_series(1, 8000)`)
	const insert = `INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (1, 2, 'eu', 'y')`
	const update = `UPDATE orders SET customer_id = 1, note = 'm' WHERE note = 'n'`

	compiles := a.connect(shop, `SET jit = on`)
	plain := min(a.cost(a.shop, insert), a.cost(a.shop, insert), a.cost(a.shop, insert))
	require.Less(t, min(a.cost(compiles, insert), a.cost(compiles, insert), a.cost(compiles, insert)), 20*plain,
		"with jit")

	large := a.cost(a.connect(shop, ``), update)
	one := a.connect(shop, ``)
	for range 8 { // a plan is kept from the sixth on
		a.exec(one, `UPDATE orders SET note = note WHERE note = 'x'`)
	}
	require.Less(t, a.cost(one, update), 6*large, "after statements about one row")
}

// A target that is passed several times is one target; a region that is left out is the deployment's.
func TestRightsAreTakenForEqualTargets(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.acquire([]string{"BLOCK " + customer("1"), "BLOCK " + customer("2")})
	const take = `
SELECT dbcontroller.take_rights('orders', array_fill($1::text, ARRAY[4]), array_fill('Customer'::text, ARRAY[4]), '{eu,NULL,eu,eu}',
    '{customers/1,customers/1,customers/1,customers/2}', '{t,t,t,t}')`
	service := a.ID(crm).Service
	a.exec(a.shop, `BEGIN`)
	a.exec(a.shop, take, service)
	require.Equal(t, []string{"customers/1", "customers/2"}, a.shared())
}

// A statement leaves a look at each right to block that its rows do not need any more, whether it is about
// one row or several, and nothing else.
func TestStatementsLeaveLooksAtRights(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	a.write(`INSERT INTO invoices (id, customer_id, room, seat) VALUES ('i', 1, 'a,b', 1), ('j', 2, NULL, NULL)`)
	a.Settle()
	const one, two, seat = "customers/1", "customers/2", "seats/a%5C,b,1"
	for _, c := range []struct {
		sql   string
		looks []string
	}{
		{`UPDATE invoices SET customer_id = customer_id, room = room WHERE id = 'i'`, nil},
		{`UPDATE invoices SET customer_id = customer_id, seat = seat WHERE id = 'j'`, nil},
		{`UPDATE invoices SET customer_id = 2 WHERE id = 'none'`, nil},
		{`UPDATE invoices SET customer_id = 2 WHERE id = 'i'`, []string{one}},
		{`UPDATE invoices SET customer_id = NULL WHERE id = 'i'`, []string{one}},
		{`UPDATE invoices SET seat = NULL WHERE id = 'i'`, []string{seat}},
		{`UPDATE invoices SET room = 'a,b', seat = 1 WHERE id = 'j'`, nil},
		{`UPDATE invoices SET id = 'k' WHERE id = 'i'`, []string{one, seat}},
		{`UPDATE invoices SET id = 'k', customer_id = 2 WHERE id = 'i'`, []string{one, seat}},
		{`UPDATE invoices SET customer_id = customer_id`, nil},
		{`UPDATE invoices SET customer_id = 1`, []string{two}},
		{`UPDATE invoices SET customer_id = 3 - customer_id`, []string{one, two}},
		{`UPDATE invoices SET id = id || id`, []string{one, two, seat}},
		{`DELETE FROM invoices`, []string{one, two, seat}},
		{`DELETE FROM invoices WHERE id = 'none'`, nil},
	} {
		tx, err := a.shop.Begin(ctx)
		require.NoError(t, err)
		a.exec(a.shop, c.sql)
		found := a.rows(a.shop,
			`SELECT f.name FROM dbcontroller.work w JOIN dbcontroller.foreign_target f ON f.id = w.target_id WHERE w.action = `+strconv.Itoa(int(schema.LookAtRight)))
		require.Empty(t, a.rows(a.shop, `SELECT name FROM dbcontroller.deleted_row`))
		require.NoError(t, tx.Rollback(ctx))
		require.ElementsMatch(t, c.looks, found, c.sql)
	}
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}
