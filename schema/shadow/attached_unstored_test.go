package shadow_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// unstorable is the key of a row that can be no name of a resource: its references are never stored.
const unstorable = `repeat('ü', 300)`

// A row that cannot be stored is there all the same: it blocks, by its name as far as that can be shown, and
// the right is returned when it goes.
func TestARowThatCannotBeStoredBlocks_I3(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO invoices (id, customer_id) VALUES (` + unstorable + `, 1)`)
	a.Settle()
	require.Zero(t, a.Count(shop, "reference"))
	a.returned()
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/üü")
	a.exec(a.shop, `DELETE FROM invoices`)
	a.returned()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Settle()
	require.Zero(t, a.Count(crm, "deleting"))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// After a failover of the target's database the rights of such rows are claimed before a target is deleted
// there, and the comparison ends.
func TestRowsThatCannotBeStoredAreClaimed_I1_I30(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	require.NoError(t, a.crm.Close(context.Background()))
	restore := a.Backup(crm) // without the right
	a.write(`INSERT INTO invoices (id, customer_id) VALUES (` + unstorable + `, 1)`)
	a.Settle()
	restore()
	a.Recover(crm)
	a.crm = a.connect(crm, ``)
	a.Settle()
	a.again()
	a.again()
	require.Equal(t, []string{"false"},
		a.rows(a.crm, `SELECT unconfirmed::text FROM dbcontroller.deployment WHERE service = 'shop.example.com'`),
		"the comparison has ended")
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/üü")
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A deletion reaches rows that are not stored, removes or unsets them, and leaves rows that name a later
// target of the same name.
func TestADeletionReachesRowsThatAreNotStored_I1_I4(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(
		`INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (1, 2, 'eu', 'one'), (3, 2, 'eu', 'three'), (2, 4, 'eu', 'two')`)
	a.exec(a.crm, `DELETE FROM customers WHERE id IN (1, 2)`)
	a.Settle()
	require.Equal(t, []string{"three"}, a.rows(a.shop, `SELECT note FROM orders WHERE approver_id IS NULL`))
	require.Equal(t, []string{"1"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	require.Equal(t, []string{"2"},
		a.rows(a.shop, `SELECT count(*)::text FROM dbcontroller.removal WHERE name LIKE 'orders/%'`))
	require.Zero(t, a.Count(crm, "deleting"))

	// An old process wakes up: the name has another target by now.
	a.exec(a.crm, `INSERT INTO customers VALUES (3, 'x') ON CONFLICT DO NOTHING`)
	a.exec(a.shop,
		`INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name) SELECT gen_random_uuid(), deployment_id, kind_id, name FROM dbcontroller.foreign_target WHERE name = 'customers/3'`)
	// an earlier one
	a.exec(a.shop,
		`UPDATE dbcontroller.foreign_target SET id = -id, latest = -latest WHERE name = 'customers/3' AND acting_epoch IS NULL`)
	var uid uuid.UUID
	require.NoError(t,
		a.shop.QueryRow(t.Context(),
			`SELECT uid FROM dbcontroller.foreign_target WHERE name = 'customers/3' AND id < 0`).Scan(&uid))
	failed, err := a.Stores[a.ID(shop)].Follow.ActFor(t.Context(), a.ID(crm),
		[]schema.Deletion{{Seq: 1, Kind: "Customer", Name: "customers/3", UID: uid}}, time.Minute)
	require.NoError(t, err)
	require.Empty(t, failed)
	require.Equal(t, []string{"three"}, a.rows(a.shop, `SELECT note FROM orders`), "it names the later one")
}

// A row whose reference may dangle stays, and so does one whose resource waits in DELETING, for a finalizer
// or a blocker of its own. A row that is a resource for another reason goes as one, with all that follows.
func TestADeletionLeavesRowsThatStay_I1_I4(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(
		`INSERT INTO orders (customer_id, note) VALUES (1, 'waits'), (1, 'resource'), (3, 'other'), (1, 'key of one that waits')`)
	a.Settle()
	a.exec(a.shop, `
WITH s AS (
    INSERT INTO dbcontroller.shadow (uid, kind_id, state, hidden, shard, revision, generation, name)
    SELECT gen_random_uuid(), a.kind_id, CASE WHEN o.note LIKE '%waits' THEN 2 ELSE 1 END, o.note LIKE 'key%', 1, 1, 1, 'orders/' || o.id FROM orders o, dbcontroller.attachment a WHERE a.kind = 'Order' RETURNING id
)
INSERT INTO dbcontroller.resource (id, body) SELECT id, '{}' FROM s`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	for range 3 {
		a.Settle()
	}
	require.Equal(t, []string{"other", "waits"}, a.rows(a.shop, `SELECT note FROM orders ORDER BY 1`))
	require.Equal(t, []string{"2"},
		a.rows(a.shop, `SELECT count(*)::text FROM dbcontroller.removal WHERE name LIKE 'orders/%'`))
	require.Zero(t, a.Count(crm, "deleting"), "it is acknowledged")

	services := strings.Replace(attachedServices, "region: eu, behaviour: CASCADE_DELETE",
		"region: eu, enforce: strict, behaviour: ALLOW_DANGLING", 1)
	b := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	b.tables()
	b.exec(b.crm, `INSERT INTO customers VALUES (1, 'c')`)
	b.attach()
	b.write(`INSERT INTO orders (customer_id, note) VALUES (1, 'dangles')`)
	b.exec(b.crm, `DELETE FROM customers WHERE id = 1`)
	b.Settle()
	require.Equal(t, []string{"dangles"}, b.rows(b.shop, `SELECT note FROM orders`))
}
