package shadow_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// The targets' database is replaced by an earlier copy. Rows whose targets it has are joined to them again,
// under new uids; rows whose targets are lost are reported, also where missing targets are unset: the targets
// were not deleted.
func TestRowsOfLostTargets_I1_I8(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	ctx := context.Background()
	a.exec(a.crm, `INSERT INTO customers VALUES (1), (2); INSERT INTO seats VALUES ('old', 1)`)
	a.attach()
	require.NoError(t, a.crm.Close(ctx))
	restore := a.Backup(crm)
	a.crm = a.connect(crm, ``)
	a.exec(a.crm, `INSERT INTO customers VALUES (3); INSERT INTO seats VALUES ('new', 1)`)
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (2, 'follows'), (3, 'lost')`)
	a.exec(a.shop, `INSERT INTO invoices VALUES ('1', 1, 'old', 1), ('3', 3, 'new', 1)`)
	a.Settle()
	require.Equal(t, 5, a.Count(crm, "shadow"))

	require.NoError(t, a.crm.Close(ctx))
	restore()
	a.Recover(crm)
	a.crm = a.connect(crm, ``)
	a.Settle()
	a.again()
	a.again()
	require.Equal(t, []string{"1 1 old", "3 3 new"},
		a.rows(a.shop, `SELECT concat_ws(' ', id, customer_id, room) FROM invoices ORDER BY id`))
	require.Equal(t, []string{`Invoice ["3"]`, `Invoice ["new","1"]`, `Order ["3"]`},
		a.rows(a.shop,
			`SELECT a.kind || ' ' || l.texts FROM dbcontroller.lacking l JOIN dbcontroller.attachment a USING (kind_id) WHERE missing AND lost ORDER BY 1`))
	require.Zero(t, a.Count(shop, "dangling"))
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)
	_ = a.refused(a.crm, `DELETE FROM seats`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 2`)
	a.Settle()
	require.Equal(t, []string{"lost"}, a.rows(a.shop, `SELECT note FROM orders`))

	a.exec(a.crm, `INSERT INTO customers VALUES (3); INSERT INTO seats VALUES ('new', 1)`)
	a.again()
	require.Empty(t, a.noted())
	_ = a.refused(a.crm, `DELETE FROM seats WHERE room = 'new'`)
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A restore has brought back the target that had a name before: rows refer to it, although the lost one was
// known later.
func TestRowsReferToTheTargetThatARestoreBroughtBack_I1(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (1, 'goes')`)
	a.Settle()
	// a lost one
	a.exec(a.shop,
		`INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name) SELECT gen_random_uuid(), deployment_id, kind_id, name FROM dbcontroller.foreign_target`)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('i', 1)`)
	a.Settle()
	a.tidies(shop)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/i")
	a.exec(a.shop, `DELETE FROM invoices`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT note FROM orders`))
}

// Columns of two regions name rows of two databases.
func TestAttachedTablesFollowTheRegionColumn(t *testing.T) {
	t.Parallel()
	const us = "crm.example.com/us"
	a := &attached{Box: harness.NewBox(t, attachedServices, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, us, shop), t: t}
	tables := `CREATE TABLE customers (id bigint PRIMARY KEY); CREATE TABLE seats (room text, number integer, PRIMARY KEY (room, number));
GRANT ALL ON customers, seats TO dbcontroller_box_serving; INSERT INTO customers VALUES (1)`
	a.crm = a.connect(crm, tables)
	inUS := a.connect(us, tables)
	a.shop = a.connect(shop, `
CREATE TABLE orders (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), customer_id bigint, approver_id bigint, approver_region text, note text);
CREATE TABLE invoices (id text PRIMARY KEY, customer_id bigint, room text, seat integer);
CREATE INDEX ON orders (customer_id); CREATE INDEX ON orders (approver_id); CREATE INDEX ON invoices (customer_id); CREATE INDEX ON invoices (room, seat);
GRANT ALL ON orders, invoices TO dbcontroller_box_serving`)
	a.attach()
	plans, err := attach.Prepare(t.Context(), inUS, a.Stores[a.ID(us)].Model(), false)
	require.NoError(t, err)
	for _, p := range plans {
		require.NoError(t, attach.Apply(t.Context(), inUS, p, func(error) {}))
	}
	a.Capture(a.ID(us))
	a.exec(a.shop, `INSERT INTO orders (approver_id, approver_region, note) VALUES (1, 'eu', 'eu'), (1, 'us', 'us')`)
	a.Settle()
	a.exec(inUS, `DELETE FROM customers`)
	a.Settle()
	require.Equal(t, []string{"eu"}, a.rows(a.shop, `SELECT note FROM orders WHERE approver_id IS NOT NULL`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A process that has not noticed an attachment deletes the rows of the resources that it deletes, and unsets
// their columns.
func TestAProcessThatHasNotNoticedAnAttachment_I1(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1), (2), (3)`)
	behind := map[string]*shadow.Store{
		crm:  a.SecondProcess(crm, shadow.Config{Delegations: true}),
		shop: a.SecondProcess(shop, shadow.Config{Delegations: true}),
	}
	a.attach()
	a.exec(a.shop,
		`INSERT INTO orders (customer_id, note) VALUES (1, 'goes'); INSERT INTO orders (approver_id, approver_region, note) VALUES (2, 'eu', 'unset')`)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('i', 3)`)
	a.Settle()
	noticed := a.Stores[a.ID(shop)]
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 2`)
	a.Capture(a.ID(crm))
	a.Stores[a.ID(shop)] = behind[shop]
	_, err := a.Act(a.ID(shop), a.ID(crm))
	require.NoError(t, err)
	require.Equal(t, []string{"unset"}, a.rows(a.shop, `SELECT note FROM orders WHERE approver_id IS NULL`))
	a.Stores[a.ID(shop)] = noticed
	a.exec(a.shop, `DELETE FROM invoices`)
	a.Settle()
	a.Stores[a.ID(crm)] = behind[crm]
	a.MustDelete("//" + crm + "/customers/3")
	require.Equal(t, []string{}, a.rows(a.crm, `SELECT id::text FROM customers`))
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A row is deleted after its value was read, and before the right to its target is there: the right is
// returned.
func TestARowThatIsDeletedWhileItsRightIsAcquired_I1_I8(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('i', 1)`)
	a.AfterEstablish = func() { a.exec(a.shop, `DELETE FROM invoices`) }
	a.Capture(a.ID(shop))
	a.AfterEstablish = nil
	a.Settle()
	require.Empty(t, a.noted())
	a.tidies(shop)
	a.exec(a.crm, `DELETE FROM customers`)
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// The targets' database is replaced by a copy from before a right was given, while a transaction of the
// holders is prepared that has written under this right. The comparison waits for that transaction: its row
// counts after the recovery, and blocks.
func TestAPreparedTransactionBesideARestore_I1_I8_I30(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	require.NoError(t, a.crm.Close(ctx))
	restore := a.Backup(crm)
	a.crm = a.connect(crm, ``)
	a.acquire([]string{"BLOCK " + customer("2"), "ACT " + customer("3")})
	a.exec(a.shop,
		`BEGIN; INSERT INTO invoices (id, customer_id) VALUES ('p', 2); INSERT INTO orders (customer_id, note) VALUES (3, 'p'); PREPARE TRANSACTION 'restored'`)

	require.NoError(t, a.crm.Close(ctx))
	restore()
	a.Recover(crm)
	a.crm = a.connect(crm, ``)
	a.again()
	_, err := a.Delete(customer("2"))
	require.Error(t, err, "the holders have not confirmed their references: one of them is prepared")
	_ = a.lacks(`INSERT INTO invoices (id, customer_id) VALUES ('q', 2)`)

	a.exec(a.shop, `COMMIT PREPARED 'restored'`)
	a.again()
	a.again()
	require.Empty(t, a.noted())
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 3`)
	a.Settle()
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	require.Equal(t, []string{"p 2"}, a.rows(a.shop, `SELECT concat_ws(' ', id, customer_id) FROM invoices`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A key is used again while another deployment has not acknowledged the deletion of the row that had it: the
// statement waits, and fails in words, at once where it cannot come true. So no row that is written to the
// new one goes with the old one (R4).
func TestAKeyIsUsedAgainWhenItsDeletionIsAcknowledged_I1(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]string{
		"by an insert":                `INSERT INTO customers VALUES (1)`,
		"by an update":                `UPDATE customers SET id = 1 WHERE id = 9`,
		"above read committed":        `BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO customers VALUES (1)`,
		"in the same transaction":     `BEGIN; DELETE FROM customers WHERE id = 2; INSERT INTO customers VALUES (2)`,
		"in the same transaction, MV": `BEGIN; DELETE FROM customers WHERE id = 2; UPDATE customers SET id = 2 WHERE id = 9`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttached(t)
			a.exec(a.crm, `INSERT INTO customers VALUES (1), (2), (3), (9)`)
			a.attach()
			a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (1, 'old'), (2, 'two')`)
			a.Settle()
			a.exec(a.crm, `DELETE FROM customers WHERE id = 3; INSERT INTO customers VALUES (3)`) // no row refers to it
			a.SetDown(shop, true)
			a.exec(a.crm, `SET dbcontroller.reuse_wait = '20ms'; DELETE FROM customers WHERE id = 1`)
			for _, carriedOut := range []bool{false, true} {
				if carriedOut {
					a.Capture(a.ID(crm))
				}
				_, err := a.crm.Exec(t.Context(), again)
				var pg *pgconn.PgError
				require.ErrorAs(t, err, &pg)
				require.Equal(t, "55006", pg.Code, pg.Message)
				require.Contains(t, pg.Message, "is not acknowledged by //"+shop)
				a.exec(a.crm, `ROLLBACK`)
			}
			a.SetDown(shop, false)
			a.Settle()
			a.exec(a.crm, `INSERT INTO customers VALUES (1)`)
			a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (1, 'new')`)
			a.Settle()
			require.Equal(t, []string{"new", "two"}, a.rows(a.shop, `SELECT note FROM orders ORDER BY 1`))
			require.Empty(t, harness.AuditDatabases(t, a.Pools))
		})
	}
}

// A deleted row waits for a tentative blockade whose attempt is lost; when it has expired, Settle ends the
// deletion.
func TestADeletionEndsWithTheLastBlockade_I13(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id) VALUES (1)`)
	a.AfterEstablish = func() { a.exec(a.shop, `DELETE FROM orders`) }
	a.Capture(a.ID(shop))
	a.AfterEstablish = nil
	a.exec(a.shop, `DELETE FROM dbcontroller.work; DELETE FROM dbcontroller.attempt`)
	a.exec(a.crm, `DELETE FROM customers`)
	a.Settle()
	require.Equal(t, 1, a.Count(crm, "deleting"))
	a.Expire(crm)
	a.Settle()
	require.Zero(t, a.Count(crm, "deleting"))
}
