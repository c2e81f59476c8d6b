package shadow_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const partitionedServices = `
service: crm.example.com
version: v1
kinds:
  - {kind: Customer, table: public.customers, key: [id], patterns: ["customers/{customer}"]}
  - {kind: Event, table: public.events, key: [at, code], patterns: ["events/{event}"]}
---
service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Order
    table: public.orders
    key: [id, at]
    patterns: ["orders/{order}"]
    references:
      - {columns: [customer_id], targets: [crm.example.com/Customer], region: eu, behaviour: BLOCK, enforce: strict}
      - {columns: [approver_id], targets: [crm.example.com/Customer], region: eu, behaviour: UNSET}
      - {columns: [event_at, event_code], targets: [crm.example.com/Event], region: eu, behaviour: CASCADE_DELETE}
`

// newPartitioned has partitioned tables on both sides, in sessions that print times in another form and zone.
func newPartitioned(t *testing.T) *attached {
	t.Helper()
	a := &attached{Box: harness.NewBox(t, partitionedServices, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	const session = `; SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata'`
	a.crm = a.connect(crm, `
CREATE TABLE customers (id numeric(10,0) PRIMARY KEY, name text) PARTITION BY HASH (id);
CREATE TABLE customers_0 PARTITION OF customers FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE customers_1 PARTITION OF customers FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE events (code character(6), at timestamptz, PRIMARY KEY (at, code));
GRANT ALL ON customers, events TO dbcontroller_box_serving;
INSERT INTO customers SELECT g, 'c' FROM generate_series(1, 9) g;
INSERT INTO events VALUES ('ab', '2026-01-02 03:04:05.6+00'), ('cd', '2026-01-02 03:04:05+00')`+session)
	a.shop = a.connect(shop, `
CREATE TABLE orders (id bigint, at date, customer_id bigint, approver_id numeric(12,0), event_at timestamptz, event_code text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE orders_2 (old text, id bigint NOT NULL, at date NOT NULL, customer_id bigint, approver_id numeric(12,0), event_at timestamptz, event_code text);
ALTER TABLE orders_2 DROP COLUMN old;
ALTER TABLE orders ATTACH PARTITION orders_2 FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
CREATE TABLE orders_3 PARTITION OF orders FOR VALUES FROM ('2026-03-01') TO ('2026-05-01') PARTITION BY RANGE (at);
CREATE TABLE orders_31 PARTITION OF orders_3 FOR VALUES FROM ('2026-03-01') TO ('2026-04-01');
GRANT ALL ON orders TO dbcontroller_box_serving`+session)
	a.prepare(crm)
	plans := a.plans(shop)
	require.True(t, plans[0].Refused(), "an index of the columns that refer is missing")
	var told []string
	created, err := attach.CreateIndexes(t.Context(), a.shop, plans, func(sql string) { told = append(told, sql) })
	require.NoError(t, err)
	require.True(t, created)
	require.Contains(t, told, "CREATE INDEX CONCURRENTLY ON orders_31 (\"customer_id\");")
	a.prepare(shop)
	a.Settle()
	return a
}

func (a *attached) plans(deployment string) []*attach.Plan {
	a.t.Helper()
	plans, err := attach.Prepare(a.t.Context(), map[string]*pgx.Conn{crm: a.crm, shop: a.shop}[deployment],
		a.Stores[a.ID(deployment)].Model(), false)
	require.NoError(a.t, err)
	return plans
}

// prepare attaches the tables of a deployment.
func (a *attached) prepare(deployment string) {
	a.t.Helper()
	conn := a.connect(deployment, ``)
	for _, p := range a.plans(deployment) {
		require.False(a.t, p.Refused(), "%v", p.Findings)
		require.NoError(a.t, attach.Apply(a.t.Context(), conn, p, func(err error) { a.t.Log(err) }))
	}
	a.Capture(a.ID(deployment))
}

// Rows of partitioned tables refer, and are referred to, whether statements name the table or a partition,
// and when they move between partitions.
func TestPartitionedTablesReferAndAreReferredTo_I1_I3_I34(t *testing.T) {
	t.Parallel()
	a := newPartitioned(t)
	order := `INSERT INTO orders (id, at, customer_id) VALUES (1, '05/01/2026', 1), (2, '05/02/2026', 2), (3, '05/03/2026', 3)`
	require.Equal(t, []string{"BLOCK " + customer("1"), "BLOCK " + customer("2"), "BLOCK " + customer("3")},
		a.lacks(order))
	a.write(order)
	require.Equal(t, []string{"BLOCK " + customer("4")},
		a.lacks(`INSERT INTO orders_31 (id, at, customer_id) VALUES (4, '06/03/2026', 4)`), "a partition")
	a.write(`INSERT INTO orders_31 (id, at, customer_id) VALUES (4, '06/03/2026', 4)`)
	a.exec(a.shop, `UPDATE orders SET at = '20/02/2026' WHERE id = 1`) // moves
	require.Equal(t, []string{"Order orders/1,2026-02-20 customer_id"}, a.referrersOf("customers/1", 5))
	for _, n := range []string{"1", "2", "3", "4"} {
		refused := a.refused(a.crm, `DELETE FROM customers WHERE id = `+n)
		require.Equal(t, "23503", refused.Code)
		_, err := a.Delete(customer(n))
		require.ErrorContains(t, err, "orders/"+n+",2026-0")
	}
	_ = a.refused(a.crm, `DELETE FROM customers_0`)
	_ = a.refused(a.crm, `DELETE FROM customers_1`)
	_ = a.refused(a.crm, `TRUNCATE customers_1`)
	a.exec(a.crm, `UPDATE customers SET name = 'other'`)
	a.exec(a.shop, `UPDATE orders SET customer_id = 9 WHERE id = -1; DELETE FROM orders_2 WHERE id = 1`)
	a.returned()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)

	// References to resources that are deleted are unset, or delete their rows.
	a.exec(a.shop,
		`UPDATE orders SET approver_id = 8, event_at = '02/01/2026 08:34:05.6', event_code = 'ab' WHERE id = 2`)
	a.exec(a.shop,
		`UPDATE orders_31 SET approver_id = 8, event_at = '02/01/2026 08:34:05', event_code = 'cd' WHERE id = 4`)
	a.again()
	require.Equal(t, []string{"Order orders/2,2026-02-05 event_at__event_code"},
		a.referrersOf("events/2026-01-02%2003:04:05.6+00,ab", 5))
	a.exec(a.crm, `DELETE FROM customers WHERE id = 8; DELETE FROM events WHERE code = 'ab'`)
	a.Settle()
	require.Equal(t, []string{"3 <NULL>", "4 <NULL>"},
		a.rows(a.shop, `SELECT id || ' ' || COALESCE(approver_id::text, '<NULL>') FROM orders ORDER BY id`))
	a.MustDelete("//" + crm + "/events/2026-01-02%2003:04:05+00,cd")
	a.Settle()
	require.Equal(t, []string{"3"}, a.rows(a.shop, `SELECT id::text FROM orders`))
	require.Empty(t, a.rows(a.crm, `SELECT code FROM events`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Partitions come and go without a trigger: a new one is shown until attach has made its triggers, and a
// detached one refers no more.
func TestPartitionsComeAndGo(t *testing.T) {
	t.Parallel()
	a := newPartitioned(t)
	ctx := context.Background()
	drift := func() []string {
		t.Helper()
		all, err := attach.All(ctx, a.shop)
		require.NoError(t, err)
		require.Len(t, all, 1)
		return all[0].Drift
	}
	require.Empty(t, drift())
	a.exec(a.shop, `CREATE TABLE orders_5 PARTITION OF orders FOR VALUES FROM ('2026-05-01') TO ('2026-06-01')`)
	require.Contains(t, drift(),
		"the partition public.orders_5 has no triggers: statements that name it are not seen before you attach again")
	_ = a.lacks(`INSERT INTO orders (id, at, customer_id) VALUES (5, '05/05/2026', 5)`)
	a.prepare(shop)
	require.Empty(t, drift())
	a.write(`INSERT INTO orders_5 (id, at, customer_id) VALUES (5, '05/05/2026', 5)`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 5`)

	a.exec(a.shop, `ALTER TABLE orders DETACH PARTITION orders_5`)
	a.exec(a.shop,
		`INSERT INTO orders_5 (id, at, customer_id) VALUES (6, '06/05/2026', 77); UPDATE orders_5 SET customer_id = 78; DELETE FROM orders_5 WHERE id = 6`)
	a.returned()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 5`)
	a.exec(a.shop,
		`CREATE UNLOGGED TABLE orders_6 PARTITION OF orders FOR VALUES FROM ('2026-06-01') TO ('2026-07-01')`)
	require.True(t, a.plans(shop)[0].Refused())
	a.exec(a.shop, `DROP TABLE orders_6`)

	// Detach finds all triggers, also on a detached partition, and on a table that was renamed.
	a.exec(a.shop, `ALTER TABLE orders RENAME TO purchases`)
	all, err := attach.All(ctx, a.shop)
	require.NoError(t, err)
	require.NoError(t, attach.Detach(ctx, a.shop, all[0], func(err error) { t.Log(err) }))
	require.Equal(t, []string{"0"},
		a.rows(a.shop, `SELECT count(*)::text FROM pg_trigger WHERE tgname LIKE 'dbcontroller%' AND NOT tgisinternal`))
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// MERGE does not tell the trigger of its statement of a row that it moves to another partition.
func TestARowThatAMergeMovesRefers_I1_I3_I34(t *testing.T) {
	t.Parallel()
	a := newPartitioned(t)
	a.write(`INSERT INTO orders (id, at, customer_id) VALUES (1, '05/01/2026', 1)`)
	merge := `MERGE INTO orders o USING (VALUES (1, 7)) AS v (a, b) ON o.id = v.a WHEN MATCHED THEN UPDATE SET customer_id = v.b, at = DATE '2026-02-02'`
	require.Equal(t, []string{"BLOCK " + customer("7")}, a.lacks(merge))
	a.write(merge)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 7`)
	for n := 100; n < 110; n++ { // of a hash, some are in the other partition
		_ = a.refused(a.crm,
			fmt.Sprintf(
				`MERGE INTO customers c USING (VALUES (7::numeric, %d::numeric)) AS v (a, b) ON c.id = v.a WHEN MATCHED THEN UPDATE SET id = v.b`, n))
	}
	a.exec(a.shop,
		`MERGE INTO orders o USING (VALUES (1, DATE '2026-03-03')) AS v (a, b) ON o.id = v.a WHEN MATCHED THEN UPDATE SET at = v.b`)
	_, err := a.Delete(customer("7"))
	require.ErrorContains(t, err, "orders/1,2026-03-03")
	a.returned()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A partition that was detached, and is attached again, brings rows without rights: it is shown until attach
// has had them read.
func TestAPartitionThatComesBackIsRead_I34(t *testing.T) {
	t.Parallel()
	a := newPartitioned(t)
	a.write(`INSERT INTO orders (id, at, customer_id) VALUES (1, '05/01/2026', 1)`)
	a.exec(a.shop, `ALTER TABLE orders DETACH PARTITION orders_1`)
	a.returned()
	a.exec(a.shop, `ALTER TABLE orders ATTACH PARTITION orders_1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')`)
	require.Contains(t, a.drift(shop),
		"the partition public.orders_1 has become one since: attach again, so that its rows are read")
	require.NotEmpty(t, a.plans(shop)[0].Statements)
	a.prepare(shop)
	a.Settle()
	require.Empty(t, a.drift(shop))
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)

	a.exec(a.shop,
		`ALTER TABLE orders DETACH PARTITION orders_1; ALTER TABLE orders RENAME TO shell; ALTER TABLE orders_1 RENAME TO orders`)
	require.Equal(t,
		[]string{
			"public.orders is another table than the attached one, which is called public.shell now: attach again for the new table, or give the attached one its name back",
		}, a.drift(shop))
	a.prepare(shop)
	require.Empty(t, a.drift(shop))
	a.Settle()
	require.Equal(t, []string{"BLOCK " + customer("2")},
		a.lacks(`INSERT INTO orders (id, at, customer_id) VALUES (2, '05/01/2026', 2)`))
}

func (a *attached) drift(deployment string) (out []string) {
	a.t.Helper()
	all, err := attach.All(a.t.Context(), map[string]*pgx.Conn{crm: a.crm, shop: a.shop}[deployment])
	require.NoError(a.t, err)
	for _, x := range all {
		out = append(out, x.Drift...)
	}
	return out
}

// Times that few calendars have are keys as others.
func TestOddTimesAreReferredTo_I1_I34(t *testing.T) {
	t.Parallel()
	services := strings.Replace(partitionedServices, "{kind: Event, table: public.events, key: [at, code]",
		"{kind: Event, table: public.events, key: [at]", 1)
	services = strings.Replace(services,
		"columns: [event_at, event_code], targets: [crm.example.com/Event], region: eu, behaviour: CASCADE_DELETE",
		"columns: [event_at], targets: [crm.example.com/Event], region: eu, behaviour: CASCADE_DELETE, missing: delete",
		1)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.crm = a.connect(crm, `
CREATE TABLE customers (id numeric(10,0) PRIMARY KEY); CREATE TABLE events (at date PRIMARY KEY);
GRANT ALL ON customers, events TO dbcontroller_box_serving;
INSERT INTO customers VALUES (1), ('NaN');
INSERT INTO events VALUES ('2026-01-01'), ('infinity'), ('-infinity'), ('0044-03-15 BC'), ('12026-01-01')`)
	a.shop = a.connect(shop, `
CREATE TABLE orders (id bigint, at date, customer_id numeric(10,0), approver_id numeric(10,0), event_at text, PRIMARY KEY (id, at));
CREATE INDEX ON orders (customer_id); CREATE INDEX ON orders (approver_id); CREATE INDEX ON orders (event_at);
GRANT ALL ON orders TO dbcontroller_box_serving`)
	a.prepare(crm)
	a.prepare(shop)
	a.exec(a.shop, `
INSERT INTO orders (id, at, event_at) VALUES (1, '2026-01-01', '2026-01-01'), (2, '2026-01-01', 'infinity'), (3, 'infinity', '0044-03-15 BC'), (4, '0001-01-01 BC', '12026-01-01'),
    (5, '2026-01-01', '0000-01-01'), (6, '2026-01-01', '2026-02-30')`)
	a.Settle()
	a.again()
	for range 3 {
		a.exec(a.shop, `UPDATE dbcontroller.lacking SET since = since - interval '2 min'`)
		a.again()
	}
	require.Equal(t, []string{"1", "2", "3", "4"}, a.rows(a.shop, `SELECT id::text FROM orders ORDER BY id`),
		"two name days that no calendar has")
	a.write(`INSERT INTO orders (id, at, customer_id) VALUES (7, 'infinity', 'NaN')`)
	_, err := a.Delete(customer("NaN"))
	require.ErrorContains(t, err, "orders/7,infinity")
	a.exec(a.crm, `BEGIN ISOLATION LEVEL REPEATABLE READ; DELETE FROM events WHERE at = '0044-03-15 BC'; COMMIT`)
	a.MustDelete("//" + crm + "/events/infinity")
	a.Settle()
	require.Equal(t, []string{"1", "4", "7"}, a.rows(a.shop, `SELECT id::text FROM orders ORDER BY id`))

	_, err = a.crm.Exec(t.Context(),
		`ALTER TABLE customers ALTER id TYPE numeric(12,2) USING CASE WHEN id = 'NaN' THEN 2 ELSE id END`)
	require.ErrorContains(t, err, "cannot alter type of a column used by a view", "its values would have several texts")
}

// A row has one name, with any settings of a session, and no other text names it.
func TestNamesOfTimesAndNumbers(t *testing.T) {
	t.Parallel()
	for typed, texts := range map[string]map[string]bool{
		"date": {
			"2026-01-02": true, "2026-1-2": false, "2026-02-30": false, "infinity": true,
			"0044-03-15 BC": true, "12026-01-01": true, "0000-01-01": false, "02026-01-01": false, "2025-02-29": false,
			"0001-02-29 BC": true, "999999-01-01": false, "today": false,
		},
		"timestamp without time zone": {
			"2026-01-02 03:04:05": true, "2026-01-02 03:04:05.6": true,
			"2026-01-02 03:04:05.60": false, "2026-01-02T03:04:05": false, "0044-03-15 03:04:05 BC": true,
			"2026-01-02 24:00:00": false,
		},
		"timestamp with time zone": {
			"2026-01-02 03:04:05.000006+00": true, "2026-01-02 03:04:05+01": false,
			"2026-01-02 03:04:05": false,
		},
		"numeric": {
			"0": true, "-7": true, "12345678901234567890": true, "-0": false, "07": false,
			"1.0": false, "NaN": true,
		},
		"character": {"ab": true, strings.Repeat(" ", 2): false},
	} {
		d := schema.Definition{Collection: "as", Key: []schema.KeyColumn{{Name: "k", Type: typed}}}
		for text, names := range texts {
			name, err := d.RowName([]string{text})
			require.NoError(t, err)
			key, ok := d.RowKey(name)
			require.Equal(t, names, ok, "%s %q", typed, text)
			require.Equal(t, []string{text}, key)
		}
	}
}
