package shadow_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const renamedServices = `
service: crm.example.com
version: v1
kinds:
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
      - {columns: [customer_id], targets: [crm.example.com/Customer], region: {column: region}, behaviour: BLOCK, enforce: strict}
      - {columns: [payer_id], when: {payer_type: Customer}, targets: [crm.example.com/Customer], region: eu, behaviour: UNSET}
      - {columns: [friend_id], targets: [crm.example.com/Customer], region: eu, behaviour: CASCADE_DELETE}
`

// nextVersion is the version v2 of the shop with other names.
func nextVersion(names ...string) string {
	_, of, _ := strings.Cut(renamedServices, "---\n")
	return renamedServices + "---\n" + strings.NewReplacer(append(names, "version: v1", "version: v2")...).Replace(of)
}

func newRenamed(t *testing.T, services string) *attached {
	t.Helper()
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.crm = a.connect(crm, `CREATE TABLE customers (note text, id bigint PRIMARY KEY); INSERT INTO customers (id) SELECT generate_series(1, 20);
ALTER TABLE customers DROP COLUMN note; GRANT ALL ON customers TO dbcontroller_box_serving`)
	a.shop = a.connect(shop, `CREATE TABLE orders (id bigint PRIMARY KEY, note text, customer_id bigint, region text DEFAULT 'eu', payer_type text, payer_id bigint, friend_id bigint);
CREATE INDEX ON orders (customer_id); CREATE INDEX ON orders (payer_type, payer_id); CREATE INDEX ON orders (friend_id); GRANT ALL ON orders TO dbcontroller_box_serving`)
	a.prepare(crm)
	a.prepare(shop)
	a.Settle()
	return a
}

const renamesOfOrders = `ALTER TABLE orders RENAME TO "a""b purchases"; ALTER TABLE "a""b purchases" RENAME id TO "a$attached$;"; ALTER TABLE "a""b purchases" RENAME customer_id TO buyer;
ALTER TABLE "a""b purchases" RENAME region TO "customer id"; ALTER TABLE "a""b purchases" RENAME payer_type TO kind; ALTER TABLE "a""b purchases" RENAME payer_id TO who;
ALTER TABLE "a""b purchases" RENAME friend_id TO raw; ALTER TABLE "a""b purchases" DROP COLUMN note`

// A table and its columns keep their references under other names: statements of the application, and of the
// controller, go on.
func TestRenamedTablesAndColumnsAreFollowed_I1_I34(t *testing.T) {
	t.Parallel()
	a := newRenamed(t, renamedServices)
	a.write(
		`INSERT INTO orders (id, customer_id, payer_type, payer_id, friend_id) VALUES (1, 1, 'Customer', 2, 3), (2, 1, 'Nobody', 1, NULL)`)
	a.exec(a.shop, renamesOfOrders)
	a.exec(a.crm, `ALTER TABLE customers RENAME TO clients; ALTER TABLE clients RENAME id TO number`)
	require.Empty(t, a.drift(shop))
	require.Empty(t, a.drift(crm))

	_ = a.refused(a.crm, `DELETE FROM clients WHERE number = 1`)
	insert := `INSERT INTO "a""b purchases" ("a$attached$;", buyer, kind, who, raw) VALUES (%d, %d, 'Customer', %[2]d, %[2]d)`
	require.Equal(t, []string{"BLOCK " + customer("7")}, a.lacks(fmt.Sprintf(insert, 3, 7)))
	a.write(fmt.Sprintf(insert, 3, 7))
	a.Settle()
	_ = a.refused(a.crm, `DELETE FROM clients WHERE number = 7`)
	require.Equal(t, []string{"BLOCK " + customer("9")},
		a.lacks(`UPDATE "a""b purchases" SET buyer = 9 WHERE "a$attached$;" = 3`))
	a.exec(a.shop, `UPDATE "a""b purchases" SET buyer = NULL WHERE "a$attached$;" = 3`)
	a.exec(a.crm, `DELETE FROM clients WHERE number = 2`)
	a.Settle()
	require.Equal(t, []string{"2"},
		a.rows(a.shop,
			`SELECT "a$attached$;"::text FROM "a""b purchases" WHERE who IS NOT NULL AND "a$attached$;" < 3`), "order 1 is unset")
	a.returned()
	a.exec(a.crm, `DELETE FROM clients WHERE number = 7`)
	a.Settle()
	require.Equal(t, []string{"1", "2"}, a.rows(a.shop, `SELECT "a$attached$;"::text FROM "a""b purchases" ORDER BY 1`),
		"order 3 went with its friend")
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "orders/1")
	require.Empty(t, a.verify(shop, false))

	all, err := attach.All(t.Context(), a.shop)
	require.NoError(t, err)
	require.Contains(t, all[0].Renamed,
		`the table public.orders is called public."a""b purchases" now: the triggers follow it; declare that name in the next version`)
	require.Contains(t, all[0].Renamed,
		"the column customer_id is called buyer now: the triggers follow it; declare that name in the next version")
	require.Len(t, all[0].Renamed, 7)
	require.Empty(t, a.plans(shop)[0].Statements, "attach has nothing to do")
	a.exec(a.shop, `ALTER TABLE "a""b purchases" DISABLE TRIGGER dbcontroller_insert`)
	require.Equal(t, []string{"the trigger dbcontroller_insert is disabled"}, a.drift(shop))
	a.prepare(shop)
	require.Empty(t, a.drift(shop))
	_ = a.refused(a.crm, `DELETE FROM clients WHERE number = 1`)
	for _, x := range all {
		require.NoError(t, attach.Detach(t.Context(), a.shop, x, func(error) {}))
	}
	a.exec(a.shop, `DROP TABLE "a""b purchases"`)
}

