// Package attached plays random SQL against attached tables of three databases, and compares them with one
// database that holds the same tables with native foreign keys. The controllers run in one process
// (harness.Box), step by step, in any order, with crashes, second processes, regions that are away, and
// restored backups.
package attached

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strings"
)

const (
	crm  = "crm.example.com/eu"
	shop = "shop.example.com/eu"
	post = "post.example.com/eu"
)

var deployments = []string{crm, shop, post}

const services = `
service: crm.example.com
version: v1
kinds:
  - {kind: Customer, table: public.customers, key: [id], patterns: ["customers/{customer}"]}
  - {kind: Seat, table: public.seats, key: [room, "number"], gone: gone, patterns: ["seats/{seat}"]}
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
  - kind: Line
    table: public.lines
    key: [id]
    patterns: ["lines/{line}"]
    references:
      - {columns: [customer_id], targets: [crm.example.com/Customer], behaviour: UNSET}
  - kind: Invoice
    table: public.invoices
    key: [id]
    patterns: ["invoices/{invoice}"]
    references:
      - {columns: [customer_id], targets: [crm.example.com/Customer], behaviour: BLOCK}
      - {columns: [room, seat], targets: [crm.example.com/Seat], behaviour: BLOCK, missing: unset}
---
service: post.example.com
version: v1
imports: [crm.example.com@v1, shop.example.com@v1]
kinds:
  - kind: Parcel
    table: public.parcels
    key: [id]
    gone: gone_at
    patterns: ["parcels/{parcel}"]
    references:
      - {columns: [order_id], targets: [shop.example.com/Order], behaviour: CASCADE_DELETE, missing: delete}
      - {columns: [customer_id], targets: [crm.example.com/Customer], behaviour: UNSET, missing: unset}
`

var tables = map[string]string{
	crm: `
CREATE TABLE groups (id integer PRIMARY KEY);
CREATE TABLE customers (id bigint PRIMARY KEY, group_id integer REFERENCES groups ON DELETE CASCADE, name text);
CREATE TABLE seats (room text, number integer, gone boolean NOT NULL DEFAULT false, PRIMARY KEY (room, number));`,
	shop: `
CREATE TABLE orders (id text PRIMARY KEY, customer_id bigint, approver_id bigint, approver_region text, note text);
CREATE TABLE lines (id integer PRIMARY KEY, order_id text REFERENCES orders ON DELETE CASCADE, customer_id bigint);
CREATE TABLE invoices (id text PRIMARY KEY, customer_id bigint, room text, seat integer);
CREATE INDEX ON orders (customer_id); CREATE INDEX ON orders (approver_id); CREATE INDEX ON lines (customer_id); CREATE INDEX ON invoices (customer_id); CREATE INDEX ON invoices (room, seat);`,
	post: `
CREATE TABLE parcels (id uuid PRIMARY KEY, order_id text, customer_id bigint, gone_at timestamptz); CREATE INDEX ON parcels (order_id); CREATE INDEX ON parcels (customer_id);`,
}

// reference is a reference between the databases.
type reference struct {
	table, name  string
	columns      []string
	region       string // the column with the region
	target, kind string
	service      string
	key          []string
	action       string // of a native key
	missing      string // report, unset or delete
}

var references = []reference{
	{
		"orders", "customer_id",
		[]string{"customer_id"},
		"", "customers", "customers", crm,
		[]string{"id"},
		"CASCADE", "report",
	},
	{
		"orders", "approver_id",
		[]string{"approver_id"},
		"approver_region", "customers", "customers", crm,
		[]string{"id"},
		"SET NULL", "report",
	},
	{
		"lines", "customer_id",
		[]string{"customer_id"},
		"", "customers", "customers", crm,
		[]string{"id"},
		"SET NULL", "report",
	},
	{
		"invoices", "customer_id",
		[]string{"customer_id"},
		"", "customers", "customers", crm,
		[]string{"id"},
		"NO ACTION", "report",
	},
	{
		"invoices", "room__seat",
		[]string{"room", "seat"},
		"", "seats", "seats", crm,
		[]string{"room", "number"},
		"NO ACTION", "unset",
	},
	{"parcels", "order_id", []string{"order_id"}, "", "orders", "orders", shop, []string{"id"}, "CASCADE", "delete"},
	{
		"parcels", "customer_id",
		[]string{"customer_id"},
		"", "customers", "customers", crm,
		[]string{"id"},
		"SET NULL", "unset",
	},
}

