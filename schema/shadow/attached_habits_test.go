package shadow_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

// Triggers of the application that rely on the search_path, or on the rights of the session, are named by
// attach with a statement that helps; without it a deletion is refused as by any trigger.
func TestTriggersThatRelyOnTheSessionAreNamed(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1), (2), (3); CREATE TABLE audit_log (what text);
CREATE TABLE addresses (customer bigint REFERENCES customers ON DELETE CASCADE);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO audit_log VALUES (TG_OP); RETURN NULL; END $$;
CREATE FUNCTION audit_public() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$ BEGIN INSERT INTO audit_log VALUES (TG_OP); RETURN NULL; END $$;
CREATE FUNCTION of_an_insert() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER of_an_insert AFTER INSERT ON customers EXECUTE FUNCTION of_an_insert();
CREATE TRIGGER audit AFTER UPDATE OR DELETE ON customers FOR EACH ROW EXECUTE FUNCTION audit();
CREATE TRIGGER audit_address AFTER DELETE ON addresses FOR EACH ROW EXECUTE FUNCTION audit_public()`)
	var helps []string
	for _, p := range a.plans(crm) {
		for _, f := range p.Findings {
			if f.SQL != "" {
				helps = append(helps, f.SQL)
			}
		}
	}
	require.Equal(t, []string{
		"ALTER FUNCTION public.audit() SECURITY DEFINER SET search_path = public, pg_temp;",
		"ALTER FUNCTION public.audit_public() SECURITY DEFINER SET search_path = public, pg_temp;",
	}, helps)
	a.attach()
	refused := func(text string) {
		t.Helper()
		var kept *peer.KeptError
		_, err := a.Delete("//" + crm + "/customers/1")
		require.ErrorAs(t, err, &kept)
		require.Contains(t, kept.Text, text)
		require.Contains(t, kept.Text, "ALTER FUNCTION … SECURITY DEFINER SET search_path = …")
	}
	refused(`relation "audit_log" does not exist`)
	a.exec(a.crm, `ALTER FUNCTION audit() SET search_path = public`)
	refused("permission denied for table audit_log")
	a.exec(a.crm, helps[0]+helps[1])
	require.Empty(t, a.plans(crm)[0].Findings)
	a.MustDelete("//" + crm + "/customers/1")
	a.exec(a.crm, `CREATE FUNCTION inner_one(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1; END';
CREATE FUNCTION outer_one(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN inner_one($1) IS NULL; END';
CREATE TRIGGER checks BEFORE DELETE ON customers FOR EACH ROW WHEN (outer_one(OLD.name)) EXECUTE FUNCTION audit()`)
	var kept *peer.KeptError
	_, err := a.Delete("//" + crm + "/customers/2")
	require.ErrorAs(t, err, &kept)
	require.Contains(t, kept.Text, "function inner_one(text) does not exist")
}

// A publication of all tables, and a deferrable key beside it, keep no deletion: every table of the schema that
// a publication takes has an identity of its rows.
func TestAPublicationOfAllTablesKeepsNoDeletion(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.shop, `CREATE PUBLICATION everything FOR ALL TABLES;
CREATE TABLE lines (id bigint PRIMARY KEY, o uuid REFERENCES orders ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED)`)
	a.exec(a.crm, `INSERT INTO customers VALUES (1), (2)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) VALUES (1, 'x')`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 1`)
	a.Settle()
	require.Empty(t, a.rows(a.shop, `SELECT note FROM orders`))
	require.Empty(t, a.rows(a.shop, `SELECT c.relname::text FROM pg_class c
WHERE c.relnamespace = 'dbcontroller'::regnamespace AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.relreplident = 'd'
    AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)`))
}

// What attach refuses is found as well when it comes afterwards.
func TestWhatAttachRefusesIsFoundAfterwards(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1), (2)`)
	a.attach()
	drift := func() (out []string) {
		all, err := attach.All(context.Background(), a.shop)
		require.NoError(t, err)
		for _, x := range all {
			out = append(out, x.Drift...)
		}
		return out
	}
	require.Empty(t, drift())
	a.exec(a.shop, `DROP INDEX orders_customer_id_idx; CREATE INDEX ON orders (customer_id) WHERE note = 'x';
ALTER TABLE orders SET UNLOGGED; ALTER TABLE orders ALTER approver_id SET NOT NULL`)
	require.ElementsMatch(t, []string{
		"no index finds the rows that refer by customer_id: each deletion of a target reads the table",
		"the column approver_id is NOT NULL, and UNSET sets it to NULL",
		"the table is UNLOGGED: a crash of the server empties it, and no trigger sees that",
	}, drift())
	require.Len(t, a.verify(shop, false), 3)
	a.exec(a.shop, `CREATE INDEX ON orders (customer_id, note) WHERE customer_id IS NOT NULL;
ALTER TABLE orders SET LOGGED; ALTER TABLE orders ALTER approver_id DROP NOT NULL`)
	require.Empty(t, drift())
}

const tagged = `
service: crm.example.com
version: v1
kinds:
  - {kind: Tag, table: public.tags, key: [name], patterns: ["tags/{tag}"]}
---
service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Label
    table: public.labels
    key: [id]
    patterns: ["labels/{label}"]
    references:
      - {columns: [tag], targets: [crm.example.com/Tag], region: eu, behaviour: CASCADE_DELETE}
