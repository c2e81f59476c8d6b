package schema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

func TestTableNamesAreWrittenAsInTheCatalogue(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]schema.TableName{
		"orders":                     {Schema: "public", Name: "orders"},
		"shop.orders":                {Schema: "shop", Name: "orders"},
		"public.Weird Table":         {Schema: "public", Name: "Weird Table"},
		`public."a.b"`:               {Schema: "public", Name: "a.b"},
		`"a.b"."say ""x"""`:          {Schema: "a.b", Name: `say "x"`},
		"public.Ünïcode":             {Schema: "public", Name: "Ünïcode"},
		`"order"`:                    {Schema: "public", Name: "order"},
		`public."Quoted for naught"`: {Schema: "public", Name: "Quoted for naught"},
	} {
		got, err := schema.ParseTableName(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		again, err := schema.ParseTableName(got.String())
		require.NoError(t, err, text)
		require.Equal(t, want, again, text)
	}
	for _, text := range []string{"", ".", "a.", ".a", "a.b.c", `"a`, `"a"b`, `""`, `a"b`, `a."b`, `a.b"`} {
		_, err := schema.ParseTableName(text)
		require.Error(t, err, text)
	}
	require.Equal(t, `"s"."say ""x"""`, schema.TableName{Schema: "s", Name: `say "x"`}.SQL())
}

const tables = `service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Order
    table: public.orders
    key: [id]
    patterns: ["orders/{order}"]
    references:
      - columns: [customer_region, customer_id]
        targets: [crm.example.com/Customer]
        region: {column: customer_region}
        behaviour: BLOCK
        enforce: strict
        missing: unset
---
service: crm.example.com
version: v1
kinds:
  - kind: Customer
    table: public.customers
    key: [region, id]
    patterns: ["customers/{customer}"]
`

func TestTablesAreDeclared(t *testing.T) {
	t.Parallel()
	f, err := schema.ParseFile("f.yaml", strings.NewReader(tables))
	require.NoError(t, err)
	require.NoError(t, schema.Check(f.Services))
	k := f.Services[0].Kinds[0]
	require.Equal(t, schema.TableName{Schema: "public", Name: "orders"}, k.Table)
	require.Equal(t, []string{"id"}, k.Key)
	r := k.References[0]
	require.Equal(t, "customer_region,customer_id", r.Field())
	require.Equal(t, schema.TargetRegion{Column: "customer_region"}, r.Region)
	require.Equal(t, schema.EnforceStrict, r.Enforce)
	require.Equal(t, schema.MissingUnset, r.Missing)
}

// One column names resources of several kinds, and another one says of which.
func TestAConditionChoosesAmongReferences(t *testing.T) {
	t.Parallel()
	text := func(whens ...string) string {
		out := "service: shop.example.com\nversion: v1\nkinds:\n  - kind: Note\n    table: notes\n    key: [id]\n    patterns: [\"notes/{note}\"]\n    references:\n"
		for _, when := range whens {
			out += "      - {columns: [owner_id], targets: [Note], behaviour: BLOCK, when: " + when + "}\n"
		}
		return out
	}
	f, err := schema.ParseFile("f.yaml", strings.NewReader(text("{owner_type: Customer}", "{owner_type: 7}",
		"{owner_type: \"Crm::Customer\"}")))
	require.NoError(t, err)
	require.NoError(t, schema.Check(f.Services))
	r := f.Services[0].Kinds[0].References
	require.Equal(t, schema.RowCondition{Column: "owner_type", Value: "7"}, r[1].When)
	require.Equal(t, "owner_id__Customer", r[0].BodyPath())
	require.Equal(t, "owner_id__7", r[1].BodyPath())
	require.Regexp(t, "^_owner_id__Crm__Customer_[0-9a-f]{8}$", r[2].BodyPath())
	for when, says := range map[string]string{
		"{owner_type: Customer}, none: [0]}\n      - {columns: [owner_id], targets: [Note], behaviour: BLOCK, when: {owner_type: Customer}": "is listed twice",
		"Customer":                      "want one column and its value",
		"{a: b, c: d}":                  "want one column and its value",
		"{owner_type: \"\"}":            "the column or the value is empty",
		"{owner_id: 7}":                 "when: owner_id is a column that refers",
		`{owner_type: "Crm\nCustomer"}`: "has a line break",
	} {
		f, err := schema.ParseFile("f.yaml", strings.NewReader(text(when)))
		if err == nil {
			err = schema.Check(f.Services)
		}
		require.ErrorContains(t, err, says, when)
	}
}

