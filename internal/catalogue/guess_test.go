package catalogue_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/catalogue"
	"github.com/db-controller/db-controller/schema"
)

func kind(name string) catalogue.Type { return catalogue.Type{Schema: "pg_catalog", Name: name} }

// table makes a table from columns such as "id int8 key", "email text unique", "customer_id int8 null".
func table(name string, columns ...string) *catalogue.Table {
	t := &catalogue.Table{Form: catalogue.Ordinary, Readable: true, SchemaUsable: true}
	t.Name, _ = schema.ParseTableName(name)
	primary := catalogue.Index{Name: "pkey", Unique: true, Primary: true, Valid: true, Immediate: true, Method: "btree"}
	for _, text := range columns {
		f := strings.Fields(text)
		c := catalogue.Column{Name: f[0], Type: kind(f[1]), NotNull: true, Readable: true}
		for _, word := range f[2:] {
			switch word {
			case "key":
				primary.Columns = append(primary.Columns, c.Name)
			case "unique", "index":
				t.Indexes = append(t.Indexes, catalogue.Index{
					Name: c.Name, Columns: []string{c.Name},
					Unique: word == "unique", Valid: true, Method: "btree",
				})
			case "null":
				c.NotNull = false
			default: // a native key to the table of that name
				t.Natives = append(t.Natives, catalogue.NativeKey{
					Name: "fk", Columns: []string{c.Name},
					Target: schema.TableName{Schema: "public", Name: word}, TargetKey: []string{"id"},
				})
			}
		}
		t.Columns = append(t.Columns, c)
	}
	if len(primary.Columns) > 0 {
		t.Indexes = append(t.Indexes, primary)
	}
	return t
}

func database(label string, tables ...*catalogue.Table) *catalogue.Database {
	return &catalogue.Database{Label: label, Service: label + ".example.com", Role: "reader", Tables: tables}
}

