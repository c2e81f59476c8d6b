package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Wrong arguments exit with 2, and no message contains a connection string.
func TestWrongArgumentsOfScanAreRefused(t *testing.T) {
	t.Parallel()
	const shop = "shop=postgres://u:s3cr3t@127.0.0.1:1/x?connect_timeout=1"
	empty := write(t, "regions: [us-west2]\n")
	file := write(t, "{service: crm.example.com, version: v1, kinds: [{kind: A, table: a, key: [id], patterns: [\"as/{a}\"]}]}\n")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 2, "missing: --dsn NAME=DSN"},
		{[]string{"--dsn", "postgres://u:s3cr3t@h/x"}, 2, "--dsn, number 1: want NAME=DSN"},
		{[]string{"--dsn", "shop=postgres://u:s3cr3t@h:port/x"}, 2, "--dsn shop: not a PostgreSQL connection string"},
		{[]string{"--dsn", "shop=postgres://u:s3cr3t@db.example.org/x"}, 2, "on a trusted network, add --postgres-plaintext"},
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
