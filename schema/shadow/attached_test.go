package shadow_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const attachedServices = `
service: crm.example.com
version: v1
kinds:
  - kind: Customer
    table: public.customers
    key: [id]
    patterns: ["customers/{customer}"]
  - kind: Seat
    table: public.seats
    key: [room, "number"]
    patterns: ["seats/{seat}"]
  - kind: Note
    patterns: ["notes/{note}"]
    references:
      - {path: customer, targets: [Customer], behaviour: CASCADE_DELETE}
---
service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Order
    table: public.orders
    key: [id]
    patterns: ["orders/{order}"]
    references:
      - {columns: [customer_id], targets: [crm.example.com/Customer], region: eu, behaviour: CASCADE_DELETE}
      - {columns: [approver_id], targets: [crm.example.com/Customer], region: {column: approver_region}, behaviour: UNSET}
  - kind: Invoice
    table: public.invoices
    key: [id]
    patterns: ["invoices/{invoice}"]
    references:
      - {columns: [customer_id], targets: [crm.example.com/Customer], region: eu, behaviour: BLOCK}
      - {columns: [room, seat], targets: [crm.example.com/Seat], region: eu, behaviour: BLOCK, missing: unset}
  - kind: Letter
    patterns: ["letters/{letter}"]
    references:
      - {path: customer, targets: [crm.example.com/Customer], behaviour: BLOCK}
`

const (
	crm  = "crm.example.com/eu"
	shop = "shop.example.com/eu"
)

// attached is a box whose two databases have tables of an application.
type attached struct {
	*harness.Box
	t         *testing.T
	crm, shop *pgx.Conn // of the application
}

