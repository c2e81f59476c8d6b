package shadow_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// shared returns the names of the targets whose rights open transactions share, as another transaction sees
// it.
func (a *attached) shared() []string {
	a.t.Helper()
	return a.rows(a.connect(shop, ``), `
WITH free AS MATERIALIZED (SELECT id FROM dbcontroller.foreign_target FOR UPDATE SKIP LOCKED)
SELECT name FROM dbcontroller.foreign_target WHERE id NOT IN (SELECT id FROM free) ORDER BY 1`)
}

// A statement about one row shares the right to its one target, by any of the references that name it, and
// nothing else. The row counts from its commit.
func TestAStatementSharesTheRightsThatItNeeds(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (1, 2, 'eu', 'both')`)
	a.acquire([]string{"BLOCK " + customer("1"), "BLOCK //" + crm + "/seats/a%5C,b,1"})
	a.Settle()
	for _, c := range []struct {
		sql    string
		shares []string
	}{
		{
			`INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (1, 2, 'eu', 'two')`,
			[]string{"customers/1", "customers/2"},
		},
		{`INSERT INTO orders (customer_id, note) VALUES (1, 'one')`, []string{"customers/1"}},
		{`INSERT INTO orders (approver_id, approver_region, note) VALUES (2, 'eu', 'one')`, []string{"customers/2"}},
		{`INSERT INTO invoices VALUES ('i', 1)`, []string{"customers/1"}},
		{`INSERT INTO invoices VALUES ('j', NULL, 'a,b', 1)`, []string{"seats/a%5C,b,1"}},
		{`INSERT INTO invoices VALUES ('k', NULL, 'a,b', NULL)`, []string{}},
		{`UPDATE orders SET customer_id = 2 WHERE note = 'both'`, []string{"customers/2"}},
		{`UPDATE orders SET customer_id = 2, approver_id = 1 WHERE note = 'both'`, []string{"customers/1"}},
		{`UPDATE orders SET approver_region = NULL WHERE note = 'both'`, []string{}},
	} {
		a.exec(a.shop, `BEGIN; `+c.sql)
		require.Equal(t, c.shares, a.shared(), c.sql)
		require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM dbcontroller.deleted_row`), c.sql)
		a.exec(a.shop, `COMMIT`)
		if strings.Contains(c.sql, "'i', 1") {
			_, err := a.Delete(customer("1"))
			require.ErrorContains(t, err, "invoices/i", "before it is read")
		}
		a.Settle()
	}
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A right that ends while a statement waits for its lock is not taken: PostgreSQL looks at its row again. Nor
// is one of two with the same name.
func TestOneRowTakesNoRightThatHasEnded(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO invoices VALUES ('i', 1)`)
	a.Settle()
	for _, end := range []string{`block_epoch = NULL, block_own = NULL`, `block_own = gen_random_uuid()`} {
		ender := a.connect(shop, `BEGIN; SELECT FROM dbcontroller.foreign_target FOR UPDATE`)
		failed := make(chan error, 1)
		writer := a.connect(shop, ``)
		go func() {
			_, err := writer.Exec(context.Background(), `INSERT INTO invoices VALUES ('late', 1)`)
			failed <- err
		}()
		require.Eventually(t, func() bool {
			return len(failed) > 0 ||
				a.rows(a.shop,
					`SELECT count(*)::text FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'`)[0] == "1"
		}, wait.Limit, 10*time.Millisecond)
		a.exec(ender,
			`CREATE TEMPORARY TABLE had AS SELECT * FROM dbcontroller.foreign_target; UPDATE dbcontroller.foreign_target SET `+end+`; COMMIT`)
		var pg *pgconn.PgError
		require.True(t, errors.As(<-failed, &pg), end)
		require.Equal(t, "RD001", pg.Code, end)
		a.exec(ender,
			`UPDATE dbcontroller.foreign_target f SET block_epoch = h.block_epoch, block_own = h.block_own FROM had h WHERE f.id = h.id`)
	}
	a.exec(a.shop, `INSERT INTO invoices VALUES ('in time', 1)`)
	a.Settle()

	a.exec(a.shop, `BEGIN;
INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name, block_epoch, block_own)
SELECT gen_random_uuid(), deployment_id, kind_id, name, block_epoch, block_own FROM dbcontroller.foreign_target`)
	require.Equal(t, []string{"BLOCK " + customer("1")}, a.lacks(`INSERT INTO invoices VALUES ('of two', 1)`))
	a.exec(a.shop, `ROLLBACK`)
	require.Equal(t, []string{"2"}, a.rows(a.shop, `SELECT count(*)::text FROM invoices`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A statement that waits for the lock of a right while its deployment loses the epoch takes the right: its
// row is compared like all others.
func TestOneRowTakesALostRightThatIsCompared_I1_I30(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	require.NoError(t, a.crm.Close(ctx))
	restore := a.Backup(crm) // without the right
	a.acquire([]string{"ACT " + customer("4")})
	locker := a.connect(shop, `BEGIN; SELECT FROM dbcontroller.foreign_target FOR UPDATE`)
	written := make(chan error, 1)
	go func() {
		_, err := a.shop.Exec(ctx, `INSERT INTO orders (customer_id, note) VALUES (4, 'waits')`)
		written <- err
	}()
	require.Eventually(t, func() bool {
		return a.rows(locker,
			`SELECT count(*)::text FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'`)[0] == "1"
	}, wait.Limit, 10*time.Millisecond)
	restore()
	a.Recover(crm)
	a.crm = a.connect(crm, ``)
	a.Settle()
	waits := `SELECT unconfirmed::text FROM dbcontroller.deployment WHERE service = 'shop.example.com'`
	require.Equal(t, []string{"true"}, a.rows(a.crm, waits), "the statement may take a right that the restore has lost")
	a.exec(locker, `COMMIT`)
	require.NoError(t, <-written)
	a.Settle()
	a.again()
	a.again()
	require.Equal(t, []string{"false"}, a.rows(a.crm, waits))
	a.exec(a.crm, `DELETE FROM customers WHERE id = 4`)
	a.Settle()
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}
