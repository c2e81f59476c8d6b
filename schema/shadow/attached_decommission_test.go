package shadow_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// A transaction that has used a right before the deployment of its target is decommissioned commits its row,
// and the row is acted upon: the clean-up ends when no right is left. One with an older snapshot uses none
// afterwards.
func TestStrictTablesBesideADecommissioning_I15_I31(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO orders (customer_id, note) VALUES (1, 'old'), (3, 'old')`)
	a.write(`INSERT INTO invoices (id, customer_id) VALUES ('old', 2), ('older', 4)`)
	a.Settle()
	ctx := context.Background()
	begin := func(level pgx.TxIsoLevel) pgx.Tx {
		tx, err := a.connect(shop, ``).BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
		require.NoError(t, err)
		_, err = tx.Exec(ctx, `SELECT count(*) FROM orders`) // its snapshot
		require.NoError(t, err)
		return tx
	}
	open, older := begin(pgx.ReadCommitted), begin(pgx.RepeatableRead)
	for _, sql := range []string{
		`INSERT INTO orders (customer_id, note) VALUES (1, 'open')`,
		`INSERT INTO invoices (id, customer_id) VALUES ('open', 2)`,
	} {
		_, err := open.Exec(ctx, sql)
		require.NoError(t, err)
	}
	a.SetDown(crm, true)
	decommission(t, a.Box, shop, crm, schema.CascadeDelete)
	// one right, one right to block, several rows, an update: the order alone refuses them
	for _, sql := range []string{
		`INSERT INTO orders (customer_id, note) VALUES (1, 'later')`,
		`INSERT INTO invoices (id, customer_id) VALUES ('later', 2)`,
		`INSERT INTO orders (customer_id, note) VALUES (1, 'later'), (1, 'later')`,
		`INSERT INTO orders (customer_id, note) VALUES (1, 'later'), (3, 'later')`,
		`INSERT INTO invoices (id, customer_id) VALUES ('later', 2), ('latest', 4)`,
		`UPDATE orders SET id = gen_random_uuid(), customer_id = 1`,
		`INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (1, 1, 'eu', 'later')`,
	} {
		_ = a.lacks(sql)
	}
	_, err := a.Do(a.ID(shop), schema.CleanUpDecommissioned)
	require.Error(t, err, "rights are in use")
	require.NotEmpty(t, a.Work(a.ID(shop)), "it is not over")
	var pg *pgconn.PgError
	require.NoError(t, open.Commit(ctx))
	a.Settle()
	require.Empty(t, a.Work(a.ID(shop)))
	_, err = older.Exec(ctx, `INSERT INTO orders (customer_id, note) VALUES (1, 'older')`)
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Equal(t, "40001", pg.Code, pg.Message)
	require.Empty(t, a.rows(a.shop, `SELECT note FROM orders UNION ALL SELECT id FROM invoices`))
	require.Zero(t, a.Count(shop, "reference"))
	_ = a.lacks(`INSERT INTO orders (customer_id, note) VALUES (1, 'new')`)
}

// Rows that are not stored, or cannot be, are acted upon as well: blocking rows, as the operator says.
func TestADecommissioningReachesRowsThatAreNotStored_I15(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(
		`INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (1, 2, 'eu', 'goes'), (NULL, 2, 'eu', 'unset')`)
	a.write(`INSERT INTO invoices (id, customer_id) VALUES (` + unstorable + `, 2), ('x', 3)`)
	decommission(t, a.Box, shop, crm, schema.Unset)
	a.Settle()
	require.Empty(t, a.Work(a.ID(shop)))
	require.Equal(t, []string{"unset"}, a.rows(a.shop, `SELECT note FROM orders WHERE approver_id IS NULL`))
	require.Equal(t, []string{"1"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	require.Equal(t, []string{"2"}, a.rows(a.shop, `SELECT count(*)::text FROM invoices WHERE customer_id IS NULL`))
}