func newAttached(t *testing.T) *attached {
	t.Helper()
	a := &attached{Box: harness.NewBox(t, attachedServices, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.tables()
	return a
}

// tables makes the tables of the application.
func (a *attached) tables() {
	a.t.Helper()
	a.crm = a.connect(crm, `
CREATE TABLE customers (id bigint PRIMARY KEY, name text);
CREATE TABLE seats (room text, number integer, PRIMARY KEY (room, number))`)
	a.shop = a.connect(shop, `
CREATE TABLE orders (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), customer_id bigint, approver_id bigint, approver_region text, note text);
CREATE INDEX ON orders (customer_id); CREATE INDEX ON orders (approver_id);
CREATE TABLE invoices (id text PRIMARY KEY, customer_id bigint, room text, seat integer);
CREATE INDEX ON invoices (customer_id); CREATE INDEX ON invoices (room, seat)`)
}

func (a *attached) connect(deployment, sql string) *pgx.Conn {
	a.t.Helper()
	ctx := context.Background()
	conn, err := pgx.ConnectConfig(ctx, a.Pools[a.ID(deployment)].Config().ConnConfig)
	require.NoError(a.t, err)
	a.t.Cleanup(func() { _ = conn.Close(ctx) })
	_, err = conn.Exec(ctx, `SET search_path = public; SET enable_seqscan = on; `+sql)
	require.NoError(a.t, err)
	return conn
}

// attach attaches the tables of both databases.
func (a *attached) attach() {
	a.t.Helper()
	a.attachTo(crm, shop) // targets first: before, rows that refer to them would have to wait
}

func (a *attached) attachTo(deployments ...string) {
	a.t.Helper()
	ctx := context.Background()
	for _, id := range deployments {
		conn := map[string]*pgx.Conn{crm: a.crm, shop: a.shop}[id]
		plans, err := attach.Prepare(ctx, conn, a.Stores[a.ID(id)].Model(), false)
		require.NoError(a.t, err)
		for _, p := range plans {
			require.False(a.t, p.Refused(), "%v", p.Findings)
			require.NoError(a.t, attach.Apply(ctx, conn, p, func(err error) { a.t.Log(err) }))
		}
		a.Capture(a.ID(id))
	}
	a.Settle()
}

func (a *attached) exec(conn *pgx.Conn, sql string, args ...any) {
	a.t.Helper()
	_, err := conn.Exec(context.Background(), sql, args...)
	require.NoError(a.t, err)
}

// refused runs a statement that fails as a native key makes it fail.
func (a *attached) refused(conn *pgx.Conn, sql string) *pgconn.PgError {
	a.t.Helper()
	_, err := conn.Exec(context.Background(), sql)
	var pg *pgconn.PgError
	require.True(a.t, errors.As(err, &pg), "%v", err)
	require.Equal(a.t, "23503", pg.Code, pg.Message)
	return pg
}

// rows returns the rows of a query, each as text.
func (a *attached) rows(conn *pgx.Conn, sql string) []string {
	a.t.Helper()
	found, err := conn.Query(context.Background(), sql)
	require.NoError(a.t, err)
	out, err := pgx.CollectRows(found, pgx.RowTo[string])
	require.NoError(a.t, err)
	return out
}

// Tables that exist, with rows, are attached: a delete by plain SQL cascades to another database, unsets
// there, and is refused while a row there blocks it.
func TestAttachedTablesBehaveLikeOneDatabase(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers SELECT g, 'c' FROM generate_series(1, 10) g`)
	a.exec(a.crm, `INSERT INTO seats VALUES ('a,b', 1), ('\', 2)`)
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) SELECT 1, 'old' FROM generate_series(1, 20)`)
	a.exec(a.shop,
		`INSERT INTO orders (customer_id, approver_id, approver_region, note) VALUES (2, 1, 'eu', 'approved'), (3, 1, NULL, 'no region')`)
	a.attach()
	require.Equal(t, 3, a.Count(crm, "holder_entry"), "one for each customer with orders")

	a.exec(a.shop, `INSERT INTO invoices VALUES ('a/b', 4, 'a,b', 1), ('c', NULL, '\', 2), ('d', NULL, NULL, 2)`)
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (1, 'new')`)
	a.Settle()
	require.NotNil(t, a.Get("//"+shop+"/invoices/a%2Fb"))

	refused := a.refused(a.crm, `DELETE FROM customers WHERE id = 4`)
	require.Contains(t, refused.Detail, "1 reference, from //"+shop+" (rows written under its right)")
	require.Equal(t, "db-controller plan //"+crm+"/customers/4", refused.Hint)
	_ = a.refused(a.crm, `DELETE FROM seats WHERE room = 'a,b'`)
	_ = a.refused(a.crm, `DELETE FROM seats WHERE number = 2`)
	_ = a.refused(a.crm, `UPDATE customers SET id = 40 WHERE id = 4`)
	_ = a.refused(a.crm, `TRUNCATE customers`)
	a.exec(a.crm, `UPDATE customers SET name = 'x'`)

	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Settle()
	require.Equal(t, []string{"approved", "no region"}, a.rows(a.shop, `SELECT note FROM orders ORDER BY note`))
	require.Equal(t, []string{"3 1"},
		a.rows(a.shop, `SELECT customer_id || ' ' || approver_id FROM orders WHERE approver_id IS NOT NULL`))
	require.Equal(t, 0, a.Count(crm, "deleting"))

	a.exec(a.shop, `UPDATE invoices SET customer_id = 5 WHERE id = 'a/b'`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 4`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 5`)
	a.exec(a.shop, `TRUNCATE invoices`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 5; DELETE FROM seats`)
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
	require.Equal(t, []string{}, a.rows(a.crm, `SELECT coalesce(problem, '') FROM dbcontroller.deleted_row`))
}

// After the last acting reference is gone, so is the holder entry, and the table is truncated, and its keys
// change, as before.
func TestKeysChangeAfterTheLastActingReference_I4(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers SELECT g, 'c' FROM generate_series(1, 3) g`)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id) VALUES (1), (2), (2)`)
	a.Settle()
	refused := a.refused(a.crm, `UPDATE customers SET id = 10 WHERE id = 1`)
	require.Contains(t, refused.Detail, "//"+shop+" (may have rows that refer to it)")
	a.exec(a.shop, `DELETE FROM orders WHERE ctid IN (SELECT min(ctid) FROM orders GROUP BY customer_id)`)
	a.Settle()
	a.tidies(shop)
	require.Equal(t, 1, a.Count(crm, "holder_entry"))
	a.exec(a.crm, `UPDATE customers SET id = 10 WHERE id = 1`)
	_ = a.refused(a.crm, `TRUNCATE customers`)
	a.exec(a.shop, `UPDATE orders SET customer_id = 3`)
	a.Settle()
	a.tidies(shop)
	require.Equal(t, 1, a.Count(crm, "holder_entry"), "that of the new target")
	a.exec(a.crm, `UPDATE customers SET id = 20 WHERE id = 2`)
	a.exec(a.shop, `DELETE FROM orders`)
	a.Settle()
	a.tidies(shop)
	require.NotZero(t, a.Count(crm, "shadow"))
	a.exec(a.crm, `TRUNCATE customers`)
	a.Settle()
	require.Zero(t, a.Count(crm, "shadow"), "no row, no resource")
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// One delete takes all its rows.
func TestRowsAreDeletedTogether(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers SELECT generate_series(1, 4)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id) VALUES (1), (2), (3)`)
	a.Settle()
	_, err := deleteTogether(t, a.Box, crm, uuid.Nil, "customers/1", "customers/2", "customers/3")
	require.NoError(t, err)
	a.Settle()
	require.Equal(t, []string{"4"}, a.rows(a.crm, `SELECT id::text FROM customers`))
	require.Empty(t, a.rows(a.shop, `SELECT id::text FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A new row with the key of a deleted one, whose deletion is not carried out yet, is another resource: no
// reference gets the uid of the old one.
func TestARowBehindADeletionIsAnotherResource_I1(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO invoices (id, customer_id) VALUES ('i', 4)`)
	a.exec(a.shop, `DELETE FROM invoices`)
	a.returned()
	require.Equal(t, 1, a.Count(crm, "shadow"), "of the row to which nobody refers any more")
	a.exec(a.crm, `DELETE FROM customers WHERE id = 4`)
	a.exec(a.crm, `INSERT INTO customers VALUES (4)`)
	a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, []string{"BLOCK " + customer("4")})
	a.AnswerRequests(shop)
	_ = a.lacks(`INSERT INTO invoices (id, customer_id) VALUES ('i', 4)`)
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
	a.exec(a.shop, `UPDATE dbcontroller.right_request SET asked_at = asked_at - interval '2 s'`)
	a.write(`INSERT INTO invoices (id, customer_id) VALUES ('j', 4)`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 4`)
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// tidies runs the tidying of a deployment once, and the work that follows from it.
func (a *attached) tidies(deployment string) {
	a.t.Helper()
	_, err := a.Stores[a.ID(deployment)].Admin.Tidy(context.Background())
	require.NoError(a.t, err)
	a.Settle()
}

// Kinds with tables and kinds with bodies refer to one another; a delete through the API takes rows along.
func TestAttachedRowsAndBodiesReferToOneAnother(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers SELECT g, 'c' FROM generate_series(1, 10) g`)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id) VALUES (1), (2)`)
	a.Settle()
	a.MustPut("//"+crm+"/notes/n", harness.Body{"customer": "customers/1"})
	a.MustPut("//"+shop+"/letters/l", harness.Body{"customer": "//" + crm + "/customers/2"})
	_, err := a.Put("//"+crm+"/notes/m", harness.Body{"customer": "customers/99"})
	require.ErrorContains(t, err, "does not exist")
	_, err = a.Put("//"+crm+"/notes/m", harness.Body{"customer": "customers/abc"})
	require.ErrorContains(t, err, "does not exist")
	_, err = a.Put("//"+crm+"/customers/1", nil)
	require.ErrorContains(t, err, "Customer is a row of table public.customers: write it with SQL")

	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
	_, err = a.Delete("//" + crm + "/customers/2")
	require.ErrorContains(t, err, "letters/l")
	a.MustDelete("//" + crm + "/customers/1")
	a.MustDelete("//" + crm + "/customers/3") // no row refers to it
	a.Settle()
	require.Nil(t, a.Get("//"+crm+"/notes/n"))
	require.Equal(t, []string{"2"}, a.rows(a.shop, `SELECT customer_id::text FROM orders`))
	require.Equal(t, []string{"2", "4"}, a.rows(a.crm, `SELECT id::text FROM customers WHERE id < 5 ORDER BY id`))

	a.MustDelete("//" + shop + "/letters/l")
	a.Settle()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 2`)
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT id::text FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// The row of a target is gone before its resource. The list of its referrers is answered until the resource
// is gone as well: the resource waits for them.
func TestReferrersOfARowThatIsGone(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1)`)
	a.attach()
	a.exec(a.shop,
		`INSERT INTO orders (id, customer_id) VALUES ('01a2170b-0000-7000-8000-000000000001', 1); CREATE TABLE shipments (order_id uuid REFERENCES orders); INSERT INTO shipments SELECT id FROM orders`)
	a.Settle()
	uid := a.Get("//" + crm + "/customers/1").UID
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Capture(a.ID(crm))
	require.Nil(t, a.Get("//"+crm+"/customers/1"))

	target, err := schema.ParseFullName("//" + crm + "/customers/1")
	require.NoError(t, err)
	_, first := referrersOf(t, a.Stores[a.ID(crm)], shadow.ReferrersRequest{Target: target, Limit: 10})
	require.Equal(t, uid, first.UID)
	require.Equal(t, []schema.DeploymentID{a.ID(shop)}, first.Deployments)
	lines, _ := referrersOf(t, a.Stores[a.ID(shop)], shadow.ReferrersRequest{Target: target, UID: uid, Limit: 10})
	require.Equal(t, []string{"Order orders/01a2170b-0000-7000-8000-000000000001 customer_id CASCADE_DELETE"}, lines)
}