func TestReferencesAreGuessed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shop, crm []*catalogue.Table
		want      []string // holder.columns -> target.key
		notes     []string
	}{
		"a column named after a table": {
			[]*catalogue.Table{table("orders", "id int8 key", "customer_id int8")},
			[]*catalogue.Table{table("customers", "id int8 key")},
			[]string{"orders.customer_id -> customers.id"},
			nil,
		},
		"camel case, and a narrower type": {
			[]*catalogue.Table{table("Order", "id int8 key", "customerId int4")},
			[]*catalogue.Table{table("Customer", "id int8 key")},
			[]string{"Order.customerId -> Customer.id"},
			nil,
		},
		"the prefix of an application": {
			[]*catalogue.Table{table("shop_order", "id int8 key", "user_id int8")},
			[]*catalogue.Table{table("crm_user", "id int8 key")},
			[]string{"shop_order.user_id -> crm_user.id"},
			nil,
		},
		"a role before the name": {
			[]*catalogue.Table{table("orders", "id int8 key", "approved_by_user_id int8")},
			[]*catalogue.Table{table("users", "id int8 key")},
			[]string{"orders.approved_by_user_id -> users.id"},
			nil,
		},
		"the name of the key": {
			[]*catalogue.Table{table("sales", "id int8 key", "account_no text")},
			[]*catalogue.Table{table("clients", "account_no text key")},
			[]string{"sales.account_no -> clients.account_no"},
			nil,
		},
		"another unique key": {
			[]*catalogue.Table{table("orders", "id int8 key", "customer_uuid uuid")},
			[]*catalogue.Table{table("customers", "id int8 key", "uuid uuid unique")},
			[]string{"orders.customer_uuid -> customers.uuid"},
			nil,
		},
		"the table and its primary key": {
			[]*catalogue.Table{table("reviews", "id int8 key", "product_sku text")},
			[]*catalogue.Table{table("products", "sku text key")},
			[]string{"reviews.product_sku -> products.sku"},
			nil,
		},
		"a text that refers to a uuid": {
			[]*catalogue.Table{table("orders", "id int8 key", "customer_id varchar")},
			[]*catalogue.Table{table("customers", "id uuid key")},
			[]string{"orders.customer_id -> customers.id"},
			nil,
		},
		"types that cannot be compared": {
			[]*catalogue.Table{table("orders", "id int8 key", "customer_id int8")},
			[]*catalogue.Table{table("customers", "id uuid key")},
			nil,
			[]string{"cannot be compared"},
		},
		"a native key holds it": {
			[]*catalogue.Table{
				table("orders", "id int8 key", "customer_id int8 customers"),
				table("customers", "id int8 key"),
			},
			[]*catalogue.Table{table("customers", "id int8 key")},
			nil, nil,
		},
		"a table of the same database is nearer": {
			[]*catalogue.Table{table("orders", "id int8 key", "customer_id int8"), table("customers", "id int8 key")},
			[]*catalogue.Table{table("customers", "id int8 key")},
			[]string{"orders.customer_id -> customers.id within"},
			nil,
		},
		"two tables fit": {
			[]*catalogue.Table{table("orders", "id int8 key", "customer_id int8")},
			[]*catalogue.Table{table("customers", "id int8 key"), table("old.customers", "id int8 key")},
			nil,
			[]string{"declare one of them"},
		},
		"a type beside the id": {
			[]*catalogue.Table{table("notes", "id int8 key", "customer_id int8", "customer_type text")},
			[]*catalogue.Table{table("customers", "id int8 key")},
			nil,
			[]string{"customer_type names the table"},
		},
		"a key of two columns": {
			[]*catalogue.Table{table("items", "id int8 key", "tenant_id int8 null", "invoice_number int4 null")},
			[]*catalogue.Table{table("invoices", "tenant_id int8 key", "number int4 key")},
			[]string{"items.tenant_id,invoice_number -> invoices.tenant_id,number"},
			nil,
		},
		"a holder without a key": {
			[]*catalogue.Table{table("log", "customer_id int8")},
			[]*catalogue.Table{table("customers", "id int8 key")},
			nil,
			[]string{"neither a primary key"},
		},
		"its own key": {
			[]*catalogue.Table{table("customers", "customer_id int8 key")},
			[]*catalogue.Table{table("other", "id int8 key")},
			nil, nil,
		},
		"keys with the name of their table": {
			[]*catalogue.Table{
				table("hosts", "hostid int8 key"), table("items", "itemid int8 key", "hostid int8", "proxy_hostid int8",
					"templateid int8", "master_itemid int8"),
				table("links", "linkid int8 key", "itemid_up int8", "itemid2 int8"),
				table("host_details", "hostid int8 key"), table("media_type", "mediatypeid int8 key"),
				table("media", "mediaid int8 key", "mediatypeid int8"), table("hstgrp", "groupid int8 key"),
				table("rights", "rightid int8 key", "groupid int8", "action int8"),
				table("actions", "actionid int8 key"),
			},
			nil,
			[]string{
				"items.hostid -> hosts.hostid within", "items.proxy_hostid -> hosts.hostid within",
				"items.templateid -> items.itemid within", "items.master_itemid -> items.itemid within",
				"links.itemid_up -> items.itemid within", "links.itemid2 -> items.itemid within",
				"host_details.hostid -> hosts.hostid within", "media.mediatypeid -> media_type.mediatypeid within",
				"rights.groupid -> hstgrp.groupid within",
			},
			nil,
		},
		"names relative to a family of tables": {
			[]*catalogue.Table{
				table("dhcp4_server", "id int8 key"), table("dhcp6_server", "id int8 key"),
				table("dhcp4_pool", "id int8 key", "server_id int8"), table("dhcp6_pool", "id int8 key",
					"server_id int8"),
				table("dhcp4_client_class", "id int8 key"), table("dhcp4_option", "option_id int8 key",
					"class_id int8"), table("dhcp6_option", "option_id int8 key"),
				table("dhcp4_client_class_order", "class_id int8 key"), table("lease_state", "state int8 key"),
				table("lease4", "id int8 key", "state int8"),
			},
			nil,
			[]string{
				"dhcp4_pool.server_id -> dhcp4_server.id within", "dhcp6_pool.server_id -> dhcp6_server.id within",
				"dhcp4_option.class_id -> dhcp4_client_class.id within",
				"dhcp4_client_class_order.class_id -> dhcp4_client_class.id within",
				"lease4.state -> lease_state.state within",
			},
			nil,
		},
		"roles of people and of rows": {
			[]*catalogue.Table{table("tasks", "id int8 key", "creator_id int8", "assigned_by int8", "created_by text",
				"parent_id int8", "replaced_by int8", "owner_uuid uuid")},
			[]*catalogue.Table{table("auth_user", "id int8 key"), table("employees", "id int8 key", "manager_id int8",
				"reports_to int8"), table("members", "id uuid key")},
			[]string{
				"tasks.creator_id -> auth_user.id", "tasks.assigned_by -> auth_user.id",
				"tasks.parent_id -> tasks.id within", "tasks.replaced_by -> tasks.id within",
				"tasks.owner_uuid -> members.id",
				"employees.manager_id -> employees.id within", "employees.reports_to -> employees.id within",
			},
			nil,
		},
		"two tables of people": {
			[]*catalogue.Table{table("tasks", "id int8 key", "creator_id int8")},
			[]*catalogue.Table{table("app_user", "id int8 key"), table("old.user", "id int8 key")},
			nil,
			[]string{"is named after a person"},
		},
		"a column of its own table": {
			[]*catalogue.Table{table("vcard", "username text key", "vcard text unique")}, nil, nil, nil,
		},
		"an id of nothing": {
			[]*catalogue.Table{table("payments", "id int8 key", "stripe_id text", "paid bool")},
			nil, nil,
			[]string{"no table fits: shop public.payments (stripe_id)"},
		},
		"a code is no id": {
			[]*catalogue.Table{table("orders", "id int8 key", "country_code text")},
			[]*catalogue.Table{table("countries", "id int8 key")},
			nil, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			databases := []*catalogue.Database{database("shop", c.shop...), database("crm", c.crm...)}
			g := catalogue.GuessReferences(databases)
			bound, err := catalogue.Bind(g.Descriptors, databases)
			require.NoError(t, err)
			var got []string
			for _, r := range bound {
				require.Empty(t, r.Unscanned)
				line := r.Table.Name.Name + "." + strings.Join(r.Columns, ",") + " -> " + r.Targets[0].Table.Name.Name +
					"." + strings.Join(r.Targets[0].Key, ",")
				if r.Within() {
					line += " within"
				}
				got = append(got, line)
			}
			require.Equal(t, c.want, got)
			require.Len(t, g.Notes, len(c.notes), "%v", g.Notes)
			for i, note := range c.notes {
				require.Contains(t, g.Notes[i], note)
			}
		})
	}
}

