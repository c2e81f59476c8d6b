package schema_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/db-controller/db-controller/schema"
)

const shopTables = `
service: shop.example.com
version: v1
imports: [iam.example.com@v1]
kinds:
  - kind: Order
    patterns: ["orders/{order}"]
    table: shop.orders
    key: [id]
    references:
      - { columns: [customer_id, shop], targets: [Customer], behaviour: BLOCK }
      - { columns: [account], targets: [iam.example.com/Account], behaviour: ASYNC_UNSET, region: { column: account_region } }
      - { columns: ["odd name"], targets: [Order], behaviour: BLOCK }
  - kind: Customer
    patterns: ["customers/{customer}"]
    table: shop.customers
    key: [id, shop]
`

const accounts = `
service: iam.example.com
version: v1
kinds: [{ kind: Account, patterns: ["projects/{p}/accounts/{a}"] }]
`

func parsed(t *testing.T, texts ...string) (all []*schema.Descriptor) {
	t.Helper()
	for _, text := range texts {
		f, err := schema.ParseFile("f", strings.NewReader(text))
		require.NoError(t, err)
		all = append(all, f.Services...)
	}
	require.NoError(t, schema.Check(all))
	return all
}

func kindOf(t *testing.T, descriptors []*schema.Descriptor, name string) *schema.KindModel {
	t.Helper()
	model, err := schema.NewModel(descriptors[0].ServiceVersion, descriptors)
	require.NoError(t, err)
	kind, err := model.Kind(name)
	require.NoError(t, err)
	return kind
}

// typesOf returns the types of columns, in the order in which they are asked for.
func typesOf(types ...string) func(string) string {
	return func(string) string {
		next := types[0]
		types = types[1:]
		return next
	}
}

// A key has one name, and a name one key: a deletion of the name finds the row, and no other.
func TestAKeyAndItsNameAreOneToOne(t *testing.T) {
	t.Parallel()
	customers := kindOf(t, parsed(t, shopTables, accounts), "Customer").Definition(typesOf("text", "bigint"))
	rapid.Check(t, func(t *rapid.T) {
		key := []string{
			rapid.StringOfN(rapid.SampledFrom([]rune(`ab,\/%ü .`)), 0, 8, -1).Draw(t, "id"),
			rapid.SampledFrom([]string{"0", "7", "-9223372036854775808"}).Draw(t, "shop"),
		}
		name, err := customers.RowName(key)
		require.NoError(t, err)
		require.NoError(t, schema.CheckName(name))
		back, ok := customers.RowKey(name)
		require.True(t, ok, name)
		require.Equal(t, key, back)
	})
}

// A name that no value of the column has is of no row: 007 is not 7, which would find the row of another
// name.
func TestNamesThatNoRowHas(t *testing.T) {
	t.Parallel()
	of := func(types ...string) schema.Definition {
		d := schema.Definition{Collection: "orders"}
		for _, typ := range types {
			d.Key = append(d.Key, schema.KeyColumn{Name: "c", Type: typ})
		}
		return d
	}
	const uid = "7e57d004-2b97-0e7a-b45f-5387367791cd"
	for _, c := range []struct {
		def  schema.Definition
		name string
		want bool
	}{
		{of("bigint"), "orders/7", true},
		{of("bigint"), "orders/007", false},
		{of("bigint"), "orders/+7", false},
		{of("bigint"), "orders/9223372036854775808", false},
		{of("smallint"), "orders/32768", false},
		{of("integer"), "orders/-1", true},
		{of("uuid"), "orders/" + uid, true},
		{of("uuid"), "orders/" + strings.ToUpper(uid), false},
		{of("text"), "orders/any%2Ftext", true},
		{of("text"), "orders/nul%00", false},
		{of("text"), "orders/%FF", false},
		{of("text"), "others/any", false},
		{of("text"), "orders", false},
		{of("text", "text"), "orders/a,b", true},
		{of("text", "text"), "orders/a", false},
		{of("text", "text"), "orders/a,b,c", false},
		{of("text", "text"), `orders/a%5C,b`, false},
		{of("text", "text"), `orders/a%5Cb,c`, false},
	} {
		_, ok := c.def.RowKey(c.name)
		require.Equal(t, c.want, ok, "%v %s", c.def.Key, c.name)
	}
}