// A target that does not exist is reported, and found when it appears.
func TestAMissingTargetIsReported(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.attach()
	a.exec(a.crm, `INSERT INTO customers VALUES (1)`)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('a', 7), ('b', 1)`)
	a.Settle()
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('', 1)`) // no id of a resource
	a.Capture(a.ID(shop))
	all, err := attach.All(t.Context(), a.shop)
	require.NoError(t, err)
	invoices := all[slices.IndexFunc(all, func(one *attach.Attached) bool { return one.Kind == "Invoice" })]
	require.Equal(t, []int64{1, 0}, []int64{invoices.Missing, invoices.Failed})
	require.Equal(t, "customer_id: //"+crm+"/customers/7 does not exist", *invoices.Problem)
	a.exec(a.shop, `DELETE FROM invoices WHERE id = ''`)
	a.Capture(a.ID(shop))
	require.Equal(t, []string{`customer_id ["7"] missing`}, a.noted())
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)

	a.exec(a.crm, `INSERT INTO customers VALUES (7)`)
	a.again()
	require.Empty(t, a.noted())
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 7`)
}

// While the region of a target is dark, plain SQL goes on, rows keep their other references, and references
// to the dark region are stored later.
func TestAttachedRowsWaitForADarkRegion(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers SELECT g FROM generate_series(1, 3) g`)
	a.attach()
	a.SetDown(crm, true)
	a.exec(a.shop, `INSERT INTO orders (customer_id) VALUES (1)`)
	a.Settle()
	require.Equal(t, []string{`customer_id ["1"]`}, a.noted())
	a.SetDown(crm, false)
	a.again()
	require.Empty(t, a.noted())
	a.exec(a.crm, `DELETE FROM customers`)
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT id::text FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// again makes postponed notes due, and settles.
func (a *attached) again() {
	a.t.Helper()
	a.exec(a.shop, `UPDATE dbcontroller.deleted_row SET due = '-infinity'`)
	a.exec(a.shop, `UPDATE dbcontroller.lacking SET due = '-infinity'`)
	a.Capture(a.ID(shop))
	a.Settle()
}