// A guess is written as a file that Check accepts and that binds to the same tables, with any names, and also
// when the services refer to one another.
func TestAGuessIsWrittenAsADeclaration(t *testing.T) {
	t.Parallel()
	databases := []*catalogue.Database{
		database("shop", table("public.select", "id int8 key", "yes_id int8"), table("Weird Table", "Key text key",
			"customer_id int8"), table(`public."a.b"`, "null int8 key", "customer_id int8"),
			table("orders", "id int8 key")),
		database("crm", table("customers", "id int8 key", "order_id int8"), table("yes", "id int8 key")),
	}
	g := catalogue.GuessReferences(databases)
	raw, err := catalogue.YAML("a\nhead", catalogue.Between(g.Descriptors), func(f catalogue.FieldID) string {
		return "guessed: " + g.Why[f]
	})
	require.NoError(t, err)
	text := string(raw)
	require.True(t, strings.HasPrefix(text, "# a\n# head\nservice: "), text)
	require.Contains(t, text, "# guessed: it is named after the table")
	f, err := schema.ParseFile("first.yaml", strings.NewReader(text))
	require.NoError(t, err, text)
	require.NoError(t, schema.Check(f.Services), text)
	bound, err := catalogue.Bind(f.Services, databases)
	require.NoError(t, err)
	require.Len(t, bound, 4, text)
	for _, r := range bound {
		require.False(t, r.Within())
		require.Equal(t, schema.Block, r.Behaviour)
	}
}