`

// An index finds rows with its own collation alone: that of the column, or "C". The one that attach makes has
// any free name, and the rest of a build that did not end is named.
func TestAnIndexThatFindsRowsIsMade(t *testing.T) {
	t.Parallel()
	a := &attached{Box: harness.NewBox(t, tagged, func(cfg *shadow.Config) { cfg.Delegations = true }, crm, shop), t: t}
	a.shop = a.connect(shop, `CREATE TABLE labels (id bigint PRIMARY KEY, tag text);
CREATE INDEX labels_tag_idx ON labels (tag COLLATE "en-x-icu"); INSERT INTO labels VALUES (1, 'a'), (2, 'a')`)
	_, err := a.shop.Exec(t.Context(), `CREATE UNIQUE INDEX CONCURRENTLY broken ON labels (tag)`)
	require.Error(t, err)
	p := a.plans(shop)[0]
	require.True(t, p.Refused())
	text := fmt.Sprint(p.Findings)
	require.Contains(t, text, "tag: no index finds the rows that refer to a target")
	require.Contains(t, text, `tag: the index broken is left of a build that did not end DROP INDEX CONCURRENTLY "public"."broken";`)
	plans := a.plans(shop)
	a.exec(a.shop, `SET statement_timeout = '1ms'`)
	var told []string
	created, err := attach.CreateIndexes(t.Context(), a.shop, plans, func(sql string) { told = append(told, sql) })
	a.exec(a.shop, `SET statement_timeout = 0`)
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, []string{`CREATE INDEX CONCURRENTLY ON "public"."labels" ("tag");`}, told)
	require.False(t, a.plans(shop)[0].Refused())
	a.exec(a.shop, `DROP INDEX labels_tag_idx1; CREATE INDEX ON labels (tag COLLATE "C")`)
	require.False(t, a.plans(shop)[0].Refused())
}

// The number of resources that a new column of deleted rows takes along does not depend on the time zone and the
// style of dates of whoever attaches.
func TestTheTextsOfKeysDependOnNoSession(t *testing.T) {
	t.Parallel()
	services := strings.NewReplacer("Tag, table: public.tags, key: [name], patterns: [\"tags/{tag}\"]",
		"Event, table: public.events, key: [at], gone: deleted_at, patterns: [\"events/{event}\"]", "/Tag]", "/Event]").Replace(tagged)
	a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) { cfg.Delegations = true }, crm, shop), t: t}
	a.crm = a.connect(crm, `CREATE TABLE events (at timestamptz PRIMARY KEY, deleted_at timestamptz); INSERT INTO events VALUES ('2026-01-01 10:00+00')`)
	a.shop = a.connect(shop, `CREATE TABLE labels (id bigint PRIMARY KEY, tag timestamptz); CREATE INDEX ON labels (tag)`)
	a.attach()
	a.exec(a.shop, `INSERT INTO labels VALUES (1, '2026-01-01 10:00+00')`) // the row becomes a resource
	a.Settle()
	a.exec(a.crm, `UPDATE dbcontroller.attachment SET definition = definition - 'gone', checksum = '';
SET session_replication_role = replica; UPDATE events SET deleted_at = now(); RESET session_replication_role`)
	for _, set := range []string{`SET TimeZone = 'UTC'`, `SET TimeZone = 'Asia/Tokyo'`, `SET DateStyle = 'German'`} {
		a.exec(a.crm, set)
		require.EqualValues(t, 1, a.plans(crm)[0].Deletes, set)
	}
}

// The types of a polymorphic reference may be names of classes, with backslashes, whatever the setting of a session
// says of them.
func TestTypesMayHaveBackslashes(t *testing.T) {
	t.Parallel()
	for _, enforce := range []string{"strict", "async"} {
		services := strings.Replace(tagged, "behaviour: CASCADE_DELETE",
			`behaviour: CASCADE_DELETE, enforce: `+enforce+`, when: {tag_type: 'App\Models\O''Tag'}, none: ['\']`, 1)
		a := &attached{Box: harness.NewBox(t, services, func(cfg *shadow.Config) { cfg.Delegations = true }, crm, shop), t: t}
		a.crm = a.connect(crm, `CREATE TABLE tags (name text PRIMARY KEY); INSERT INTO tags VALUES ('red'), ('blue')`)
		a.shop = a.connect(shop, `CREATE TABLE labels (id bigint PRIMARY KEY, tag_type text, tag text); CREATE INDEX ON labels (tag_type, tag)`)
		a.attach()
		old := a.connect(shop, `SET standard_conforming_strings = off`)
		for id, conn := range []*pgx.Conn{a.shop, old} {
			insert := fmt.Sprintf(`INSERT INTO labels VALUES (%d, E'App\\Models\\O''Tag', 'red'), (%d, 'Note', 'red'), (%d, E'App\\Models\\O''Tag', E'\\')`, id, 10+id, 20+id)
			if _, err := conn.Exec(t.Context(), insert); err != nil {
				require.Equal(t, "strict", enforce, err)
				require.ErrorContains(t, err, "lacking")
				a.acquire([]string{"ACT //" + crm + "/tags/red"})
				a.exec(conn, insert)
			}
		}
		a.Settle()
		a.exec(a.crm, `DELETE FROM tags WHERE name = 'red'`)
		a.Settle()
		require.Equal(t, []string{"10", "11", "20", "21"}, a.rows(a.shop, `SELECT id::text FROM labels ORDER BY id`))
		require.Empty(t, a.verify(shop, false))
	}
}
