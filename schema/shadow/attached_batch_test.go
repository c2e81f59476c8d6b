package shadow_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

const notedSQL = `
SELECT 'note ' || name FROM dbcontroller.captured
UNION ALL SELECT 'batch of ' || rows || ' ' || (SELECT min(n) FROM unnest(names) AS n) || ' to ' || (SELECT max(n) FROM unnest(names) AS n) FROM dbcontroller.captured_batch
ORDER BY 1`

// A statement about several rows that refer to something notes them in a batch, and one about fewer a note each. Each is read.
func TestStatementsAboutSeveralRowsNoteBatches(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers SELECT generate_series(1, 5)`)
	a.attach()
	for _, c := range []struct {
		sql   string
		noted []string
	}{
		{`INSERT INTO invoices (id, customer_id) VALUES ('1', 1), ('2', 1)`, []string{"note invoices/1", "note invoices/2"}},
		{`INSERT INTO invoices (id, customer_id) VALUES ('3', 1), ('4', 1), ('5', NULL), ('6', 2)`, []string{"batch of 3 invoices/3 to invoices/6"}},
		{`INSERT INTO invoices (id, customer_id) VALUES ('7', NULL), ('8', NULL), ('9', NULL)`, []string{}},
		{`UPDATE invoices SET customer_id = 3 WHERE id IN ('1', '2')`, []string{"note invoices/1", "note invoices/2"}},
		{`UPDATE invoices SET customer_id = 4 WHERE id < '4'`, []string{"batch of 3 invoices/1 to invoices/3"}},
		{`UPDATE invoices SET customer_id = customer_id`, []string{}},
		{`UPDATE invoices SET customer_id = 5 WHERE id = '9'`, []string{"note invoices/9"}},
		{`UPDATE invoices SET id = id || 'x' WHERE id < '4'`, []string{"batch of 3 invoices/1x to invoices/3x"}},
	} {
		a.exec(a.shop, c.sql)
		require.Subset(t, a.rows(a.shop, notedSQL), c.noted, c.sql)
		a.Settle()
		require.Empty(t, a.rows(a.shop, notedSQL), c.sql)
		require.Empty(t, a.verify(shop, false), c.sql)
	}
	require.Equal(t, []string{"1 1", "4 3", "5 1", "2 1"}, a.rows(a.shop, `
SELECT customer_id || ' ' || count(*) FROM invoices WHERE customer_id IS NOT NULL GROUP BY customer_id ORDER BY array_position(ARRAY[1, 4, 5, 2], customer_id::int)`))
	require.Equal(t, 6, a.Count(shop, "reference"))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// The rows of a large statement are in batches of a bounded size, each row once, and are counted before they are read.
func TestBatchesAreBoundedAndCounted(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) SELECT g, 1 FROM generate_series(1, 60000) g`)
	require.Equal(t, []string{"60000 60000"}, a.rows(a.shop, `SELECT sum(rows) || ' ' || (SELECT count(DISTINCT n) FROM dbcontroller.captured_batch b, unnest(b.names) AS n) FROM dbcontroller.captured_batch`))
	require.Equal(t, []string{"true"}, a.rows(a.shop, `SELECT (max(rows) < 12000 AND count(*) <= 7)::text FROM dbcontroller.captured_batch`), "about 10,000 in each")
	waiting, _, err := a.Stores[a.ID(shop)].Captured(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 60_000, waiting)
	all, err := attach.All(t.Context(), a.shop)
	require.NoError(t, err)
	for _, one := range all {
		if one.Kind == "Invoice" {
			require.EqualValues(t, 60_000, one.Waiting)
			require.NoError(t, attach.Detach(t.Context(), a.shop, one, func(error) {}))
		}
	}
	require.Empty(t, a.rows(a.shop, notedSQL))
}

