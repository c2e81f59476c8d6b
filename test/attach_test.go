package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/schema/wire"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

const attachedTables = `
service: crm.example.com
version: v1
kinds:
  - kind: Customer
    table: public.Customers
    key: [id]
    patterns: ["customers/{customer}"]
---
service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Order
    table: public.Orders
    key: [shop, "Number"]
    patterns: ["orders/{order}"]
    references:
      - {columns: ["Customer ID"], targets: [crm.example.com/Customer], region: {column: region}, behaviour: UNSET}
`

// dumpSchema returns the schema of a database as pg_dump prints it.
func dumpSchema(t *testing.T, dsn string) string {
	t.Helper()
	programs, err := filepath.Glob("/usr/lib/postgresql/*/bin/pg_dump")
	require.NoError(t, err)
	if path, err := exec.LookPath("pg_dump"); err == nil {
		programs = append(programs, path)
	}
	require.NotEmpty(t, programs, "pg_dump belongs to the client programs of PostgreSQL")
	// The newest one: pg_dump refuses a server that is newer.
	version := func(program string) string { out, _ := exec.Command(program, "--version").Output(); return string(out) }
	newest := slices.MaxFunc(programs, func(a, b string) int { return strings.Compare(version(a), version(b)) })
	out, err := exec.Command(newest, "-s", dsn).Output()
	require.NoError(t, err)
	return regexp.MustCompile(`(?m)^\\(un)?restrict .*$`).ReplaceAllString(string(out), "") // a random word each time
}

