package attach

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/schema"
)

const orders = `
service: crm.example.com
version: v1
kinds:
  - {kind: Customer, patterns: ["customers/{customer}"]}
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
      - {columns: [customer_id], targets: [crm.example.com/Customer], region: eu, behaviour: UNSET, enforce: strict}
      - {columns: [other_id], targets: [crm.example.com/Customer], region: {column: other_region}, behaviour: BLOCK, enforce: strict}
`

func ordersModel(t *testing.T) *schema.Model {
	t.Helper()
	file, err := schema.ParseFile("orders.yaml", strings.NewReader(orders))
	require.NoError(t, err)
	model, err := schema.NewModel(file.Services[1].ServiceVersion, file.Services)
	require.NoError(t, err)
	return model
}

func ordersTable(change func(*catalogue.Table)) *catalogue.Database {
	bigint, text := catalogue.Type{Schema: "pg_catalog", Name: "int8"}, catalogue.Type{
		Schema: "pg_catalog",
		Name:   "text",
	}
	t := catalogue.Table{
		Name: schema.TableName{Schema: "public", Name: "orders"}, Form: catalogue.Ordinary,
		Columns: []catalogue.Column{
			{Name: "id", Type: bigint, NotNull: true},
			{Name: "customer_id", Type: bigint},
			{Name: "other_id", Type: bigint},
			{Name: "other_region", Type: text},
		},
		Indexes: []catalogue.Index{
			{Columns: []string{"customer_id"}, Valid: true, Method: "btree"},
			{Columns: []string{"other_id"}, Valid: true, Method: "btree"},
		},
	}
	change(&t)
	return &catalogue.Database{Tables: []*catalogue.Table{&t}}
}

// A table that cannot be attached is refused with the reason.
func TestTablesAreRefusedInWords(t *testing.T) {
	t.Parallel()
	model := ordersModel(t)
	for want, change := range map[string]func(*catalogue.Table){
		"other_id: no index finds the rows that refer to a target: it answers who refers": func(t *catalogue.Table) {
			t.Indexes = t.Indexes[:1]
		},
		"public.orders is a partition: attach the partitioned table": func(t *catalogue.Table) {
			t.Partition = true
		},
		"public.orders has a parent or children by inheritance": func(t *catalogue.Table) {
			t.Inherits = true
		},
		"a key is unique only in each of them": func(t *catalogue.Table) {
			t.Inherited = true
		},
		"public.orders is no ordinary table": func(t *catalogue.Table) {
			t.Form = catalogue.Form("v")
		},
		"customer_id: UNSET sets it to NULL, and it is NOT NULL": func(t *catalogue.Table) {
			t.Columns[1].NotNull = true
		},
		"customer_id: UNSET sets it to NULL, and it is a column of the primary key, which has no NULL": func(
			t *catalogue.Table,
		) {
			t.Columns[1].NotNull, t.Indexes = true,
				[]catalogue.Index{{Columns: []string{"id", "customer_id"}, Unique: true, Primary: true, Valid: true}}
		},
		"customer_id: UNSET sets it to NULL, and it is generated": func(t *catalogue.Table) {
			t.Columns[1].Generated = true
		},
		"key column id can be NULL": func(t *catalogue.Table) {
			t.Columns[0].NotNull = false
		},
		`columns: public.orders has no column "other_region"`: func(t *catalogue.Table) {
			t.Columns = t.Columns[:3]
		},
		"other_id is of type numeric; the columns of a reference are of": func(t *catalogue.Table) {
			t.Columns[2].Type.Name = "numeric"
		},
		"no unique index has exactly the columns id": func(*catalogue.Table) {},
		"there is no table public.orders": func(t *catalogue.Table) {
			t.Name.Name = "Orders"
		},
	} {
		var said []string
		for _, f := range check(ordersTable(change), model, &model.Descriptor.Kinds[0],
			names{table: model.Descriptor.Kinds[0].Table}) {
			if f.Refuses {
				require.False(t, strings.Contains(f.Text, "primary key") && f.SQL != "", "no statement helps")
				said = append(said, f.Text)
			}
		}
		require.Contains(t, strings.Join(said, "\n"), want)
	}
}

// Triggers compare the sides of an UPDATE in groups: PostgreSQL keeps the plan of an earlier, smaller
// statement, and a join of then compares each row with each other.
func TestTriggersJoinNoSides(t *testing.T) {
	t.Parallel()
	model := ordersModel(t)
	kind, err := model.Kind("Order")
	require.NoError(t, err)
	d := kind.Definition(func(string) string { return "bigint" })
	for _, one := range triggersOf(7, &d) {
		require.NotContains(t, one.body, "JOIN")
		require.NotContains(t, one.body, "EXISTS (SELECT FROM removed")
		require.NotContains(t, strings.ReplaceAll(one.body, "EXISTS (SELECT FROM added OFFSET 1)",
			"is there a second row"), "EXISTS (SELECT FROM added")
		if one.event == "update" {
			require.Equal(t, 1+2+2*2+2, strings.Count(one.body, "UNION ALL"),
				"moved rows, rows with other references as notes or as a batch, and each strict reference in both of its statements")
		}
	}
}