// The next version declares the new names. Until each value has its new right rows count under the former
// references, whose columns have other names.
func TestTheNextVersionDeclaresTheNewNames_I34(t *testing.T) {
	t.Parallel()
	a := newRenamed(t, nextVersion("public.orders", "public.purchases", "key: [id]", "key: [number]", "[customer_id]",
		"[buyer]", "region: {column: region}", "region: {column: place}",
		"[payer_id]", "[who]", "payer_type: Customer", "kind: Customer", "[friend_id]", "[friend]",
		"BLOCK, enforce: strict", "CASCADE_DELETE"))
	a.write(`INSERT INTO orders (id, customer_id) VALUES (1, 1)`)
	a.exec(a.shop, `ALTER TABLE orders RENAME TO purchases; ALTER TABLE purchases RENAME id TO number; ALTER TABLE purchases RENAME customer_id TO buyer; ALTER TABLE purchases RENAME region TO place;
ALTER TABLE purchases RENAME payer_type TO kind; ALTER TABLE purchases RENAME payer_id TO who; ALTER TABLE purchases RENAME friend_id TO friend`)
	a.Switch(shop, "v2")
	a.SetDown(crm, true) // no new right
	a.prepare(shop)
	a.SetDown(crm, false)
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "orders/1", "the former reference blocks")
	a.Settle()
	a.again()
	a.returned()
	require.Empty(t, a.drift(shop))

	_, err = a.shop.Exec(t.Context(), `ALTER TABLE purchases DROP COLUMN buyer`)
	require.ErrorContains(t, err, "cannot drop column buyer of table purchases because other objects depend on it")
	_, err = a.shop.Exec(t.Context(), `DROP TABLE purchases`)
	require.ErrorContains(t, err, "cannot drop table purchases because other objects depend on it")
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT number::text FROM purchases`), "it cascades")

	a.exec(a.shop, `DROP TABLE purchases CASCADE`)
	require.Contains(t, a.drift(shop),
		"the table, or a column that was attached, was dropped with CASCADE: detach, or attach again")
}

// A column that no version refers to any more can be dropped when its rights have been given up, and attach
// has been run again.
func TestAColumnOfAFormerReferenceIsGivenUp_I34(t *testing.T) {
	t.Parallel()
	a := newRenamed(t,
		nextVersion(
			"      - {columns: [friend_id], targets: [crm.example.com/Customer], region: eu, behaviour: CASCADE_DELETE}\n", ""))
	a.Switch(shop, "v2")
	a.prepare(shop)
	_, err := a.shop.Exec(t.Context(), `ALTER TABLE orders DROP COLUMN friend_id`)
	require.ErrorContains(t, err, "other objects depend on it")
	a.Settle()
	a.again()
	a.prepare(shop)
	a.exec(a.shop, `ALTER TABLE orders DROP COLUMN friend_id`)
	a.Settle()
	require.Empty(t, a.drift(shop))
	a.write(`INSERT INTO orders (id, customer_id) VALUES (1, 1)`)
}

// Another table takes the place of the attached one: attach finds it, and takes the triggers of the former
// one away.
func TestASwappedTableIsAttached_I34(t *testing.T) {
	t.Parallel()
	a := newRenamed(t, renamedServices)
	a.write(`INSERT INTO orders (id, customer_id) VALUES (1, 1), (2, 2)`)
	a.exec(a.shop, `CREATE TABLE orders_new (friend_id bigint, payer_id bigint, payer_type text, region text DEFAULT 'eu', customer_id bigint, id bigint PRIMARY KEY);