func TestADeclarationThatDoesNotFitIsRefused(t *testing.T) {
	t.Parallel()
	databases := []*catalogue.Database{
		database("shop", table("orders", "id int8 key", "customer_id int8")),
		database("crm", table("customers", "id int8 key")),
	}
	const file = `service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Order
    table: orders
    key: [id]
    patterns: ["orders/{order}"]
    references: [{columns: [customer_id], targets: [crm.example.com/Customer], behaviour: UNSET}]
---
{service: crm.example.com, version: v1, kinds: [{kind: Customer, table: customers, key: [id], patterns: ["customers/{customer}"]}]}
`
	for from, says := range map[string]string{
		"table: orders":          "f.yaml:5: kinds[Order]: database shop has no table public.Orders",
		"columns: [customer_id]": `f.yaml:9: kinds[Order].references[Customer_id]: columns: table public.orders of database shop has no column "Customer_id"; its columns are id, customer_id`,
		"key: [id]\n":            `key: table public.orders of database shop has no column "Id"`,
	} {
		to := strings.NewReplacer("orders", "Orders", "customer_id", "Customer_id", "[id]", "[Id]").Replace(from)
		f, err := schema.ParseFile("f.yaml", strings.NewReader(strings.Replace(file, from, to, 1)))
		require.NoError(t, err)
		_, err = catalogue.Bind(f.Services, databases)
		require.ErrorContains(t, err, says)
	}
	f, err := schema.ParseFile("f.yaml", strings.NewReader(file))
	require.NoError(t, err)
	bound, err := catalogue.Bind(f.Services, databases)
	require.NoError(t, err)
	require.Equal(t, []catalogue.Advice{
		{Text: "no index on public.orders (customer_id) finds the holders of a target: each delete would read the whole table", SQL: `CREATE INDEX CONCURRENTLY ON "public"."orders" ("customer_id");`, Finding: true},
		{Text: "customer_id cannot be unset: it is NOT NULL or generated", Finding: true},
	}, bound[0].Advice)
	bound, err = catalogue.Bind(f.Services, databases[:1])
	require.NoError(t, err)
	require.Equal(t, "no --dsn for crm.example.com", bound[0].Unscanned)
}