// Of a reference inside one database attach says that a native key is better, unless there is one.
func TestANativeKeyIsAdvisedInsideADatabase(t *testing.T) {
	t.Parallel()
	file, err := schema.ParseFile("parts.yaml", strings.NewReader(`
service: shop.example.com
version: v1
kinds:
  - {kind: Order, table: public.orders, key: [id], patterns: ["orders/{order}"]}
  - kind: Line
    table: public.lines
    key: [id]
    patterns: ["lines/{line}"]
    references: [{columns: [order_id], targets: [Order], behaviour: CASCADE_DELETE}]
`))
	require.NoError(t, err)
	model, err := schema.NewModel(file.Services[0].ServiceVersion, file.Services)
	require.NoError(t, err)
	bigint := catalogue.Type{Schema: "pg_catalog", Name: "int8"}
	lines := &catalogue.Table{
		Name: schema.TableName{Schema: "public", Name: "lines"}, Form: catalogue.Ordinary,
		Columns: []catalogue.Column{{Name: "id", Type: bigint, NotNull: true}, {Name: "order_id", Type: bigint}},
	}
	advised := func() (said []string) {
		for _, f := range check(&catalogue.Database{Tables: []*catalogue.Table{lines}}, model,
			&model.Descriptor.Kinds[1], names{table: model.Descriptor.Kinds[1].Table}) {
			said = append(said, f.Text+" "+f.SQL)
		}
		return said
	}
	const better = `order_id: both tables are in one database: a native key is better than a reference of ours ` +
		`ALTER TABLE "public"."lines" ADD FOREIGN KEY ("order_id") REFERENCES "public"."orders" ("id") ON DELETE CASCADE NOT VALID;`
	require.Contains(t, advised(), better)
	lines.Natives = []catalogue.NativeKey{{Name: "lines_order_id_fkey", Columns: []string{"order_id"}}}
	require.NotContains(t, advised(), better)
	require.Contains(t, advised(),
		"order_id: the native key lines_order_id_fkey holds these columns as well; it acts beside this reference ")
}

// No column name ends a function's text early: the role that makes the function may do more than the owner of
// the table.
func TestNoColumnNameEndsTheTextOfAFunction(t *testing.T) {
	t.Parallel()
	for _, column := range []string{
		`a$attached$;ALTER ROLE mallory SUPERUSER;--`, `$attached`, `$attached_0_$attached`,
		`x"$attached$ y`,
	} {
		d := &schema.Definition{
			Table: schema.TableName{Schema: "public", Name: "t"}, Collection: "orders",
			Key:        []schema.KeyColumn{{Name: "id", Type: "bigint"}},
			References: []schema.DefinitionReference{{Path: "p", Columns: []string{column}}},
		}
		for _, trigger := range triggersOf(1, d) {
			source := trigger.source("sum")
			quote := dollarQuote(source)
			require.NotContains(t, source, quote)
			made := trigger.function(1, "sum")
			require.True(t, strings.HasSuffix(made, " AS "+quote+source+quote), made)
			require.Equal(t, 2, strings.Count(made, quote))
		}
	}
}

// A reference of some rows is refused when its column cannot have the value.
func TestAConditionIsOfTheColumn(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		column catalogue.Type
		value  string
	}{
		``:  {catalogue.Type{Schema: "pg_catalog", Name: "text"}, "Customer"},
		` `: {catalogue.Type{Schema: "pg_catalog", Name: "int2"}, "7"},
		`when: x is of type smallint, and "70000" is no text of one`: {catalogue.Type{
			Schema: "pg_catalog",
			Name:   "int2",
		}, "70000"},
		`when: x is of type date; want an integer`: {catalogue.Type{
			Schema: "pg_catalog",
			Name:   "date",
		}, "2026-01-01"},
		`when: x has no value "Customer"; its values are a, b`: {catalogue.Type{
			Schema: "public", Name: "e",
			Enum: true, Labels: []string{"a", "b"},
		}, "Customer"},
	} {
		checked := &checker{table: &catalogue.Table{Columns: []catalogue.Column{{Name: "x", Type: c.column}}}}
		checked.condition(&schema.Reference{When: schema.RowCondition{Column: "x", Value: c.value}})
		if want = strings.TrimSpace(want); want == "" {
			require.Empty(t, checked.out)
		} else {
			require.Contains(t, checked.out[0].Text, want)
		}
	}
}