// A row that gets another target before a deletion reaches it is not deleted; one whose other reference names
// a target in deletion is.
func TestADeletionLooksAtTheRowAsItIs(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers SELECT g FROM generate_series(1, 3) g`)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (1, 'moves'), (1, 'stays')`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Capture(a.ID(crm))
	a.exec(a.shop, `UPDATE orders SET approver_id = 1, approver_region = 'eu' WHERE note = 'stays'`)
	// the deletion has found the row when it commits
	a.exec(a.shop, `BEGIN; UPDATE orders SET customer_id = 2 WHERE note = 'moves'`)
	acted := make(chan error, 1)
	go func() {
		_, err := a.Act(a.ID(shop), a.ID(crm))
		acted <- err
	}()
	waitsForLock(t, a.Pools[a.ID(shop)])
	a.exec(a.shop, `COMMIT`)
	require.NoError(t, <-acted)
	a.Settle()
	require.Equal(t, []string{"moves"}, a.rows(a.shop, `SELECT note FROM orders`))
	a.again()
	require.Empty(t, a.noted())
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// COPY, upserts, MERGE, native cascades, snapshots, and keys that are used again.
func TestAttachedTablesTakeAnySQL(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	ctx := context.Background()
	a.exec(a.crm, `CREATE TABLE regions (id int PRIMARY KEY); INSERT INTO regions VALUES (1), (2);
ALTER TABLE customers ADD region int REFERENCES regions ON DELETE CASCADE`)
	a.attach()
	_, err := a.crm.CopyFrom(ctx, pgx.Identifier{"customers"}, []string{"id", "region"},
		pgx.CopyFromRows([][]any{{int64(1), 1}, {int64(2), 1}, {int64(3), 2}, {int64(4), 2}}))
	require.NoError(t, err)
	_, err = a.shop.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"customer_id", "note"},
		pgx.CopyFromRows([][]any{{int64(1), "1"}, {int64(2), "2"}, {int64(3), "3"}, {int64(4), "4"}}))
	require.NoError(t, err)
	a.exec(a.shop,
		`INSERT INTO invoices (id, customer_id) VALUES ('i', 3); INSERT INTO invoices (id, customer_id) VALUES ('i', 4) ON CONFLICT (id) DO UPDATE SET customer_id = EXCLUDED.customer_id`)
	a.exec(a.shop, `MERGE INTO invoices i USING (VALUES ('i', 2), ('j', 3)) AS n (id, customer) ON i.id = n.id
WHEN MATCHED THEN UPDATE SET customer_id = n.customer WHEN NOT MATCHED THEN INSERT (id, customer_id) VALUES (n.id, n.customer)`)
	a.Settle()
	_ = a.refused(a.crm, `DELETE FROM regions WHERE id = 1`) // customer 2 goes along, and invoice i keeps it
	a.exec(a.shop, `DELETE FROM invoices WHERE id = 'i'`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM regions WHERE id = 1`)
	a.Settle()
	require.Equal(t, []string{"3", "4"}, a.rows(a.shop, `SELECT note FROM orders ORDER BY note`))

	// A key is used again: the old holders go, the new row is another resource.
	a.exec(a.crm, `DELETE FROM customers WHERE id = 4`)
	a.Settle()
	a.exec(a.crm, `INSERT INTO customers VALUES (4)`)
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (4, 'new')`)
	a.Settle()
	require.Equal(t, []string{"3", "new"}, a.rows(a.shop, `SELECT note FROM orders ORDER BY note`))
	require.Equal(t, []string{"3", "4"}, a.rows(a.crm, `SELECT id::text FROM customers ORDER BY id`))

	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Above READ COMMITTED a DELETE fails when a reference was established after its snapshot, which it cannot
