package main

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

// Wrong arguments exit with 2, and no message contains a connection string.
func TestWrongArgumentsOfScanAreRefused(t *testing.T) {
	t.Parallel()
	const shop = "shop=postgres://u:s3cr3t@127.0.0.1:1/x?connect_timeout=1"
	empty := write(t, "regions: [us-west2]\n")
	file := write(t,
		"{service: crm.example.com, version: v1, kinds: [{kind: A, table: a, key: [id], patterns: [\"as/{a}\"]}]}\n")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 2, "missing: --dsn NAME=DSN"},
		{[]string{"--dsn", "postgres://u:s3cr3t@h/x"}, 2, "--dsn, number 1: want NAME=DSN"},
		{[]string{"--dsn", "shop=postgres://u:s3cr3t@h:port/x"}, 2, "--dsn shop: not a PostgreSQL connection string"},
		{
			[]string{"--dsn", "shop=postgres://u:s3cr3t@db.example.org/x"},
			2,
			"on a trusted network, add --postgres-plaintext",
		},
		{[]string{"--dsn", "sh op=postgres://u:s3cr3t@localhost/x"}, 2, "want a domain name"},
		{[]string{"--dsn", "shop/US=postgres://u:s3cr3t@localhost/x"}, 2, `region "US"`},
		{[]string{"--dsn", shop, "--dsn", shop}, 2, "name their regions, as shop/REGION"},
		{[]string{"--dsn", shop, "-o", "xml"}, 2, "--output xml: want table, json or yaml"},
		{[]string{"--dsn", shop, "--rate", "-1"}, 2, "--rate -1: want 0 or more"},
		{[]string{"--dsn", shop, "--rate", "fast"}, 2, `invalid argument "fast"`},
		{[]string{"--dsn", shop, "--statement-timeout", "1ms"}, 2, "want at least 100ms"},
		{[]string{"--dsn", shop, "--frobnicate"}, 2, "unknown flag"},
		{[]string{file, "--dsn", shop, "--write", "x"}, 2, "--write writes a guess"},
		{[]string{file, "--dsn", shop}, 2, "--dsn shop: the file does not describe shop.example.com"},
		{[]string{empty, "--dsn", shop}, 2, "there is no service in it"},
		{[]string{"/nonexistent.yaml", "--dsn", shop}, 1, "no such file"},
		{[]string{write(t, "service: [\n"), "--dsn", shop}, 1, "correct the YAML"},
		{[]string{"--dsn", shop}, 1, "connect to shop: "},
	} {
		got := command(t, append([]string{"scan"}, c.args...)...)
		require.Equal(t, c.code, got.code, "%v: %s", c.args, got.errOut)
		require.Contains(t, got.errOut, c.says, "%v", c.args)
		require.NotContains(t, got.errOut, "s3cr3t")
		require.Empty(t, got.out)
	}
}

// validate compares declared tables with a database that db-controller has not touched: each reason why
// attach would refuse is a problem with the line of the kind, and its advice is a note.
func TestValidateComparesTablesWithADatabase(t *testing.T) {
	t.Parallel()
	dsn := harness.Postgres(t).NewDatabase(t, "template0")
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	file := write(t, `service: crm.example.com
version: v1
kinds: [{kind: Customer, patterns: ["customers/{customer}"]}]
---
service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Order
    table: public.orders
    key: [id]
    patterns: ["orders/{order}"]
    references: [{columns: [customer_id], targets: [crm.example.com/Customer], region: eu, behaviour: UNSET}]
`)
	for sql, want := range map[string]string{
		``: "there is no table public.orders",
		`CREATE TABLE orders (id bigint, customer_id bigint)`:                                    "key column id can be NULL",
		`CREATE TABLE orders (id bigint PRIMARY KEY)`:                                            `public.orders has no column "customer_id"`,
		`CREATE TABLE orders (id numeric PRIMARY KEY, customer_id bigint)`:                       "key column id is of type numeric",
		`CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint NOT NULL)`:               "UNSET sets it to NULL, and it is NOT NULL; ALTER TABLE",
		`CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint);`:                       `it answers who refers (attach --create-indexes creates it); CREATE INDEX CONCURRENTLY ON "public"."orders"`,
		`CREATE UNLOGGED TABLE orders (id bigint PRIMARY KEY, customer_id bigint)`:               "temporary or unlogged",
		`CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint) PARTITION BY HASH (id)`: "CONCURRENTLY on each partition",
	} {
		_, err := conn.Exec(t.Context(), `DROP TABLE IF EXISTS orders; `+sql)
		require.NoError(t, err)
		got := command(t, "validate", file, "--dsn", "shop="+dsn, "--postgres-plaintext")
		require.Equal(t, 1, got.code, "%s: %s%s", sql, got.out, got.errOut)
		require.Contains(t, got.errOut, file+":9: kinds[Order]: database shop: ", sql)
		require.Contains(t, got.errOut, want, sql)
	}
	_, err = conn.Exec(t.Context(),
		`DROP TABLE IF EXISTS orders; CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint); CREATE INDEX ON orders (customer_id)`)
	require.NoError(t, err)
	got := command(t, "validate", file, "--strict", "--dsn", "shop="+dsn, "--postgres-plaintext")
	require.Zero(t, got.code, "%s%s", got.out, got.errOut)
	got = command(t, "validate", file, "--dsn", "shop=postgres://u:s3cr3t@127.0.0.1:1/x?connect_timeout=1")
	require.Equal(t, 1, got.code)
	require.NotContains(t, got.errOut, "s3cr3t")
	require.Equal(t, 2, command(t, "validate", file, "--dsn", "elsewhere="+dsn).code)
}
