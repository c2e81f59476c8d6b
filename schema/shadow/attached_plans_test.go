package shadow_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/wait"
)

const (
	manyTargetsSQL = `
SET statement_timeout = 0; SET session_replication_role = replica;
INSERT INTO customers SELECT g, 'many' FROM generate_series(1000, 999 + %[1]d) g;
WITH s AS (
    INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
    SELECT gen_random_uuid(), (SELECT kind_id FROM dbcontroller.attachment WHERE kind = 'Customer'), 1, 1, g, 1, 'customers/' || g FROM generate_series(100000, 99999 + %[1]d) g
    RETURNING id
), r AS (
    INSERT INTO dbcontroller.resource (id, body) SELECT id, '{}' FROM s
), e AS (
    INSERT INTO dbcontroller.holder_entry SELECT id, (SELECT id FROM dbcontroller.deployment WHERE service = 'shop.example.com') FROM s
)
INSERT INTO dbcontroller.blockade (target_id, holder_uid, attempt, field_id, deployment_id, holder_kind_id, behaviour, holder_name)
SELECT id, gen_random_uuid(), gen_random_uuid(), 1, (SELECT id FROM dbcontroller.deployment WHERE service = 'shop.example.com'), 1, 1, 'invoices/x' FROM s;
RESET session_replication_role; RESET statement_timeout; ANALYZE`

	manyHoldersSQL = `
SET statement_timeout = 0; SET session_replication_role = replica;
INSERT INTO orders (id, customer_id, note) SELECT gen_random_uuid(), 7, 'many' FROM generate_series(1, %[1]d) g;
INSERT INTO invoices (id) SELECT 'many' || g FROM generate_series(1, %[1]d) g;
INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name)
SELECT gen_random_uuid(), (SELECT id FROM dbcontroller.deployment WHERE service = 'crm.example.com'), 1, 'customers/' || g FROM generate_series(100000, 99999 + %[1]d) g;
INSERT INTO dbcontroller.lacking (kind_id, path, texts, target, problem, missing, tries, due)
SELECT (SELECT kind_id FROM dbcontroller.attachment WHERE kind = 'Order'), 'customer_id', '["' || g || '"]', '//crm.example.com/eu/customers/' || g, 'waits', true, 20, now() + interval '1 hour'
FROM generate_series(100000, 99999 + %[1]d) g;
RESET session_replication_role; RESET statement_timeout; ANALYZE`

	// Rows that sequential scans have read, of tables that grow.
	scannedSQL = `
SELECT relname, seq_tup_read FROM pg_stat_user_tables
WHERE relname IN ('shadow', 'resource', 'reference', 'foreign_target', 'blockade', 'holder_entry', 'deleted_row', 'lacking', 'attempt', 'customers', 'orders', 'invoices')`
)

// Statements of the triggers, and statements that look for rows and rights, find their rows by keys, for any
// number of rows. DBCONTROLLER_TEST_ROWS is their number.
func TestNothingReadsAWholeAttachedTable(t *testing.T) {
	if testing.Short() {
		t.Skip("fills tables")
	}
	t.Parallel()
	n, err := strconv.Atoi(os.Getenv("DBCONTROLLER_TEST_ROWS"))
	if err != nil {
		n = 10_000
	}
	a := newAttached(t)
	ctx := context.Background()
	a.exec(a.crm, `INSERT INTO customers SELECT generate_series(1, 20)`)
	a.exec(a.shop, `CREATE INDEX ON invoices (customer_id)`)
	a.attach()
	a.exec(a.shop,
		`INSERT INTO orders (customer_id, note) SELECT g, 'few' FROM generate_series(1, 10) g; INSERT INTO invoices (id, customer_id) VALUES ('i', 11)`)
	a.Settle()
	a.exec(a.crm, fmt.Sprintf(manyTargetsSQL, n))
	a.exec(a.shop, fmt.Sprintf(manyHoldersSQL, n))
	before := [2]map[string]int64{a.scanned(a.crm), a.scanned(a.shop)}

	a.exec(a.crm,
		`INSERT INTO customers SELECT generate_series(21, 30); UPDATE customers SET name = 'x' WHERE id < 25; DELETE FROM customers WHERE id = 21`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 11`)
	_ = a.refused(a.crm, `UPDATE customers SET id = -1 WHERE id = 2`)
	a.exec(a.crm, `UPDATE customers SET id = -1 WHERE id = 22; DELETE FROM customers WHERE id BETWEEN 1000 AND 3000`)
	a.exec(a.crm, `DELETE FROM customers WHERE id IN (1, 2, 3)`)
	a.exec(a.shop,
		`INSERT INTO orders (customer_id, note) VALUES (12, 'few'); UPDATE orders SET customer_id = 13 WHERE customer_id = 12`)
	a.exec(a.shop,
		`DELETE FROM orders WHERE customer_id = 4; UPDATE invoices SET customer_id = 5 WHERE id = 'i'; DELETE FROM invoices WHERE id = 'many1'`)
	for _, id := range []string{crm, shop} { // not Settle, which counts all rows itself
		// it looks for pauses that are too long at once
		started := a.SecondProcess(id, shadow.Config{Delegations: true})
		for range 4 {
			for _, store := range []*shadow.Store{started, a.Stores[a.ID(id)]} {
				_, err := store.DeletedRows.DeleteRows(ctx)
				require.NoError(t, err)
				_, err = store.RightRequests.AcquireForRows(ctx)
				require.NoError(t, err)
			}
		}
	}
	_, err = a.Act(a.ID(shop), a.ID(crm))
	require.NoError(t, err)
	require.Equal(t, []string{"0"},
		a.rows(a.shop, `SELECT count(*)::text FROM orders WHERE customer_id BETWEEN 1 AND 4`))

	for i, conn := range []*pgx.Conn{a.crm, a.shop} {
		for table, read := range a.scanned(conn) {
			if table != "orders" { // the statements above read it, which has an index, as the planner likes
				require.Less(t, read-before[i][table], int64(n/2), "%s of %s was read in sequence", table,
					[]string{crm, shop}[i])
			}
		}
	}
}

const endIdleSQL = `
WITH s AS MATERIALIZED (
    SELECT pid, now() - state_change > '3100 ms' AS idle FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'test' AND pid <> pg_backend_pid()
)
SELECT coalesce(bool_and(CASE WHEN idle THEN pg_terminate_backend(pid, 5000) ELSE false END), true) FROM s`

// scanned ends the sessions of the stores, which then report the rows that they read; otherwise they would
// report at their next statement, or after ten seconds. The pools look at connections that were idle for
// three seconds before they use them.
func (a *attached) scanned(conn *pgx.Conn) map[string]int64 {
	a.t.Helper()
	for _, pool := range a.Pools {
		require.Eventually(a.t, func() bool {
			var ended bool
			require.NoError(a.t, pool.QueryRow(context.Background(), endIdleSQL).Scan(&ended))
			return ended
		}, wait.Limit, wait.Poll)
		pool.Reset()
	}
	a.exec(conn, `SELECT pg_stat_force_next_flush()`)
	found, err := conn.Query(context.Background(), scannedSQL)
	require.NoError(a.t, err)
	out := map[string]int64{}
	var table string
	var n int64
	_, err = pgx.ForEachRow(found, []any{&table, &n}, func() error { out[table] = n; return nil })
	require.NoError(a.t, err)
	return out
}
