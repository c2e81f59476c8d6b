package shadow_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const oddServices = `
service: crm.example.com
version: v1
kinds:
  - {kind: Tag, table: public.tags, key: [name], patterns: ["tags/{tag}"]}
  - {kind: Seat, table: public.My Seats, key: [Room, "Number"], patterns: ["seats/{seat}"]}
---
service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Mark
    table: public.Marks
    key: [a, b]
    patterns: ["marks/{mark}"]
    references:
      - {columns: [tag], targets: [crm.example.com/Tag], region: eu, behaviour: CASCADE_DELETE, enforce: strict}
      - {columns: [other], targets: [crm.example.com/Tag], region: {column: other region}, behaviour: CASCADE_DELETE, enforce: strict}
      - {columns: [Room, "Seat"], targets: [crm.example.com/Seat], region: eu, behaviour: BLOCK, enforce: strict}
  - kind: Label
    table: public.labels
    key: [id]
    patterns: ["labels/{label}"]
    references:
      - {columns: [tag], targets: [crm.example.com/Tag], region: eu, behaviour: CASCADE_DELETE}
      - {columns: [other], targets: [crm.example.com/Tag], region: eu, behaviour: UNSET}
`

// Sessions that read literals and names differently.
const oddSessionSQL = `
SET standard_conforming_strings = off; SET escape_string_warning = off; SET quote_all_identifiers = on; SET array_nulls = off; SET transform_null_equals = on;
SET plpgsql.variable_conflict = use_column; SET plpgsql.extra_errors = 'all'; SET join_collapse_limit = 1; SET from_collapse_limit = 1;
SET enable_hashjoin = off; SET enable_indexscan = off; SET bytea_output = escape; SET DateStyle = 'SQL, DMY'; SET search_path = evil, pg_temp, public, pg_catalog`