// see; repeated, it decides rightly.
func TestASnapshotThatIsTooOldFails_I3(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	ctx := context.Background()
	a.attach()
	a.exec(a.crm, `INSERT INTO customers SELECT generate_series(1, 3)`)
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (2, 'early')`)
	a.Settle()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for id, meanwhile := range []string{
			`INSERT INTO invoices (id, customer_id) VALUES ('new', 1)`,     // the row gets its shadow
			`INSERT INTO invoices (id, customer_id) VALUES ('another', 2)`, // it has one
		} {
			tx, err := a.crm.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
			require.NoError(t, err)
			_, err = tx.Exec(ctx, `DELETE FROM customers WHERE id = 3`) // no row refers to it
			require.NoError(t, err)
			a.exec(a.shop, meanwhile)
			a.Settle()
			_, err = tx.Exec(ctx, `DELETE FROM customers WHERE id = $1`, id+1)
			var pg *pgconn.PgError
			require.ErrorAs(t, err, &pg)
			require.Equal(t, "40001", pg.Code, pg.Message)
			require.NoError(t, tx.Rollback(ctx))
			_ = a.refused(a.crm, `DELETE FROM customers WHERE id = `+strconv.Itoa(id+1))
			a.exec(a.shop, `DELETE FROM invoices`)
			a.Settle()
		}
	}
	require.Equal(t, 2, a.Count(crm, "shadow"), "what was tried left nothing")
	a.exec(a.crm, `BEGIN ISOLATION LEVEL SERIALIZABLE; DELETE FROM customers; COMMIT`)
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT note FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// After detach the rows hold nothing, and no delete waits for them.
func TestDetachGivesUpReferences(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	ctx := context.Background()
	a.exec(a.crm, `INSERT INTO customers VALUES (1)`)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('i', 1)`)
	a.attach()
	_ = a.refused(a.crm, `DELETE FROM customers`)
	all, err := attach.All(ctx, a.shop)
	require.NoError(t, err)
	require.Len(t, all, 2)
	for _, one := range all {
		require.Empty(t, one.Drift)
		require.NoError(t, attach.Detach(ctx, a.shop, one, func(err error) { t.Log(err) }))
	}
	exec(t, a.Box, shop, `
INSERT INTO dbcontroller.shadow (id, uid, kind_id, state, shard, revision, generation, name)
SELECT nextval('dbcontroller.object_id'), gen_random_uuid(), kind_id, 1, 0, 1, 1, 'invoices/more' || g FROM dbcontroller.shadow, generate_series(1, 10001) AS g WHERE name = 'invoices/i'`)
	a.Capture(a.ID(shop))
	a.Settle()
	require.Zero(t, a.Count(shop, "shadow"), "more than one transaction removes")
	require.Empty(t, a.rows(a.shop, `SELECT kind FROM dbcontroller.attachment`))
	a.exec(a.crm, `DELETE FROM customers`)
	require.Equal(t, []string{"i"}, a.rows(a.shop, `SELECT id FROM invoices`))
}

// Rows that no trigger saw are found when the table is read again.
func TestRowsThatNoTriggerSawAreReadAgain(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	ctx := context.Background()
	a.exec(a.crm, `INSERT INTO customers VALUES (1), (2)`)
	a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('i', 1)`)
	a.attach()
	a.exec(a.shop,
		`SET session_replication_role = replica; DELETE FROM invoices; INSERT INTO invoices (id, customer_id) VALUES ('j', 2); RESET session_replication_role`)
	plans, err := attach.Prepare(ctx, a.shop, a.Stores[a.ID(shop)].Model(), false)
	require.NoError(t, err)
	for _, p := range plans {
		require.Empty(t, p.Statements)
		require.NoError(t, attach.ReadAgain(ctx, a.shop, p))
	}
	a.Capture(a.ID(shop))
	a.Settle()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}
