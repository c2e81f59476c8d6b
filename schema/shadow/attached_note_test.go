package shadow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// noted returns the notes of values without a right.
func (a *attached) noted() []string {
	a.t.Helper()
	return a.rows(a.shop,
		`SELECT path || ' ' || texts || CASE WHEN missing THEN ' missing' ELSE '' END || CASE WHEN lost THEN ' lost' ELSE '' END FROM dbcontroller.lacking ORDER BY 1`)
}

// An async statement notes each distinct value whose right is not there, and nothing else. Rows whose value
// has its right count from their commit, and nothing is stored of any row.
func TestAsyncStatementsNoteValuesWithoutARight_I34(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers SELECT generate_series(1, 9); INSERT INTO seats VALUES ('a"b', 1)`)
	a.attach()
	for _, c := range []struct {
		sql   string
		noted []string
	}{
		{`INSERT INTO invoices (id, customer_id) VALUES ('1', 1)`, []string{`customer_id ["1"]`}},
		{`INSERT INTO invoices (id, customer_id) VALUES ('2', 1)`, nil},
		{
			`INSERT INTO invoices (id, customer_id) SELECT 'm' || g, 1 + g % 3 FROM generate_series(1, 100) g`,
			[]string{`customer_id ["2"]`, `customer_id ["3"]`},
		},
		{
			`INSERT INTO invoices (id, room, seat) VALUES ('r', 'a"b', 1), ('s', 'a"b', NULL)`,
			[]string{`room__seat ["a\"b","1"]`},
		},
		{`INSERT INTO invoices (id) VALUES ('7'), ('8'), ('9')`, nil},
		{`UPDATE invoices SET customer_id = customer_id`, nil},
		{`UPDATE invoices SET customer_id = 4 WHERE id = '9'`, []string{`customer_id ["4"]`}},
		{`UPDATE invoices SET id = id || 'x' WHERE id < '4'`, nil},
		{
			`UPDATE invoices SET customer_id = 5 + length(id) % 2 WHERE customer_id = 1`,
			[]string{`customer_id ["5"]`, `customer_id ["6"]`},
		},
		{`DELETE FROM invoices WHERE customer_id = 2`, nil},
		{
			`BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO invoices (id, customer_id) VALUES ('rr', 3); COMMIT`,
			[]string{`customer_id ["3"]`},
		},
		{
			`INSERT INTO orders (customer_id, approver_id, approver_region) VALUES (1, 2, 'eu'), (1, 2, NULL)`,
			[]string{`approver_id ["2","eu"]`, `customer_id ["1"]`},
		},
	} {
		a.exec(a.shop, c.sql)
		require.ElementsMatch(t, c.noted, a.noted(), c.sql)
		a.Settle()
		require.Empty(t, a.noted(), c.sql)
		require.Empty(t, a.verify(shop, false), c.sql)
	}
	a.SetDown(crm, true)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('exact', 6)`)
	require.Empty(t, a.noted(), "it is written under the right")
	a.SetDown(crm, false)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 6`)
	a.exec(a.crm, `DELETE FROM customers WHERE id IN (7, 8)`)
	require.Zero(t, a.Count(shop, "reference"))
	require.Zero(t, a.Count(shop, "shadow"))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// An async statement does not wait: not for a right that is about to end, and not for another statement that
// notes the same value.
func TestAsyncStatementsWaitForNobody_R11(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1), (2)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('a', 1)`)
	a.Settle()
	// as a process that ends the right
	locker := a.connect(shop, `BEGIN; SELECT FROM dbcontroller.foreign_target WHERE name = 'customers/1' FOR UPDATE`)
	other := a.connect(shop, `BEGIN; INSERT INTO invoices (id, customer_id) VALUES ('b', 2)`)
	a.exec(a.shop, `SET lock_timeout = '10s'; INSERT INTO invoices (id, customer_id) VALUES ('c', 1), ('d', 2)`)
	require.Equal(t, []string{`customer_id ["1"]`, `customer_id ["2"]`}, a.noted())
	a.exec(locker, `ROLLBACK`)
	a.exec(other, `COMMIT`)
	require.Equal(t, []string{`customer_id ["1"]`, `customer_id ["2"]`, `customer_id ["2"]`}, a.noted())
	a.Settle()
	require.Empty(t, a.noted())
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Rows of a target that does not exist are acted upon as declared, unless a later row names it, which may
// have been written after the target came.
func TestALaterNoteKeepsRowsOfAMissingTarget(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.attach()
	a.exec(a.shop, `INSERT INTO invoices (id, room, seat) VALUES ('old', 'r', 1)`)
	late := a.connect(shop, ``)
	a.OnEstablish = func(schema.DeploymentID, peer.AttemptID, []peer.EstablishReference) error {
		a.OnEstablish = nil
		a.exec(late, `INSERT INTO invoices (id, room, seat) VALUES ('late', 'r', 1)`)
		return nil
	}
	_, err := a.Stores[a.ID(shop)].RightRequests.AcquireForRows(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"late", "old"},
		a.rows(a.shop, `SELECT id FROM invoices WHERE room IS NOT NULL ORDER BY 1`))
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT id FROM invoices WHERE room IS NOT NULL ORDER BY 1`), "unset")
	require.Empty(t, a.noted())
}

// A row that names another target when a deletion reaches it stays.
func TestADeletionLeavesRowsThatHaveMoved_I10(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers SELECT generate_series(1, 3)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) SELECT 1, 'moves' FROM generate_series(1, 5)`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Capture(a.ID(crm))
	a.exec(a.shop, `UPDATE orders SET customer_id = 2`)
	_, err := a.Act(a.ID(shop), a.ID(crm))
	require.NoError(t, err)
	require.Len(t, a.rows(a.shop, `SELECT note FROM orders`), 5)
	a.Settle()
	require.Len(t, a.rows(a.shop, `SELECT note FROM orders`), 5)
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Rows count from their commit for each tidying, recall, return, and delete.
func TestRowsOfAStatementCountFromItsCommit_I1_I3_I31(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO invoices (id, customer_id) SELECT g, 1 FROM generate_series(1, 5) g`)
	a.exec(a.shop, `UPDATE dbcontroller.foreign_target SET kept_until = now()`)
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/")
	_, err = a.Stores[a.ID(shop)].Admin.Tidy(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool { // it looks at the right
		a.AnswerRequests(shop)
		_, err := a.Do(a.ID(shop), schema.LookAtRight)
		require.NoError(t, err)
		return a.rows(a.shop,
			`SELECT count(*)::text FROM dbcontroller.foreign_target WHERE kept_until IS NOT NULL AND block_attempt IS NOT NULL`)[0] == "0"
	}, wait.Limit, 50*time.Millisecond)
	require.Equal(t, []string{"true"},
		a.rows(a.shop,
			`SELECT (block_epoch IS NOT NULL)::text FROM dbcontroller.foreign_target WHERE name = 'customers/1'`))
	a.Settle()
	_, err = a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/")
	require.Zero(t, a.Count(shop, "reference"))

	a.write(`INSERT INTO orders (customer_id) SELECT 2 FROM generate_series(1, 4)`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 2`)
	a.Capture(a.ID(crm))
	done, err := a.Act(a.ID(shop), a.ID(crm))
	require.NoError(t, err)
	require.NotZero(t, done)
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	require.Equal(t, []string{"4"},
		a.rows(a.shop, `SELECT count(*)::text FROM dbcontroller.removal WHERE name LIKE 'orders/%'`))
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}