func newOdd(t *testing.T) *attached {
	t.Helper()
	a := &attached{Box: harness.NewBox(t, oddServices, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	const evil = `CREATE SCHEMA evil; CREATE FUNCTION evil.replace(text, text, text) RETURNS text LANGUAGE sql AS 'SELECT ''evil''::text';
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''infinity''::timestamptz';`
	a.crm = a.connect(crm, evil+`
CREATE TABLE tags (name text PRIMARY KEY);
CREATE TABLE "My Seats" ("Room" text COLLATE "C", "Number" text COLLATE "POSIX", PRIMARY KEY ("Room", "Number"));
GRANT ALL ON tags, "My Seats" TO dbcontroller_box_serving; INSERT INTO tags VALUES ('red'), ('Red'), ('blue'); INSERT INTO "My Seats" VALUES (E'a,\\', '1');`+oddSessionSQL)
	a.shop = a.connect(shop, evil+`
CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE DOMAIN place AS text;
CREATE TABLE "Marks" (a text COLLATE "C", b text COLLATE "POSIX", tag text COLLATE folded, other text, "other region" place COLLATE folded,
    "Room" text COLLATE folded, "Seat" text, number text, known int, own int, statement int, added int, t int, r int, names text[], PRIMARY KEY (a, b));
CREATE TABLE labels (id text PRIMARY KEY, tag text COLLATE folded, other varchar, upper text GENERATED ALWAYS AS (upper(id)) STORED);
CREATE INDEX ON labels (tag); CREATE INDEX ON labels (other); CREATE INDEX ON "Marks" (tag); CREATE INDEX ON "Marks" (other); CREATE INDEX ON "Marks" ("Room", "Seat");
GRANT ALL ON "Marks", labels TO dbcontroller_box_serving;`+oddSessionSQL)
	for _, id := range []string{crm, shop} {
		conn := a.connect(id, ``)
		plans, err := attach.Prepare(context.Background(), conn, a.Stores[a.ID(id)].Model(), false)
		require.NoError(t, err)
		for _, p := range plans {
			require.False(t, p.Refused(), "%v", p.Findings)
			require.NoError(t, attach.Apply(context.Background(), conn, p, func(err error) { t.Log(err) }))
		}
		a.Capture(a.ID(id))
	}
	a.Settle()
	return a
}

// Keys and references of any text, in columns of any collation, are written in sessions of any settings: no
// statement fails for the bookkeeping of its trigger.
func TestTriggersTakeOddTablesAndSessions(t *testing.T) {
	t.Parallel()
	a := newOdd(t)
	require.Equal(t, []string{"ACT //" + crm + "/tags/red"},
		a.lacks(`INSERT INTO "Marks" (a, b, tag) VALUES (E'x,\\', 'y', 'red')`))
	seat := []string{"BLOCK //" + crm + "/seats/a%5C,%5C%5C,1"}
	require.Equal(t, seat, a.lacks(`INSERT INTO "Marks" (a, b, "Room", "Seat") VALUES ('s', 's', E'a,\\', '1')`))
	a.acquire(append(seat, "ACT //"+crm+"/tags/red", "ACT //"+crm+"/tags/Red", "ACT //"+crm+"/tags/blue"))
	a.exec(a.shop,
		`INSERT INTO "Marks" VALUES (E'x,\\', 'y', 'red', 'blue', 'eu', E'a,\\', '1'), ('z', 'z', NULL, 'red', NULL, 'r', NULL)`)
	a.Settle()
	require.Zero(t, a.Count(shop, "reference"))
	a.exec(a.shop, `UPDATE "Marks" SET tag = 'Red', b = 'y2' WHERE b = 'y'`)
	a.Settle()
	require.Equal(t, []string{`Mark marks/x%5C,%5C%5C,y2 tag`}, a.referrersOf("tags/Red", 1))
	_ = a.refused(a.crm, `DELETE FROM "My Seats"`)
	a.exec(a.shop, `DELETE FROM "Marks"`)

	a.exec(a.shop, `INSERT INTO labels (id, tag, other) VALUES ('l', 'red', 'blue')`)
	a.Settle()
	a.exec(a.shop, `UPDATE labels SET tag = 'Red'`) // equal by the collation of the column, and another target
	a.Settle()
	a.exec(a.crm, `DELETE FROM tags WHERE name = 'red'`)
	a.Settle()
	require.Equal(t, []string{"Red"}, a.rows(a.shop, `SELECT tag FROM labels`))
	a.exec(a.crm, `DELETE FROM tags WHERE name = 'Red'`)
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT id FROM labels`))
	a.returned()
	a.exec(a.crm, `DELETE FROM "My Seats"`)
	a.Settle()
	a.Expire(crm) // a right that was asked for twice, on a slow machine, has an attempt that is never decided
	a.Settle()
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A key that is no name of a resource, such as a long one, fails no statement: it is reported. A value that
// is none refers to nothing, and leaves the other references of its row alone.
func TestKeysThatAreNoNames(t *testing.T) {
	t.Parallel()
	a := newOdd(t)
	const long = `(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 80) g)`
	const words = `(SELECT string_agg(chr(1000 + (hashint4(g) & 4095) % 900), '') FROM generate_series(1, 1000) g)`
	a.exec(a.crm, `INSERT INTO tags VALUES (''), ('.'), ('..'), (`+long+`), (`+words+`)`)
	a.exec(a.shop, `INSERT INTO labels (id, tag) SELECT i, 'blue' FROM unnest(ARRAY['', '.', `+long+`, `+
		words+`]) AS i`)
	a.exec(a.shop, `INSERT INTO labels (id, tag, other) VALUES ('n', 'blue', ''), ('m', 'blue', `+long+`)`)
	a.Settle()
	require.Equal(t, []string{"true 2"},
		a.rows(a.shop, `SELECT missing || ' ' || count(*) FROM dbcontroller.lacking GROUP BY missing`), "of n and m")
	require.Empty(t, a.verify(shop, false))
	a.exec(a.crm, `DELETE FROM tags WHERE name = 'red'`)
	_ = a.refused(a.crm, `UPDATE tags SET name = 'green' WHERE name = 'blue'`)
	for _, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		a.exec(a.crm, `BEGIN ISOLATION LEVEL `+level+
			`; DELETE FROM tags WHERE name <> 'blue'; UPDATE tags SET name = name || 'x' WHERE name <> 'blue'; ROLLBACK`)
	}
	a.exec(a.shop,
		`UPDATE labels SET other = 'blue' WHERE id IN ('n', 'm'); DELETE FROM labels WHERE id IN ('', '.') OR length(id) > 9`)
	a.again()
	require.Empty(t, a.noted(), "no row has them")

	lacking := a.lacks(`INSERT INTO "Marks" (a, b, tag) VALUES ('x', 'y', ''), ('x', 'z', ` + long + `)`)
	require.Len(t, lacking, 2)
	for _, right := range lacking {
		a.exec(a.shop, `SELECT dbcontroller.acquire($1)`, []string{right})
		a.AnswerRequests(shop)
		require.Contains(t, a.refused(a.shop, `SELECT dbcontroller.acquired(ARRAY['`+right+`'], interval '0')`).Message,
			"does not exist")
	}
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A trigger of the application that keeps a row from a cascade keeps the deletion too: the row does not stay
// behind in silence.
func TestTriggersOfTheApplicationKeepRows(t *testing.T) {
	t.Parallel()
	a := newOdd(t)
	a.exec(a.shop, `
CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN CASE WHEN TG_OP = ''UPDATE'' THEN OLD END; END';
CREATE TRIGGER keep BEFORE DELETE OR UPDATE ON labels FOR EACH ROW EXECUTE FUNCTION public.keep();
INSERT INTO labels (id, tag, other) VALUES ('deleted', 'blue', NULL), ('unset', NULL, 'red')`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM tags WHERE name IN ('red', 'blue')`)
	a.Capture(a.ID(crm))
	for range 3 {
		_, _ = a.Act(a.ID(shop), a.ID(crm))
	}
	require.Equal(t, 2, a.Count(crm, "deleting"), "nobody acknowledged a deletion whose holders stay")
	require.Equal(t, []string{"deleted", "unset"},
		a.rows(a.shop, `SELECT id FROM labels WHERE tag IS NOT NULL OR other IS NOT NULL ORDER BY id`))
	a.exec(a.shop, `DROP TRIGGER keep ON labels`)
	a.Settle()
	require.Zero(t, a.Count(crm, "deleting"))
	require.Equal(t, []string{"unset"}, a.rows(a.shop, `SELECT id FROM labels WHERE tag IS NULL AND other IS NULL`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// A row that a policy hides from the controller does not count as deleted: nothing of the table is read until
// the controller sees all rows.
func TestHiddenRowsAreNotGone(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	a.write(`INSERT INTO invoices (id, customer_id) VALUES ('i', 1)`)
	a.write(`INSERT INTO orders (customer_id, note) VALUES (2, 'x')`)
	a.Settle()
	a.exec(a.shop,
		`ALTER TABLE invoices ENABLE ROW LEVEL SECURITY; ALTER TABLE orders ENABLE ROW LEVEL SECURITY; UPDATE invoices SET customer_id = 1, id = 'j'`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 2`)
	a.Capture(a.ID(crm))
	_, _ = a.Act(a.ID(shop), a.ID(crm))
	require.Equal(t, 1, a.Count(crm, "deleting"))
	a.exec(a.shop,
		`CREATE POLICY none ON invoices USING (false); ALTER TABLE invoices DISABLE ROW LEVEL SECURITY; ALTER TABLE orders DISABLE ROW LEVEL SECURITY`)
	a.Settle()
	require.Zero(t, a.Count(crm, "deleting"))
	_, err := a.Delete(customer("1"))
	require.ErrorContains(t, err, "invoices/j")
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// Statements of the application deadlock where they do so without triggers: by the rows that they delete in
// other orders. One of them fails, and the other takes effect. References in other orders do not.
func TestDeadlocksAreThoseOfTheRows_I1(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	ctx := context.Background()
	a.attach()
	a.exec(a.crm, `INSERT INTO customers SELECT generate_series(1, 2)`)
	begin := func(conn *pgx.Conn, sql string) pgx.Tx {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, sql)
		require.NoError(t, err)
		return tx
	}
	end := func(tx pgx.Tx, sql string) error {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return errors.Join(err, tx.Rollback(ctx))
		}
		return tx.Commit(ctx)
	}
	one, two := begin(a.shop, `INSERT INTO orders (customer_id) VALUES (1)`),
		begin(a.connect(shop, ``), `INSERT INTO orders (customer_id) VALUES (2)`)
	require.NoError(t, end(one, `INSERT INTO orders (customer_id) VALUES (2)`))
	require.NoError(t, end(two, `INSERT INTO orders (customer_id) VALUES (1)`))
	a.Settle()
	require.Empty(t, a.noted())

	one, two = begin(a.crm, `DELETE FROM customers WHERE id = 1`),
		begin(a.connect(crm, ``), `DELETE FROM customers WHERE id = 2`)
	first := make(chan error, 1)
	go func() { first <- end(one, `DELETE FROM customers WHERE id = 2`) }()
	outcomes := []error{end(two, `DELETE FROM customers WHERE id = 1`), <-first}
	slices.SortFunc(outcomes, func(x, y error) int { return cmp.Compare(fmt.Sprint(x == nil), fmt.Sprint(y == nil)) })
	var pg *pgconn.PgError
	require.ErrorAs(t, outcomes[0], &pg)
	require.Equal(t, "40P01", pg.Code)
	require.NoError(t, outcomes[1])
	a.Settle()
	require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}