// Each mistake is named with its file, line, path and remedy.
func TestMistakesInTablesAreNamed(t *testing.T) {
	t.Parallel()
	for from, c := range map[string]struct{ to, says string }{
		"table: public.orders": {
			"table: a.b.c",
			"f.yaml:6: kinds[Order].table: table \"a.b.c\": want schema.table",
		},
		"    key: [id]\n": {
			"",
			"kinds[Order]: kind Order has a table and no key; add key: [id]",
		},
		"key: [id]": {
			"key: [id, id]",
			`key: column "id" is empty or listed twice`,
		},
		"    table: public.orders\n": {"", "kind Order has a key and no table; add table"},
		"orders/{order}": {
			"shops/{shop}/orders/{order}",
			"the key of a row is one id of its name, and pattern shops/{shop}/orders/{order} has 2",
		},
		"columns: [customer_region, customer_id]": {
			"columns: [customer_id]",
			"f.yaml:10: kinds[Order].references[customer_id]: the key of Customer has 2 columns, and the reference has 1; name one column for each: region, id",
		},
		"- columns: [customer_region, customer_id]": {
			"- path: customer",
			"kind Order has a table: its references are columns, not paths",
		},
		"enforce: strict": {
			"enforce: now",
			`kinds[Order].references[customer_region,customer_id].enforce: "now"; write async or strict`,
		},
		"missing: unset": {
			"missing: ignore",
			`"ignore"; write report or unset or delete`,
		},
		"{column: customer_region}": {
			"Nowhere",
			`region "Nowhere": want lower-case letters`,
		},
		"{column: customer_region}\n": {"{field: x}\n", `unknown key "field"`},
		"        missing: unset\n": {
			"        missing: unset\n        none: [0]\n",
			"none is for a reference of one column, and this one has 2",
		},
		"    table: public.customers\n    key: [region, id]\n": {
			"    references: [{columns: [x], targets: [Customer], behaviour: BLOCK}]\n",
			"columns, region, enforce, missing, none, when, unset, unset_to and match are for kinds with a table",
		},
		"    key: [id]": {
			"    key: [id]\n    gone: id",
			"gone: id is a column of the key",
		},
		"    patterns: [\"orders/{order}\"]": {
			"    gone: customer_id\n    patterns: [\"orders/{order}\"]", "gone: customer_id is a column that refers",
		},
		"    table: public.orders\n    key: [id]\n": {
			"    gone: deleted_at\n",
			"gone is for a kind with a table, and Order has none",
		},
		"behaviour: BLOCK": {
			"unset: [customer_id]\n        behaviour: UNSET\n        match: full",
			"match: full allows no row with NULL in some of the columns, and unset names 1 of 2",
		},
		"        behaviour: BLOCK\n": {
			"        behaviour: UNSET\n        unset: [note]\n",
			"unset: note is none of the columns",
		},
		"behaviour: BLOCK\n        enforce: strict\n": {
			"behaviour: UNSET\n        unset_to: default\n",
			"missing: unset would set rows to a default that may be missing too",
		},
		"enforce: strict\n        missing: unset\n": {
			"unset_to: default\n        enforce: async\n",
			"unset and unset_to are for references that are unset",
		},
		"behaviour: BLOCK\n        enforce: strict\n        missing: unset\n": {
			"behaviour: UNSET\n        unset_to: default\n        enforce: strict\n",
			"unset_to: default needs the right to refer to the default",
		},
		"  - kind: Customer\n": {
			"  - {kind: Other, table: customers, key: [id], patterns: [\"others/{other}\"]}\n  - kind: Customer\n",
			"table public.customers belongs to Other and to Customer",
		},
		"    references:\n": {
			"    parents: [{kind: crm.example.com/Customer, behaviour: BLOCK}]\n    references:\n",
			"its names do not lie below those of a parent",
		},
	} {
		text := strings.Replace(tables, from, c.to, 1)
		require.NotEqual(t, tables, text, from)
		f, err := schema.ParseFile("f.yaml", strings.NewReader(text))
		if err == nil {
			err = schema.Check(f.Services)
		}
		require.ErrorContains(t, err, c.says, from)
	}
}