// A batch that is spread while its table is detached leaves nothing: a note would keep the rights of its statement for ever.
func TestDetachRemovesABatchThatIsSpreadMeanwhile(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('1', 1), ('2', 1), ('3', 1)`)
	spreader := a.connect(shop, `BEGIN; WITH b AS (DELETE FROM dbcontroller.captured_batch RETURNING kind_id, names)
INSERT INTO dbcontroller.captured (kind_id, name) SELECT b.kind_id, n FROM b, unnest(b.names) AS n`)
	all, err := attach.All(t.Context(), a.shop)
	require.NoError(t, err)
	detached := make(chan error, 1)
	go func() {
		var failed error
		for _, one := range all {
			failed = errors.Join(failed, attach.Detach(t.Context(), a.shop, one, func(error) {}))
		}
		detached <- failed
	}()
	for waiting := "0"; waiting == "0"; { // it waits for the row of the batch, at most 200 ms, again and again
		waiting = a.rows(spreader, `SELECT count(*)::text FROM pg_locks WHERE NOT granted`)[0]
	}
	a.exec(spreader, `COMMIT`)
	require.NoError(t, <-detached)
	require.Empty(t, a.rows(spreader, notedSQL))
}

// A deletion does not act upon a row whose change is in a batch that nobody has read: it may refer to another target by now.
func TestADeletionWaitsForBatches_I10(t *testing.T) {
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
	a.exec(a.shop, `UPDATE orders SET note = 'x', customer_id = 3`)
	require.Empty(t, a.verify(shop, false), "rows in a batch are read anyway")
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A deletion of many rows looks up the notes of these, however many others wait. (Each was compared with each: 1,000 rows beside 100,000 notes took
// 17 s, with the locks of the rows held.)
func TestADeletionBesideManyNotesReadsItsOwn(t *testing.T) {
	t.Parallel()
	p := &plans{}
	p.limit(20_000)
	a := &attached{t: t, Box: harness.NewBox(t, attachedServices, func(cfg *shadow.Config) { cfg.Pool = p.pool(t, cfg.Pool.Config()) }, crm, shop)}
	a.tables()
	a.exec(a.crm, `INSERT INTO customers SELECT generate_series(1, 2)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id) SELECT 1 FROM generate_series(1, 1000)`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Capture(a.ID(crm))
	a.exec(a.shop, `INSERT INTO dbcontroller.captured (kind_id, name) SELECT kind_id, 'orders/' || gen_random_uuid() FROM dbcontroller.attachment, generate_series(1, 1000) WHERE kind = 'Order'`)
	p.look(true)
	for left := ""; left != "0"; left = a.rows(a.shop, `SELECT count(*)::text FROM orders`)[0] { // its time is bounded
		_, err := a.Act(a.ID(shop), a.ID(crm))
		require.NoError(t, err)
	}
	p.look(false)
	require.Positive(t, p.seen)
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Rows count from their commit, whoever tidies, recalls, returns, or deletes.
func TestRowsOfAStatementCountFromItsCommit_I1_I3_I31(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO invoices (id, customer_id) SELECT g, 1 FROM generate_series(1, 5) g`)
	a.exec(a.shop, `UPDATE dbcontroller.foreign_target SET kept_until = now()`)
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/")
	_, err = a.Stores[a.ID(shop)].Tidy(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool { // it looks at the right
		a.GrantWishes(shop)
		_, err := a.Do(a.ID(shop), schema.LookAtRight)
		require.NoError(t, err)
		return a.rows(a.shop, `SELECT count(*)::text FROM dbcontroller.foreign_target WHERE kept_until IS NOT NULL AND block_attempt IS NOT NULL`)[0] == "0"
	}, wait.Limit, 50*time.Millisecond)
	require.Equal(t, []string{"true"}, a.rows(a.shop, `SELECT (block_epoch IS NOT NULL)::text FROM dbcontroller.foreign_target WHERE name = 'customers/1'`))
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
	require.Equal(t, []string{"4"}, a.rows(a.shop, `SELECT count(*)::text FROM dbcontroller.removal WHERE name LIKE 'orders/%'`))
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}