// A table is attached, looked at, repaired and detached from the command line, and its schema is the former
// one.
func TestAttachAndDetachFromTheCommandLine(t *testing.T) {
	t.Parallel()
	box := harness.NewBox(t, attachedTables, nil, "shop.example.com/eu")
	dsn := box.Pools[box.ID("shop.example.com/eu")].Config().ConnString()
	ddl := `
CREATE TABLE public."Orders" (shop text NOT NULL, "Number" integer NOT NULL, "Customer ID" bigint NOT NULL, region text, UNIQUE (shop, "Number")); CREATE INDEX ON public."Orders" ("Customer ID")`
	fillTables(t, dsn, ddl)
	file := filepath.Join(t.TempDir(), "tables.yaml")
	require.NoError(t, os.WriteFile(file, []byte(attachedTables), 0o600))
	db := []string{"--postgres", dsn, "--postgres-plaintext"}
	command := func(args ...string) (int, string) { return exitCode(t, append(args, db...)...) }

	code, out := command("attach", file)
	require.Equal(t, 4, code, out)
	require.Contains(t, out, "! Order: Customer ID: UNSET sets it to NULL, and it is NOT NULL")
	require.Contains(t, out, `ALTER TABLE "public"."Orders" ALTER COLUMN "Customer ID" DROP NOT NULL;`)
	require.Contains(t, out, "nothing is changed")
	fillTables(t, dsn, `ALTER TABLE "Orders" ALTER COLUMN "Customer ID" DROP NOT NULL`)
	before := dumpSchema(t, dsn)

	code, out = command("attach", file, "--dry-run")
	require.Zero(t, code, out)
	require.Contains(t, out,
		`CREATE TRIGGER dbcontroller_delete AFTER DELETE ON "public"."Orders" REFERENCING OLD TABLE AS removed FOR EACH STATEMENT`)
	require.Equal(t, before, dumpSchema(t, dsn))
	require.NotContains(t, out, "the deployment runs")
	next := filepath.Join(t.TempDir(), "next.yaml")
	require.NoError(t,
		os.WriteFile(next, []byte(strings.Replace(attachedTables, "service: shop.example.com\nversion: v1",
			"service: shop.example.com\nversion: v2", 1)), 0o600))
	code, out = command("attach", next, "--dry-run")
	require.Zero(t, code, out)
	require.Contains(t, out,
		`the deployment runs version "v1": while its version does not declare the table as v2 does, no row is read; see db-controller set-version`)

	code, out = command("attach", file)
	require.Zero(t, code, out)
	require.Contains(t, out, "attached Order to public.Orders")
	attached := dumpSchema(t, dsn)
	require.NotEqual(t, before, attached)
	code, out = command("attach", file)
	require.Zero(t, code, out)
	require.Contains(t, out, "Order is attached to public.Orders already")
	fillTables(t, dsn, `INSERT INTO "Orders" VALUES ('a,b/c', 1, 5, 'eu')`)
	require.Equal(t, "_Customer_ID_62566c64 [\"5\",\"eu\"] //crm.example.com/eu/customers/5",
		one(t, dsn, `SELECT path || ' ' || texts || ' ' || target FROM dbcontroller.lacking`))

	fillTables(t, dsn,
		`ALTER TABLE "Orders" DISABLE TRIGGER dbcontroller_insert; DROP TRIGGER dbcontroller_update ON "Orders"`)
	code, out = command("attach", "--status")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "! the trigger dbcontroller_insert is disabled")
	require.Contains(t, out, "! the trigger dbcontroller_update is missing")
	code, out = command("attach", file)
	require.Zero(t, code, out)
	require.Equal(t, attached, dumpSchema(t, dsn))

	code, out = command("attach", "--status")
	require.Zero(t, code, out)
	running := func(version, text string) {
		file, err := schema.ParseFile("running.yaml", strings.NewReader(text))
		require.NoError(t, err)
		raw, err := proto.Marshal(wire.EnvironmentProto(&schema.Environment{Services: file.Services}))
		require.NoError(t, err)
		fillTables(t, dsn, fmt.Sprintf(`UPDATE dbcontroller.meta SET version = '%s', environment = '\x%x'`,
			version, raw))
	}
	running("v1", attachedTables)
	code, out = command("attach", "--status")
	require.Zero(t, code, out)
	text, err := os.ReadFile(next)
	require.NoError(t, err)
	running("v2", strings.Replace(string(text), "region: {column: region}", "region: eu", 1))
	code, out = command("attach", "--status")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "! declared otherwise in v2, which runs: no row is read until you attach again")
	misspelt := filepath.Join(t.TempDir(), "misspelt.yaml")
	require.NoError(t,
		os.WriteFile(misspelt, []byte(strings.Replace(attachedTables, "public.Orders", "public.Order", 1)), 0o600))
	code, out = command("attach", misspelt) // and not another name of the attached table
	require.Equal(t, 4, code, out)
	require.Contains(t, out, "there is no table public.Order")
	running("v2", strings.Replace(string(text), "public.Orders", "public.Others", 1))
	code, out = command("attach", "--status")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "! not declared in v2, which runs: no row is read")

	// A lock that is waited for is named: it may be one of the controller's own table.
	fillTables(t, dsn, `ALTER TABLE "Orders" DISABLE TRIGGER dbcontroller_insert`)
	held, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = held.Close(context.Background()) }()
	_, err = held.Exec(t.Context(), `BEGIN; SELECT FROM dbcontroller.attachment FOR UPDATE`)
	require.NoError(t, err)
	released := make(chan error, 1)
	go func() { // when the command has waited more than once: it waits for a lock for 200 ms at a time
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		err := waitedFor(ctx, dsn, 3)
		_ = held.Close(context.Background())
		released <- err
	}()
	code, out = command("attach", file)
	require.NoError(t, <-released)
	require.Zero(t, code, out)
	require.Contains(t, out, "dbcontroller.attachment is locked by another transaction")
	require.NotContains(t, out, "Orders is locked")

	// Half of it is gone, as after a restore of an old dump of the table.
	fillTables(t, dsn, `DROP TRIGGER dbcontroller_delete ON "Orders"`)
	code, out = command("detach")
	require.Zero(t, code, out)
	require.Contains(t, out, "detached Order from public.Orders")
	require.Equal(t, before, dumpSchema(t, dsn))
	code, out = command("detach")
	require.Zero(t, code, out)
	require.Contains(t, out, "nothing to do")
	code, out = command("attach", "--status")
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "Order  the version that runs declares its table, which is not attached")
	code, out = command("detach", "--kind", "Order") // which is declared
	require.Zero(t, code, out)
	code, out = command("detach", "--kind", "Ordr")
	require.Equal(t, 4, code, out)
	require.Contains(t, out, "no table of kind Ordr is attached: did you mean Order?")

	fillTables(t, dsn, `DELETE FROM dbcontroller.meta`) // as migrate up leaves it
	code, out = command("attach", file)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "run db-controller serve there first")
}

