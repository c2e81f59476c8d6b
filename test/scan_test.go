package test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

func fillTables(t *testing.T, dsn, statements string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(t.Context(), statements)
	require.NoError(t, err)
}

// A stranger's path: scan without a file, read the guess, scan with it, send the page.
func TestScanFromTheCommandLine(t *testing.T) {
	t.Parallel()
	server := harness.Postgres(t)
	shop, crm := server.NewDatabase(t, ""), server.NewDatabase(t, "")
	fillTables(t, crm,
		"CREATE TABLE customers (id bigint PRIMARY KEY); INSERT INTO customers SELECT generate_series(1, 5)")
	fillTables(t, shop,
		`CREATE TABLE "Order" ("id" text PRIMARY KEY, "customerId" bigint); INSERT INTO "Order" SELECT '<script>' || i, i FROM generate_series(1, 6) i`)
	dir := t.TempDir()
	first, page := filepath.Join(dir, "first.yaml"), filepath.Join(dir, "report.html")
	dsns := []string{"--dsn", "shop=" + shop, "--dsn", "crm=" + crm, "--postgres-plaintext"}
	code, out := exitCode(t, append([]string{"scan", "--write", first, "--html", page}, dsns...)...)
	require.Zero(t, code, out)
	require.Contains(t, out, "! 1 row of 6 refers to 1 target that does not exist")
	require.Contains(t, out, "public.Order <script>6 -> 6")
	require.Contains(t, out, `CREATE INDEX CONCURRENTLY ON "public"."Order" ("customerId");`)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "&lt;script&gt;6")
	require.NotContains(t, string(html), "<script")

	code, out = exitCode(t, "validate", "--strict", first)
	require.Zero(t, code, out)
	code, out = exitCode(t, append([]string{"scan", first, "--strict"}, dsns...)...)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "error: 1 reference with something to do")
	code, out = exitCode(t, append([]string{"scan", first, "-o", "json"}, dsns...)...)
	require.Zero(t, code, out)
	var got struct {
		References []struct {
			Kind    string
			Orphans struct{ Rows int }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out[max(0, strings.Index(out, "{")):]), &got), out)
	require.Len(t, got.References, 1)
	require.Equal(t, "shop.example.com/Order", got.References[0].Kind)
	require.Equal(t, 1, got.References[0].Orphans.Rows)

	fillTables(t, shop, `DELETE FROM "Order" WHERE "customerId" = 6; CREATE INDEX ON "Order" ("customerId")`)
	code, out = exitCode(t, append([]string{"scan", first, "--strict"}, dsns...)...)
	require.Zero(t, code, out)
	code, out = exitCode(t, append([]string{"scan", "--write", first}, dsns...)...)
	require.Equal(t, 2, code, out)
	require.Contains(t, out, "the file exists, and is not overwritten")
}
