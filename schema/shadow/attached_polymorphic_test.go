package shadow_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const polymorphicServices = `
service: crm.example.com
version: v1
kinds:
  - {kind: Customer, table: public.customers, key: [id], patterns: ["customers/{customer}"]}
  - {kind: Partner, table: public.partners, key: [id], patterns: ["partners/{partner}"]}
---
service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Note
    table: public.notes
    key: [id]
    patterns: ["notes/{note}"]
    references:
      - {columns: [owner_id], when: {owner_type: Customer}, targets: [crm.example.com/Customer], region: eu, behaviour: BLOCK, enforce: strict}
      - {columns: [owner_id], when: {owner_type: "Crm's Partner"}, targets: [crm.example.com/Partner], region: eu, behaviour: UNSET, missing: unset}
      - {columns: [about_id], when: {content_type_id: 7}, targets: [crm.example.com/Customer], region: eu, behaviour: CASCADE_DELETE}
`

// A column names resources of several kinds, and another column says of which.
func TestAColumnNamesSeveralKinds_I1_I3_I34(t *testing.T) {
	t.Parallel()
	a := &attached{Box: harness.NewBox(t, polymorphicServices, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.crm = a.connect(crm, `
CREATE TABLE customers (id bigint PRIMARY KEY); CREATE TABLE partners (id bigint PRIMARY KEY);
GRANT ALL ON customers, partners TO dbcontroller_box_serving;
INSERT INTO customers SELECT generate_series(1, 9); INSERT INTO partners SELECT generate_series(1, 9)`)
	a.shop = a.connect(shop, `
CREATE TYPE owners AS ENUM ('Customer', 'Crm''s Partner', 'Nobody');
CREATE TABLE notes (id bigint PRIMARY KEY, owner_type owners, owner_id bigint, content_type_id integer, about_id bigint);
INSERT INTO notes (id, owner_type, owner_id) VALUES (-1, 'Customer', 1), (-2, 'Crm''s Partner', 2), (-3, 'Nobody', 3);
GRANT ALL ON notes TO dbcontroller_box_serving`)
	a.prepare(crm)
	plans := a.plans(shop)
	require.True(t, plans[0].Refused())
	created, err := attach.CreateIndexes(t.Context(), a.shop, plans, func(string) {})
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, []string{"content_type_id,about_id", "owner_type,owner_id"}, a.rows(a.shop, `
SELECT DISTINCT (SELECT string_agg(a.attname, ',' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = i.indexrelid) AS columns FROM pg_index i WHERE indrelid = 'notes'::regclass AND NOT indisprimary ORDER BY 1`))
	a.prepare(shop)
	a.Settle()

	// Rows of before attach have their rights.
	_, err = a.Delete(customer("1"))
	require.ErrorContains(t, err, "notes/-1")
	require.Equal(t, []string{"Note notes/-1 owner_id__Customer"}, a.referrersOf("customers/1", 5))
	require.Equal(t, []string{"Note notes/-2 _owner_id__Crm_s_Partner_" + a.suffixOf("owner_id")},
		a.referrersOf("partners/2", 5))
	a.exec(a.crm, `DELETE FROM partners WHERE id IN (1, 3)`)
	a.exec(a.crm, `DELETE FROM customers WHERE id = 3`)

	require.Equal(t, []string{"BLOCK " + customer("5")},
		a.lacks(
			`INSERT INTO notes (id, owner_type, owner_id) VALUES (1, 'Customer', 5), (2, 'Nobody', 6), (3, NULL, 78)`))
	a.write(`INSERT INTO notes (id, owner_type, owner_id) VALUES (1, 'Customer', 5), (2, 'Nobody', 6), (3, NULL, 78)`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 5`)
	a.exec(a.crm, `DELETE FROM partners WHERE id = 5`)

	// Only the kind changes.
	a.exec(a.shop, `UPDATE notes SET owner_type = 'Nobody' WHERE id = 1`)
	a.returned()
	a.exec(a.crm, `DELETE FROM customers WHERE id = 5`)
	require.Equal(t, []string{"BLOCK " + customer("6")},
		a.lacks(`UPDATE notes SET owner_type = 'Customer' WHERE id = 2`))
	a.write(`UPDATE notes SET owner_type = 'Customer' WHERE id = 2`)
	_ = a.refused(a.crm, `DELETE FROM customers WHERE id = 6`)

	// References that act.
	a.exec(a.shop,
		`INSERT INTO notes (id, owner_type, owner_id, content_type_id, about_id) VALUES (4, 'Crm''s Partner', 8, 7, 8), (5, 'Nobody', 8, 8, 8)`)
	a.Settle()
	a.exec(a.crm, `DELETE FROM partners WHERE id = 8`)
	a.Settle()
	require.Equal(t, []string{"4 -", "5 8"},
		a.rows(a.shop, `SELECT id || ' ' || COALESCE(owner_id::text, '-') FROM notes WHERE id > 3 ORDER BY id`))
	a.exec(a.crm, `DELETE FROM customers WHERE id = 8`)
	a.Settle()
	require.Equal(t, []string{"5"}, a.rows(a.shop, `SELECT id::text FROM notes WHERE id > 3`))
	require.JSONEq(t, `{"owner_id__Customer": "`+customer("1")+`"}`, string(a.Get("//"+shop+"/notes/-1").Body))
	require.Empty(t, a.verify(shop, false))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// suffixOf returns the end of the name of the field for a column whose value is no name of a field.
func (a *attached) suffixOf(column string) string {
	a.t.Helper()
	for _, r := range a.Stores[a.ID(shop)].Model().Descriptor.Kinds[0].References {
		if path := r.BodyPath(); r.Columns[0] == column && path[0] == '_' {
			return path[len(path)-8:]
		}
	}
	return ""
}

// A condition whose column goes, or gets another name, or another value, is shown.
func TestAConditionIsCompared_I34(t *testing.T) {
	t.Parallel()
	v1 := strings.Replace(polymorphicServices, `      - {columns: [owner_id], when: {owner_type: "Crm's Partner"}, targets: [crm.example.com/Partner], region: eu, behaviour: UNSET, missing: unset}
`, "", 1)
	_, of, _ := strings.Cut(v1, "---\n")
	v2 := strings.Replace(strings.Replace(of, "when: {owner_type: Customer}, ", "", 1), "version: v1", "version: v2", 1)
	a := &attached{Box: harness.NewBox(t, v1+"---\n"+v2, func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.crm = a.connect(crm, `CREATE TABLE customers (id bigint PRIMARY KEY); CREATE TABLE partners (id bigint PRIMARY KEY);
GRANT ALL ON customers, partners TO dbcontroller_box_serving; INSERT INTO customers SELECT generate_series(1, 9)`)
	a.shop = a.connect(shop, `CREATE TYPE owners AS ENUM ('Customer', 'Nobody');
CREATE TABLE notes (id bigint PRIMARY KEY, owner_type owners, owner_id bigint, content_type_id integer, about_id bigint);
CREATE INDEX ON notes (owner_id); CREATE INDEX ON notes (about_id);
GRANT ALL ON notes TO dbcontroller_box_serving`)
	a.prepare(crm)
	a.prepare(shop)
	a.Settle()
	a.write(`INSERT INTO notes (id, owner_type, owner_id) VALUES (1, 'Customer', 5)`)
	a.exec(a.shop, `ALTER TYPE owners RENAME VALUE 'Customer' TO 'Client'`)
	require.Contains(t, a.drift(shop), "the column owner_type has no value Customer any more")
	a.exec(a.shop, `ALTER TYPE owners RENAME VALUE 'Client' TO 'Customer'`)

	// A former reference whose column has gone is left out.
	a.exec(a.shop, `INSERT INTO notes (id, owner_type, owner_id) VALUES (2, 'Nobody', 6)`)
	a.Switch(shop, "v2")
	a.exec(a.shop, `ALTER TABLE notes DROP COLUMN owner_type CASCADE`)
	a.SetDown(crm, true)
	a.prepare(shop)
	a.SetDown(crm, false)
	_, err := a.Delete(customer("5"))
	require.ErrorContains(t, err, "notes/1")
}