// waitedFor returns when as many statements of a database have waited for a lock.
func waitedFor(ctx context.Context, dsn string, statements int) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for seen := map[time.Time]bool{}; len(seen) < statements; <-time.After(10 * time.Millisecond) {
		rows, err := conn.Query(ctx,
			`SELECT query_start FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		if err != nil {
			return err
		}
		starts, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
		if err != nil {
			return err
		}
		for _, start := range starts {
			seen[start] = true
		}
	}
	return nil
}

// attach takes the tables that it can, and says which it did not; --all-or-none takes none then.
func TestAttachTakesTheTablesThatItCan(t *testing.T) {
	t.Parallel()
	const two = `
service: shop.example.com
version: v1
kinds:
  - {kind: Order, table: public.orders, key: [id], patterns: ["orders/{order}"]}
  - kind: Line
    table: public.lines
    key: [id]
    patterns: ["lines/{line}"]
    references: [{columns: [order_id], targets: [Order], behaviour: CASCADE_DELETE, missing: delete}]
`
	box := harness.NewBox(t, two, func(cfg *shadow.Config) { cfg.Delegations = true }, "shop.example.com/eu")
	dsn := box.Pools[box.ID("shop.example.com/eu")].Config().ConnString()
	fillTables(t, dsn,
		`CREATE TABLE public.orders (id bigint PRIMARY KEY); CREATE TABLE public.lines (id bigint PRIMARY KEY, order_id bigint)`)
	file := filepath.Join(t.TempDir(), "two.yaml")
	require.NoError(t, os.WriteFile(file, []byte(two), 0o600))
	attached := func() string { return one(t, dsn, `SELECT count(*)::text FROM dbcontroller.attachment`) }
	code, out := exitCode(t, "attach", file, "--all-or-none", "--postgres", dsn, "--postgres-plaintext")
	require.Equal(t, 4, code, out)
	require.Contains(t, out, "1 table cannot be attached; nothing is changed")
	require.Equal(t, "0", attached())
	code, out = exitCode(t, "attach", file, "--postgres", dsn, "--postgres-plaintext")
	require.Equal(t, 4, code, out)
	require.Contains(t, out, "attached Order to public.orders")
	require.Contains(t, out, "1 table cannot be attached")
	require.NotContains(t, out, "nothing is changed")
	require.Equal(t, "1", attached())

	fillTables(t, dsn,
		`CREATE INDEX ON public.lines (order_id); INSERT INTO public.lines SELECT g, g FROM generate_series(1, 20) g; GRANT ALL ON public.orders, public.lines TO `+harness.ServingRole)
	stop := make(chan struct{})
	ran := make(chan struct{})
	go func() { // the process of the deployment
		defer close(ran)
		for {
			select {
			case <-stop:
				return
			default:
				box.Capture(box.ID("shop.example.com/eu"))
			}
		}
	}()
	defer func() { close(stop); <-ran }()
	code, out = exitCode(t, "attach", file, "--postgres", dsn, "--postgres-plaintext")
	require.Zero(t, code, out)
	require.Contains(t, out,
		"! Line: order_id: 20 rows name 20 targets that do not exist: nothing is done until attach --yes lets them be deleted")
	code, out = exitCode(t, "attach", file, "--postgres", dsn, "--postgres-plaintext", "--yes")
	require.Zero(t, code, out)
	require.Eventually(t, func() bool {
		return one(t, dsn, `SELECT count(*)::text FROM public.lines`) == "0"
	}, wait.Limit, wait.Poll)
}

// attach names the rights that are lacking: its own rights, and the rights of the role of serve.
func TestAttachNamesTheRightsThatAreLacking(t *testing.T) {
	t.Parallel()
	box := harness.NewBox(t, attachedTables, nil, "shop.example.com/eu")
	dsn := box.Pools[box.ID("shop.example.com/eu")].Config().ConnString()
	fillTables(t, dsn,
		`CREATE TABLE public."Orders" (shop text NOT NULL, "Number" integer NOT NULL, "Customer ID" bigint, region text, UNIQUE (shop, "Number")); CREATE INDEX ON public."Orders" ("Customer ID")`)
	file := filepath.Join(t.TempDir(), "tables.yaml")
	require.NoError(t, os.WriteFile(file, []byte(attachedTables), 0o600))
	cfg, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	cfg.User, cfg.RuntimeParams["application_name"] = harness.RolePrefix+"_login", "db-controller shop.example.com/eu"
	fillTables(t, dsn, `DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '`+cfg.User+
		`') THEN CREATE ROLE `+cfg.User+` LOGIN PASSWORD '`+cfg.Password+`'; END IF; END $$`)
	serving, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = serving.Close(context.Background()) })

	code, attached := exitCode(t, "attach", file, "--postgres", dsn, "--postgres-plaintext")
	require.Zero(t, code, attached)
	fillTables(t, dsn, `GRANT SELECT, DELETE, UPDATE (shop) ON "Orders" TO `+cfg.User) // of another column
	code, out := exitCode(t, "attach", "--status", "--postgres", dsn, "--postgres-plaintext")
	require.Equal(t, 1, code, out)
	grant := `GRANT SELECT, DELETE, UPDATE ("Customer ID") ON "public"."Orders" TO ` + cfg.User
	require.Contains(t, attached, grant)
	require.Contains(t, out, grant)
	fillTables(t, dsn, grant)
	code, out = exitCode(t, "attach", "--status", "--postgres", dsn, "--postgres-plaintext")
	require.Zero(t, code, out)

	code, out = exitCode(t, "attach", file, "--postgres", strings.Replace(harness.AsServing(dsn), harness.ServingRole,
		"pg_monitor", 1), "--postgres-plaintext")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "the owner of schema dbcontroller: GRANT ")
	require.Contains(t, out, "TO pg_monitor")
}

// one returns the single value of a query.
func one(t *testing.T, dsn, sql string) (value string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}