CREATE INDEX ON orders_new (customer_id); CREATE INDEX ON orders_new (payer_type, payer_id); CREATE INDEX ON orders_new (friend_id); GRANT ALL ON orders_new TO dbcontroller_box_serving;
INSERT INTO orders_new (id, customer_id) SELECT id, customer_id FROM orders WHERE id = 2;
BEGIN; ALTER TABLE orders RENAME TO orders_old; ALTER TABLE orders_new RENAME TO orders; COMMIT`)
	require.Equal(t,
		[]string{
			"public.orders is another table than the attached one, which is called public.orders_old now: attach again for the new table, or give the attached one its name back",
		}, a.drift(shop))
	a.prepare(shop)
	a.Settle()
	a.returned()
	require.Empty(t, a.drift(shop))
	require.Empty(t, a.rows(a.shop, `SELECT tgname::text FROM pg_trigger WHERE tgrelid = 'orders_old'::regclass`))
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
	require.Equal(t, []string{"BLOCK " + customer("5")}, a.lacks(`INSERT INTO orders (id, customer_id) VALUES (3, 5)`))
}

// Triggers read a row by the places of its columns.
func TestAPartitionWithOtherPlacesIsRefused_I34(t *testing.T) {
	t.Parallel()
	a := newPartitioned(t)
	a.write(`INSERT INTO orders (id, at, customer_id) VALUES (1, '05/01/2026', 1)`)
	a.exec(a.shop, `CREATE TABLE odd (customer_id bigint, at date NOT NULL, id bigint NOT NULL, approver_id numeric(12,0), event_at timestamptz, event_code text);
ALTER TABLE orders ATTACH PARTITION odd FOR VALUES FROM ('2026-05-01') TO ('2026-06-01')`)
	plan := a.plans(shop)[0]
	require.True(t, plan.Refused())
	require.Contains(t, fmt.Sprint(plan.Findings),
		"the partition odd has its columns in another order than the table, and triggers read rows by the places of columns")
	a.write(`INSERT INTO orders (id, at, customer_id) VALUES (2, '05/05/2026', 2)`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 2`)
	_, err := a.shop.Exec(t.Context(), `UPDATE orders SET at = '2026-02-02' WHERE id = 2`)
	require.ErrorContains(t, err,
		`the partition "public.odd" has its columns in another order than the attached table "public.orders"`)
}