// The columns of a reference name one resource; with a NULL among them they name none, as MATCH SIMPLE says.
func TestColumnsNameTheirTarget(t *testing.T) {
	t.Parallel()
	self := schema.DeploymentID{Service: "shop.example.com", Region: "eu"}
	order := kindOf(t, parsed(t, shopTables, accounts), "Order")
	text := func(s string) *string { return &s }
	customer, account := order.Table.References[0], order.Table.References[1]
	for want, c := range map[string]struct {
		ref    schema.ColumnReference
		values []*string
		region *string
	}{
		`//shop.example.com/eu/customers/7,3`:      {customer, []*string{text("7"), text("3")}, nil},
		`//shop.example.com/eu/customers/a%5C,b,3`: {customer, []*string{text("a,b"), text("3")}, nil},
		"": {customer, []*string{text("7"), nil}, nil},
		`//iam.example.com/us/projects/p/accounts/a`: {account, []*string{text("projects/p/accounts/a")}, text("us")},
	} {
		got, err := c.ref.Target(self, c.values, c.region)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	got, err := account.Target(self, []*string{text("projects/p/accounts/a")}, nil)
	require.NoError(t, err)
	require.Empty(t, got, "no region")
	_, err = account.Target(self, []*string{text("projects/p/accounts/a")}, text("not a region"))
	require.ErrorContains(t, err, "column account_region: ")
	_, err = account.Target(self, []*string{text("/")}, text("us"))
	require.ErrorContains(t, err, "columns account: ")
}

// The field of a body that stands for columns is a field, and differs for different columns.
func TestColumnsHaveAFieldOfTheirOwn(t *testing.T) {
	t.Parallel()
	path := func(columns ...string) string { return (&schema.Reference{Columns: columns}).BodyPath() }
	require.Equal(t, "customer_id__shop", path("customer_id", "shop"))
	require.Equal(t, "spec.account", (&schema.Reference{Path: "spec.account"}).BodyPath())
	seen := map[string]bool{}
	for _, columns := range [][]string{
		{"odd name"},
		{"odd-name"},
		{"odd.name"},
		{"a b", "c"},
		{"a", "b c"},
		{strings.Repeat("ä", 80)},
		{strings.Repeat("ä", 81)},
	} {
		p := path(columns...)
		require.False(t, seen[p], "%q", columns)
		seen[p] = true
		require.LessOrEqual(t, len(p), 63)
		_, err := schema.ParsePath(p)
		require.NoError(t, err, "%q", columns)
	}
}

// An attachment describes its kind until the version changes a fact that its triggers contain.
func TestAnAttachmentIsComparedWithItsKind(t *testing.T) {
	t.Parallel()
	order := kindOf(t, parsed(t, shopTables, accounts), "Order")
	attached := order.Definition(func(string) string { return "bigint" })
	require.True(t, attached.Describes(order))
	for name, text := range map[string]string{
		"a column":   strings.Replace(shopTables, "[account], targets", "[account_name], targets", 1),
		"the region": strings.Replace(shopTables, "account_region", "region", 1),
		"the table":  strings.Replace(shopTables, "shop.orders", "shop.purchases", 1),
		"the key":    strings.Replace(shopTables, "key: [id]\n", "key: [number]\n", 1),
		"a further reference": strings.Replace(shopTables, `      - { columns: ["odd name"]`, `      - { columns: [seller], targets: [Order], behaviour: BLOCK }
      - { columns: ["odd name"]`, 1),
	} {
		require.NotEqual(t, shopTables, text, name)
		require.False(t, attached.Describes(kindOf(t, parsed(t, text, accounts), "Order")), name)
	}
	other := strings.Replace(shopTables, "behaviour: BLOCK", "behaviour: ASYNC_CASCADE_DELETE", 1)
	require.False(t, attached.Describes(kindOf(t, parsed(t, other, accounts), "Order")), "rows need another right")
	require.False(t, attached.Describes(kindOf(t, parsed(t, shopTables, accounts), "Customer")))
}

// Kinds keep their oldest name through versions; a name of a resource is looked for in the running version
// first.
func TestKindsOfAllVersionsAreFound(t *testing.T) {
	t.Parallel()
	kinds := schema.NewKinds(parsed(t, accounts, strings.NewReplacer("version: v1", "version: v2",
		"kind: Account, patterns", "kind: Login, previous_name: Account, patterns", "projects/{p}/accounts",
		"tenants/{p}/accounts").Replace(accounts)))
	id := func(kind string) schema.KindID { return schema.KindID{Service: "iam.example.com", Kind: kind} }
	require.Equal(t, id("Account"), kinds.Root(id("Login")))
	require.Equal(t, []schema.KindID{id("Account")}, kinds.Of("iam.example.com", "v2", "tenants/t/accounts/a"))
	require.Equal(t, []schema.KindID{id("Account")}, kinds.Of("iam.example.com", "v2", "projects/p/accounts/a"),
		"stored under the former version")
	require.Empty(t, kinds.Of("iam.example.com", "v2", "elsewhere/e"))
	require.True(t, kinds.Knows(id("Login")))
	require.False(t, kinds.Knows(id("Ghost")))
	require.True(t, kinds.Knows(schema.KindID{Service: "unknown.example.com", Kind: "Any"}))
	require.ElementsMatch(t, []string{"Account", "Login"}, kinds.Names("iam.example.com"))
}

// A later declaration of rights is later by its number too, also when the clock went back.
func TestDeclarationsOfRightsAreOrdered(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	rights := &schema.Rights{
		Deny:   true,
		Grants: []schema.AccessGrant{{Identity: "user/ann", Verbs: []schema.Verb{"get"}}},
	}
	first := rights.After(nil, now)
	second := rights.After(first, now.Add(-time.Hour))
	require.Greater(t, second.Declaration, first.Declaration)
	require.Zero(t, rights.Declaration, "the declaration itself stays as it was read")
	require.Nil(t, (*schema.Rights)(nil).After(first, now))
	require.True(t, first.Same(second))
	require.False(t, first.Same(nil))
	require.False(t, first.Same(&schema.Rights{Deny: true}))
	both := rights.With(&schema.Rights{Grants: []schema.AccessGrant{{Group: "ops"}}})
	require.True(t, both.Deny)
	require.Len(t, both.Grants, 2)
	require.Equal(t, rights, rights.With(nil))
	require.Equal(t, "user/ann: [get]", rights.Grants[0].String())
	require.Equal(t, "group ops: []", both.Grants[1].String())
}

// References are part of the attachment, with their behaviour: nothing is stored of the rows that would have
// it.
func TestReferencesArePartOfTheAttachment(t *testing.T) {
	t.Parallel()
	order := func(enforce, behaviour string) *schema.KindModel {
		text := strings.Replace(shopTables, "behaviour: ASYNC_UNSET", "enforce: "+enforce+", behaviour: "+behaviour, 1)
		return kindOf(t, parsed(t, text, accounts), "Order")
	}
	bigint := func(string) string { return "bigint" }
	async, strict := order("async", "UNSET").Definition(bigint), order("strict", "UNSET").Definition(bigint)
	require.False(t, async.Strict())
	require.True(t, strict.Strict())
	require.False(t, async.Describes(order("async", "BLOCK")))
	require.True(t, async.Describes(order("async", "UNSET")))
	require.True(t, strict.Describes(order("strict", "UNSET")))
	require.False(t, strict.Describes(order("strict", "ASYNC_CASCADE_DELETE")))
	require.False(t, strict.Describes(order("strict", "BLOCK")))
	require.False(t, strict.Describes(order("async", "UNSET")))
	require.False(t, async.Describes(order("strict", "UNSET")))
}