func of(table string) (all []reference) {
	for _, r := range references {
		if r.table == table {
			all = append(all, r)
		}
	}
	return all
}

// columns are the compared columns, as text; the first is the key.
var columns = map[string][]string{
	"orders":   {"id", "customer_id", "approver_id", "approver_region", "note"},
	"lines":    {"id", "order_id", "customer_id"},
	"invoices": {"id", "customer_id", "room", "seat"}, "parcels": {"id", "order_id", "customer_id"},
	"customers": {"id", "group_id", "name"}, "seats": {"room", "number"},
}

// alive is the condition that a row is not deleted: an application deletes rows of these tables by a column
// too, and brings them back.
var alive = map[string]string{"seats": "NOT gone", "parcels": "gone_at IS NULL"}

func aliveIn(table string) string { return cmp.Or(alive[table], "true") }

var databaseOf = map[string]string{
	"orders": shop, "lines": shop, "invoices": shop, "parcels": post, "customers": crm,
	"seats": crm,
}

// transaction has the statements of one transaction of an application in one database.
type transaction struct {
	at         string
	isolation  string
	statements []string
	// deletes: rows to which others refer may go, or change their keys.
	deletes bool
	// strict: keys of rows may change, or all rows go, which is refused more often than with native keys.
	strict bool
}

func (t transaction) String() string {
	return fmt.Sprintf("%s %s: %s", t.at, t.isolation, strings.Join(t.statements, "; "))
}

type generator struct {
	*rand.Rand
	n int
}

func (g *generator) one(of ...string) string { return of[g.IntN(len(of))] }
func (g *generator) customer() string        { return fmt.Sprint(1 + g.IntN(6)) }
func (g *generator) maybe() string {
	if g.IntN(4) == 0 {
		return "NULL"
	}
	return g.customer()
}
func (g *generator) order() string   { return g.one("'o/1'", "'o,2'", "'ö 3'", "'4'", `'\5'`) }
func (g *generator) invoice() string { return g.one("'i1'", "'i2'", "'i3'") }
func (g *generator) seat() string    { return g.one(`'a,b', 1`, `'a,b', 2`, `'\', 1`) }
func (g *generator) parcel() string {
	return fmt.Sprintf("'00000000-0000-4000-8000-00000000000%d'", g.IntN(6))
}

func (g *generator) transaction() transaction {
	t := transaction{isolation: "READ COMMITTED"}
	if g.IntN(5) == 0 {
		t.isolation = g.one("REPEATABLE READ", "SERIALIZABLE")
	}
	t.at = deployments[min(g.IntN(6), 4)/2]
	for range 1 + g.IntN(3) {
		statement := map[string]func(*transaction) string{crm: g.crm, shop: g.shop, post: g.post}[t.at](&t)
		t.statements = append(t.statements, statement)
	}
	return t
}

func (g *generator) crm(t *transaction) string {
	g.n++
	c := g.customer()
	gone := func(s string) string { t.deletes = true; return s }
	switch g.IntN(13) {
	case 0:
		return gone("DELETE FROM customers WHERE id = " + c)
	case 1:
		return gone("DELETE FROM customers WHERE id % 3 = " + fmt.Sprint(g.IntN(3)))
	case 2:
		return gone("DELETE FROM groups WHERE id = " + g.one("1", "2"))
	case 3:
		return gone(g.one("DELETE FROM seats", "UPDATE seats SET gone = true", "UPDATE seats SET gone = true") +
			" WHERE " + g.one("(room, number) = ("+g.seat()+")", "number > 0"))
	case 4:
		t.strict = true
		return gone(
			fmt.Sprintf(
				"UPDATE customers SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM customers WHERE id = %[1]s)", c,
				g.customer()))
	case 5:
		return gone(
			fmt.Sprintf(
				"WITH gone AS (DELETE FROM customers WHERE id = %s RETURNING id) INSERT INTO customers (id, name) SELECT id + 6, 'moved' FROM gone ON CONFLICT DO NOTHING", c))
	case 6:
		return gone(
			fmt.Sprintf(
				"MERGE INTO customers c USING (VALUES (%s), (%s)) AS n (id) ON c.id = n.id WHEN MATCHED AND c.id %% 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'merged' WHEN NOT MATCHED THEN INSERT (id) VALUES (n.id)", c, fmt.Sprint(7+g.IntN(3))))
	case 7:
		return fmt.Sprintf("INSERT INTO groups VALUES (%s) ON CONFLICT DO NOTHING", g.one("1", "2"))
	case 8:
		return fmt.Sprintf("INSERT INTO seats VALUES (%s) ON CONFLICT (room, number) DO UPDATE SET gone = false",
			g.seat())
	case 9:
		return fmt.Sprintf("UPDATE customers SET name = 'n%d'", g.n)
	case 10:
		return fmt.Sprintf(
			"INSERT INTO customers (id, group_id) SELECT %s, id FROM groups LIMIT 1 ON CONFLICT (id) DO UPDATE SET group_id = EXCLUDED.group_id", c)
	}
	return fmt.Sprintf(
		"INSERT INTO customers (id, name) SELECT c, 'n%d' FROM generate_series(%s, %s) c ON CONFLICT DO NOTHING", g.n,
		c, g.customer())
}