// Another column takes the name of an attached one, as when its type is changed beside the application:
// attach finds it, and the rows refer by the new one.
func TestAnExchangedColumnIsAttached_I1_I34(t *testing.T) {
	t.Parallel()
	a := newRenamed(t, renamedServices)
	a.write(`INSERT INTO orders (id, customer_id, friend_id) VALUES (1, 1, 2)`)
	a.exec(a.shop, `ALTER TABLE orders ADD COLUMN customer_new text; UPDATE orders SET customer_new = customer_id; CREATE INDEX ON orders (customer_new);
BEGIN; ALTER TABLE orders RENAME customer_id TO customer_old; ALTER TABLE orders RENAME customer_new TO customer_id; COMMIT`)
	exchanged := "customer_id is another column than the attached one, which is called customer_old now: attach again for the new column, or give the attached one its name back"
	require.Equal(t, []string{exchanged}, a.drift(shop))
	require.Equal(t, []string{"TRIGGER_DRIFT orders " + exchanged}, a.verify(shop, false))
	a.SetDown(crm, true)
	a.prepare(shop)
	a.SetDown(crm, false)
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "orders/1", "rows refer by the new column, before their values are read")
	require.Equal(t, []string{"BLOCK " + customer("7")},
		a.lacks(`INSERT INTO orders (id, customer_id) VALUES (2, '7')`))
	a.Settle()
	require.Empty(t, a.drift(shop))
	require.Empty(t, a.verify(shop, false))
	a.exec(a.shop, `ALTER TABLE orders DROP COLUMN customer_old`)
}

// Other roles make no views of the controller's views, and a value of the declaration is no part of a
// statement.
func TestViewsOfAttachedTablesAreTheControllers(t *testing.T) {
	t.Parallel()
	const odd = "removed AS r; added AS r FROM added LIMIT RETURN NULL;"
	a := newRenamed(t, strings.ReplaceAll(renamedServices, "{payer_type: Customer}", `{payer_type: "`+odd+`"}`))
	a.exec(a.shop, `INSERT INTO orders (id, payer_type, payer_id) VALUES (1, '`+odd+`', 1), (2, 'Nobody', 1)`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Settle()
	require.Equal(t, []string{"2"}, a.rows(a.shop, `SELECT id::text FROM orders WHERE payer_id IS NOT NULL`),
		"a value is no part of a statement")

	view := a.rows(a.shop, `SELECT 'dbcontroller.attached_' || kind_id FROM dbcontroller.attachment`)[0]
	a.exec(a.shop,
		`BEGIN; CREATE ROLE dbcontroller_test_somebody; GRANT USAGE ON SCHEMA dbcontroller TO dbcontroller_test_somebody; SET LOCAL ROLE dbcontroller_test_somebody`)
	_, err := a.shop.Exec(t.Context(), `CREATE TEMPORARY VIEW mine AS SELECT * FROM `+view+`; SELECT FROM mine`)
	require.ErrorContains(t, err, "42501")
	a.exec(a.shop, `ROLLBACK`)
}

// An index of the rows that refer is one under any name of its column.
func TestAnIndexIsRecognisedUnderAnyName(t *testing.T) {
	t.Parallel()
	a := newRenamed(t, renamedServices)
	a.exec(a.shop,
		`DROP INDEX orders_customer_id_idx; CREATE INDEX ON orders (customer_id) WHERE customer_id IS NOT NULL; ALTER TABLE orders RENAME customer_id TO buyer`)
	require.False(t, a.plans(shop)[0].Refused())
}

// Code of the owner of a type, and columns that the database computes when triggers have run, are refused.
func TestColumnsThatTriggersCannotReadAreRefused(t *testing.T) {
	t.Parallel()
	a := &attached{Box: harness.NewBox(t, renamedServices, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.crm = a.connect(crm, `CREATE TABLE customers (id bigint PRIMARY KEY)`)
	a.shop = a.connect(shop, `CREATE TYPE payer AS ENUM ('Customer', 'Nobody'); CREATE FUNCTION spoken(payer) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$; CREATE CAST (payer AS text) WITH FUNCTION spoken(payer);
CREATE TABLE orders (id bigint, customer_id bigint, region bytea, payer_type payer, payer_id bigint, friend_id bigint GENERATED ALWAYS AS (customer_id + 1) STORED, PRIMARY KEY (id)) PARTITION BY RANGE (id)`)
	text := fmt.Sprint(a.plans(shop)[0].Findings)
	for _, want := range []string{
		"payer_type is of a type with a cast to text of its own",
		"region: region is of type bytea; want a text or an enum",
		"friend_id: it is generated, and public.orders is partitioned",
	} {
		require.Contains(t, text, want)
	}
}