// Values of other types are compared as PostgreSQL reads their texts; a text that it cannot read refers to
// nothing.
func TestTypesAreCompared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		holder, target string
		cast           string // "" when they cannot be compared
		differ         bool
		good, bad      string
	}{
		{"int8", "int8", "(v)::pg_catalog.int8", false, "7", ""},
		{"int4", "int8", "(v)::pg_catalog.int8", true, "7", ""},
		{"int8", "int4", "(v)::pg_catalog.int8", false, "7", ""},
		{"text", "int8", "(v)::pg_catalog.int8", true, " +007 ", "seven"},
		{"text", "int8", "(v)::pg_catalog.int8", true, "-1", "9223372036854775808"},
		{"numeric", "int8", "(v)::pg_catalog.numeric::pg_catalog.int8", true, "5.00", "5.01"},
		{"text", "numeric", "(v)::pg_catalog.numeric", true, "1.50", "1e5x"},
		{"text", "uuid", "(v)::pg_catalog.uuid", true, "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99"},
		{
			"text", "uuid", "(v)::pg_catalog.uuid", true, "{a0eebc999c0b4ef8bb6d6bb9bd380a11}",
			"{a0eebc999c0b4ef8bb6d6bb9bd380a11",
		},
		{"varchar", "text", "(v)::pg_catalog.text", false, "x", ""},
		{"text", "bpchar", `(v)::"pg_catalog"."bpchar"`, false, "x", ""},
		{"uuid", "text", "(v)::pg_catalog.text", true, "x", ""},
		{"date", "date", `(v)::"pg_catalog"."date"`, false, "2026-01-01", ""},
		{"int8", "uuid", "", false, "", ""},
		{"date", "timestamptz", "", false, "", ""},
		{"_int4", "_int4", "", false, "", ""},
	} {
		m, ok := catalogue.Compare(kind(c.holder), kind(c.target))
		require.Equal(t, c.cast != "", ok, "%s %s", c.holder, c.target)
		if !ok {
			continue
		}
		require.Equal(t, c.cast, m.Cast("v"))
		require.Equal(t, c.differ, m.Differ != "", "%s %s: %s", c.holder, c.target, m.Differ)
		require.True(t, m.Valid(c.good), c.good)
		require.Equal(t, c.bad == "", m.Valid(c.bad), c.bad)
	}
	colours := catalogue.Type{Schema: "public", Name: "colour", Enum: true, Labels: []string{"red"}}
	m, ok := catalogue.Compare(kind("text"), colours)
	require.True(t, ok)
	require.True(t, m.Valid("red"))
	require.False(t, m.Valid("blue"))
}

func TestIndexesThatFindHolders(t *testing.T) {
	t.Parallel()
	index := func(predicate, method string, columns ...string) *catalogue.Table {
		x := table("t", "a int8", "b int8")
		x.Indexes = []catalogue.Index{{Columns: columns, Valid: true, Method: method, Predicate: predicate}}
		return x
	}
	require.True(t, index("", "btree", "b", "a").Finds([]string{"a", "b"}))
	require.True(t, index("", "btree", "a", "b").Finds([]string{"a"}))
	require.True(t, index("(a IS NOT NULL)", "btree", "a").Finds([]string{"a"}))
	require.True(t, index("", "hash", "a").Finds([]string{"a"}))
	require.False(t, index("", "btree", "b", "a").Finds([]string{"a"}))
	require.False(t, index("(b > 1)", "btree", "a").Finds([]string{"a"}))
	require.False(t, index("", "gin", "a").Finds([]string{"a"}))
	require.False(t, index("", "btree", "").Finds([]string{"a"}))
	invalid := index("", "btree", "a")
	invalid.Indexes[0].Valid = false
	require.False(t, invalid.Finds([]string{"a"}))
}

// large is a database of many tables that refer to one another.
func large(tables int) *catalogue.Database {
	var all []*catalogue.Table
	for i := range tables {
		columns := []string{"id int8 key"}
		for j := range 10 {
			columns = append(columns, fmt.Sprintf("app_thing%d_id int8", (i*7+j*13)%tables),
				fmt.Sprintf("note%d text", j))
		}
		all = append(all, table(fmt.Sprintf("app_thing%d", i), columns...))
	}
	return database("app", all...)
}

// The work of a guess grows with the pairs of tables, and no faster: the words of a name are found once.
func TestAGuessComparesPairsOfTables(t *testing.T) {
	allocations := func(tables int) float64 {
		db := large(tables)
		return testing.AllocsPerRun(1, func() { catalogue.GuessReferences([]*catalogue.Database{db}) })
	}
	require.Less(t, allocations(120)/allocations(60), 6.0, "four times for twice as many tables")
}

func BenchmarkAGuessOfAThousandTables(b *testing.B) {
	db := large(1000)
	for b.Loop() {
		catalogue.GuessReferences([]*catalogue.Database{db})
	}
}