func (g *generator) shop(t *transaction) string {
	g.n++
	o := g.order()
	region := g.one("NULL", "'eu'", "'eu'")
	switch g.IntN(13) {
	case 0:
		t.deletes = true
		return "DELETE FROM orders WHERE id = " + o
	case 1:
		t.deletes, t.strict = true, true
		return fmt.Sprintf(
			"UPDATE orders SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM orders WHERE id = %[1]s)",
			g.order(), o)
	case 2:
		return fmt.Sprintf("UPDATE orders SET customer_id = %s, note = 'n%d' WHERE id = %s", g.maybe(), g.n, o)
	case 3:
		return fmt.Sprintf("UPDATE orders SET approver_id = %s, approver_region = %s", g.maybe(), region)
	case 4:
		rows := g.one("id = "+o, "true") // many rows of one statement may name one target
		return fmt.Sprintf(
			"INSERT INTO lines SELECT 100 * %d + row_number() OVER (ORDER BY id COLLATE \"C\"), id, %s FROM orders WHERE %s", g.n, g.maybe(), rows)
	case 5:
		return g.one("TRUNCATE lines", "TRUNCATE invoices", "DELETE FROM lines WHERE id % 2 = 0",
			"DELETE FROM invoices WHERE id = "+g.invoice(), "UPDATE lines SET id = -id")
	case 6:
		return fmt.Sprintf(
			"MERGE INTO orders o USING (VALUES (%s, %s::bigint), ('m%d', %s::bigint)) AS n (id, c) ON o.id = n.id WHEN MATCHED THEN UPDATE SET customer_id = n.c WHEN NOT MATCHED THEN INSERT (id, customer_id) VALUES (n.id, n.c)", o, g.maybe(), g.IntN(3), g.maybe())
	case 7, 8:
		return fmt.Sprintf(
			"INSERT INTO invoices VALUES (%s, %s, NULL, NULL) ON CONFLICT (id) DO UPDATE SET customer_id = EXCLUDED.customer_id", g.invoice(), g.maybe())
	case 9:
		return fmt.Sprintf(
			"INSERT INTO invoices VALUES (%s, NULL, %s) ON CONFLICT (id) DO UPDATE SET room = EXCLUDED.room, seat = EXCLUDED.seat", g.invoice(), g.seat())
	case 10:
		return fmt.Sprintf("UPDATE invoices SET customer_id = NULL WHERE id = %s", g.invoice())
	}
	return fmt.Sprintf(
		"INSERT INTO orders VALUES (%s, %s, %s, %s, 'n%d') ON CONFLICT (id) DO UPDATE SET customer_id = EXCLUDED.customer_id, approver_id = EXCLUDED.approver_id, approver_region = EXCLUDED.approver_region", o, g.maybe(), g.maybe(), region, g.n)
}

func (g *generator) post(*transaction) string {
	switch g.IntN(5) {
	case 0:
		return g.one("DELETE FROM parcels", "UPDATE parcels SET gone_at = now()") + " WHERE id = " + g.parcel()
	case 1:
		return fmt.Sprintf("UPDATE parcels SET customer_id = %s WHERE id <> %s", g.maybe(), g.parcel())
	}
	return fmt.Sprintf(
		"INSERT INTO parcels VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET order_id = EXCLUDED.order_id, customer_id = CASE WHEN parcels.gone_at IS NULL THEN parcels.customer_id ELSE EXCLUDED.customer_id END, gone_at = NULL", g.parcel(), g.order(), g.maybe())
}
