package shadow_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const goneServices = `
service: crm.example.com
version: v1
kinds:
  - {kind: Customer, table: public.customers, key: [id], gone: deleted_at, patterns: ["customers/{customer}"]}
---
service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Order
    table: public.orders
    key: [id]
    gone: gone
    patterns: ["orders/{order}"]
    references:
      - {columns: [customer_id], targets: [crm.example.com/Customer], region: eu, behaviour: BLOCK, enforce: strict}
      - {columns: [payer_id], targets: [crm.example.com/Customer], region: eu, behaviour: CASCADE_DELETE}
  - kind: Note
    table: public.notes
    key: [id]
    patterns: ["notes/{note}"]
    references:
      - {columns: [order_id], targets: [Order], behaviour: CASCADE_DELETE}
`

func newGone(t *testing.T) *attached {
	t.Helper()
	a := &attached{Box: harness.NewBox(t, goneServices, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.crm = a.connect(crm, `CREATE TABLE customers (id bigint PRIMARY KEY, name text, deleted_at timestamptz); INSERT INTO customers (id) SELECT generate_series(1, 9);
INSERT INTO customers VALUES (10, 'former', now()); GRANT ALL ON customers TO dbcontroller_box_serving`)
	a.shop = a.connect(shop, `CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, payer_id bigint, gone boolean NOT NULL DEFAULT false); CREATE INDEX ON orders (customer_id); CREATE INDEX ON orders (payer_id);
CREATE TABLE notes (id bigint PRIMARY KEY, order_id bigint); CREATE INDEX ON notes (order_id); GRANT ALL ON orders, notes TO dbcontroller_box_serving`)
	a.prepare(crm)
	a.prepare(shop)
	a.Settle()
	return a
}

// An application deletes rows by a column. It is their deletion, for the rows that refer to them and for the
// rights that they have used; the controller deletes rows in the same way.
func TestARowIsDeletedByAColumn_I1_I34(t *testing.T) {
	t.Parallel()
	a := newGone(t)
	a.write(`INSERT INTO orders (id, customer_id, payer_id) VALUES (1, 1, 2), (2, 1, NULL), (3, NULL, 3)`)
	a.Settle()
	gone := a.lacks(`INSERT INTO orders (id, customer_id) VALUES (4, 10)`)
	a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, gone)
	a.AnswerRequests(shop)
	a.Settle()
	require.Equal(t, gone, a.lacks(`INSERT INTO orders (id, customer_id) VALUES (4, 10)`), "no right to a deleted row")
	_ = a.refused(a.crm, `UPDATE customers SET deleted_at = now() WHERE id = 1`)
	_ = a.refused(a.crm, `UPDATE customers SET deleted_at = now()`)
	_ = a.refused(a.crm,
		`MERGE INTO customers c USING (VALUES (1)) AS v (id) ON c.id = v.id WHEN MATCHED THEN UPDATE SET deleted_at = now()`)
	a.exec(a.crm, `UPDATE customers SET name = 'c'`)

	a.exec(a.shop, `INSERT INTO notes VALUES (1, 1), (2, 2)`)
	a.Settle()
	a.exec(a.crm, `UPDATE customers SET deleted_at = now() WHERE id IN (2, 3)`)
	a.Settle()
	require.Equal(t, []string{"1 true", "2 false", "3 true"},
		a.rows(a.shop, `SELECT id || ' ' || gone FROM orders ORDER BY id`), "the rows stay, and are deleted")
	require.Equal(t, []string{"2"}, a.rows(a.shop, `SELECT id::text FROM notes`),
		"what refers to a deleted row goes with it")

	a.exec(a.shop, `UPDATE orders SET gone = true WHERE id = 2`)
	a.returned()
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT id::text FROM notes`))
	a.exec(a.crm, `UPDATE customers SET deleted_at = now() WHERE id = 1`)
	a.Settle()
	require.Empty(t, a.verify(shop, false))
	require.Empty(t, a.verify(crm, false))

	// A row that comes back refers, and is referred to, anew.
	require.Equal(t, []string{"BLOCK " + customer("1")}, a.lacks(`UPDATE orders SET gone = false WHERE id = 2`),
		"its customer is deleted")
	a.exec(a.crm, `UPDATE customers SET deleted_at = NULL WHERE id = 1`)
	a.write(`UPDATE orders SET gone = false WHERE id IN (2, 3)`)
	_ = a.refused(a.crm, `UPDATE customers SET deleted_at = now() WHERE id = 1`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 10`)

	// Keys of rows that others refer to do not change, also not together with other columns.
	a.exec(a.crm, `UPDATE customers SET deleted_at = now() WHERE id = 5`)
	_ = a.refused(a.crm, `UPDATE customers SET id = id + 20, deleted_at = NULL WHERE id IN (1, 5)`)

	a.MustDelete("//" + shop + "/orders/2")
	a.Settle()
	require.Equal(t, []string{"true"}, a.rows(a.shop, `SELECT gone::text FROM orders WHERE id = 2`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A reference that is established locks the row of its target: a deletion by a column waits for it, and is
// then refused.
func TestADeletionByAColumnWaitsForReferences_I1(t *testing.T) {
	t.Parallel()
	a := newGone(t)
	a.exec(a.crm, `CREATE EXTENSION pgrowlocks SCHEMA public; CREATE TABLE seen (modes text[]);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN INSERT INTO public.seen SELECT modes FROM public.pgrowlocks(''public.customers''); RETURN NULL; END';
CREATE TRIGGER see AFTER INSERT ON dbcontroller.shadow FOR EACH STATEMENT EXECUTE FUNCTION see()`)
	a.write(`INSERT INTO orders (id, customer_id) VALUES (1, 1)`)
	require.Equal(t, []string{`{"For Share"}`}, a.rows(a.crm, `SELECT DISTINCT modes::text FROM seen`))
}

const unsetServices = `
service: crm.example.com
version: v1
kinds:
  - {kind: Seat, table: public.seats, key: [room, number], patterns: ["seats/{seat}"]}
  - {kind: Customer, table: public.customers, key: [id], patterns: ["customers/{customer}"]}
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
      - {columns: [room, seat], targets: [crm.example.com/Seat], region: eu, behaviour: UNSET, unset: [seat]}
      - {columns: [customer_id], targets: [crm.example.com/Customer], region: eu, behaviour: UNSET, unset_to: default}
      - {columns: [other_room, other_seat], targets: [crm.example.com/Seat], region: eu, behaviour: UNSET, match: full}
`

// UNSET sets some of the columns, or sets them to their default, as ON DELETE SET NULL (columns) and SET
// DEFAULT do; MATCH FULL allows no half value.
func TestUnsetAndMatchAreThoseOfNativeKeys_I34(t *testing.T) {
	t.Parallel()
	a := &attached{Box: harness.NewBox(t, unsetServices, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.crm = a.connect(crm, `CREATE TABLE seats (room text, number integer, PRIMARY KEY (room, number)); CREATE TABLE customers (id bigint PRIMARY KEY);
INSERT INTO seats SELECT 'a', g FROM generate_series(1, 9) g; INSERT INTO customers SELECT generate_series(0, 9); GRANT ALL ON seats, customers TO dbcontroller_box_serving`)
	a.shop = a.connect(shop, `CREATE TABLE orders (id bigint PRIMARY KEY, room text NOT NULL DEFAULT 'a', seat integer, customer_id bigint NOT NULL DEFAULT 0, other_room text, other_seat integer, note text);
CREATE INDEX ON orders (room, seat); CREATE INDEX ON orders (customer_id); CREATE INDEX ON orders (other_room, other_seat); GRANT ALL ON orders TO dbcontroller_box_serving;
INSERT INTO orders (id, other_room) VALUES (1, 'of before'), (2, 'of before')`)
	a.prepare(crm)
	a.prepare(shop)
	a.Settle()
	a.exec(a.shop,
		`INSERT INTO orders (id, seat, customer_id, other_room, other_seat) VALUES (3, 1, 1, 'a', 2), (4, 1, 0, NULL, NULL)`)
	a.Settle()
	for _, mixed := range []string{
		`INSERT INTO orders (id, other_room) VALUES (5, 'a')`, `UPDATE orders SET other_seat = NULL WHERE id = 3`,
		`UPDATE orders SET other_seat = NULL`, `UPDATE orders SET other_room = 'b' WHERE id = 4`,
	} {
		require.ErrorContains(t, a.fails(a.shop, mixed),
			"MATCH FULL does not allow mixing of null and nonnull key values", mixed)
	}
	a.exec(a.shop, `UPDATE orders SET note = 'n'; ALTER TABLE orders ALTER customer_id SET DEFAULT 7`)
	require.Equal(t, []string{"the column customer_id has another DEFAULT: attach again, so that UNSET sets it"},
		a.drift(shop))
	a.exec(a.shop, `ALTER TABLE orders ALTER customer_id DROP DEFAULT`)
	require.Contains(t, fmt.Sprint(a.plans(shop)[0].Findings),
		"customer_id: UNSET sets it to its DEFAULT, and it is NOT NULL and has none")
	a.exec(a.shop, `ALTER TABLE orders ALTER customer_id SET DEFAULT 0`)
	require.Empty(t, a.drift(shop))

	a.MustDelete("//" + crm + "/seats/a,1")
	a.MustDelete("//" + crm + "/seats/a,2")
	a.MustDelete(customer("1"))
	a.Settle()
	require.Equal(t, []string{"3 a - 0 --", "4 a - 0 --"},
		a.rows(a.shop,
			`SELECT id || ' ' || room || ' ' || COALESCE(seat::text, '-') || ' ' || customer_id || ' ' || COALESCE(other_room, '-') || COALESCE(other_seat::text, '-') FROM orders WHERE id > 2 ORDER BY id`))
	a.again()

	// The default itself cannot go: its rows would name it again.
	a.MustDelete(customer("0"))
	a.Settle()
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT DISTINCT customer_id::text FROM orders`))
}

func (a *attached) fails(conn *pgx.Conn, sql string) error {
	a.t.Helper()
	_, err := conn.Exec(a.t.Context(), sql)
	var pg *pgconn.PgError
	require.True(a.t, errors.As(err, &pg), "%v", err)
	return fmt.Errorf("%s: %s: %s", pg.Code, pg.Message, pg.Detail)
}

// A later version says that rows are deleted by a column: attach counts the rows of before whose deletion
// would be carried out.
func TestRowsOfBeforeAreCounted(t *testing.T) {
	t.Parallel()
	of, rest, _ := strings.Cut(strings.Replace(goneServices, ", gone: deleted_at", "", 1), "---\n")
	v2 := strings.Replace(strings.Replace(of, "version: v1", "version: v2", 1), "key: [id]",
		"key: [id], gone: deleted_at", 1)
	a := &attached{Box: harness.NewBox(t, of+"---\n"+v2+"---\n"+rest, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.crm = a.connect(crm,
		`CREATE TABLE customers (id bigint PRIMARY KEY, deleted_at timestamptz); INSERT INTO customers SELECT g, now() FROM generate_series(1, 9) g; GRANT ALL ON customers TO dbcontroller_box_serving`)
	a.shop = a.connect(shop, `CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, payer_id bigint, gone boolean); CREATE INDEX ON orders (customer_id); CREATE INDEX ON orders (payer_id);
CREATE TABLE notes (id bigint PRIMARY KEY, order_id bigint); CREATE INDEX ON notes (order_id); GRANT ALL ON orders, notes TO dbcontroller_box_serving`)
	a.prepare(crm)
	a.prepare(shop)
	a.write(`INSERT INTO orders (id, customer_id) VALUES (1, 5), (2, 6)`)
	a.Settle()
	a.Switch(crm, "v2")
	require.EqualValues(t, 2, a.plans(crm)[0].Deletes)
	a.prepare(crm)
	require.Zero(t, a.plans(crm)[0].Deletes)
}
