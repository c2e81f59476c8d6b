package test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/playground"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

const djangoServices = `
service: crm.example.com
version: v1
kinds:
  - {kind: Customer, table: public.customers_customer, key: [id], patterns: ["customers/{customer}"]}
---
service: shop.example.com
version: v1
imports: [crm.example.com@v1]
kinds:
  - kind: Order
    table: public.store_order
    key: [id]
    patterns: ["orders/{order}"]
    references:
      - {columns: [customer_id], targets: [crm.example.com/Customer], behaviour: CASCADE_DELETE}
  - kind: Line
    table: public.store_line
    key: [id]
    patterns: ["lines/{line}"]
    references:
      - {columns: [order_id], targets: [Order], behaviour: CASCADE_DELETE}
  - kind: Review
    table: public.store_review
    key: [id]
    patterns: ["reviews/{review}"]
    references:
      - {columns: [customer_id], targets: [crm.example.com/Customer], behaviour: UNSET}
  - kind: Invoice
    table: public.store_invoice
    key: [number]
    patterns: ["invoices/{invoice}"]
    references:
      - {columns: [customer_id], targets: [crm.example.com/Customer], behaviour: BLOCK}
---
regions: [eu]
deployments:
  - {deployment: crm.example.com/eu, version: v1}
  - {deployment: shop.example.com/eu, version: v1}
`

// application is an application over the databases of two deployments. Its program prints the result of a
// flow as JSON.
type application struct {
	t *testing.T
	*harness.Processes
	program   []string
	env       []string
	crm, shop *playground.Deployment
	file      string
}

func newDjango(t *testing.T, services string, flags ...string) *application {
	t.Helper()
	d := newApplication(t, []string{"/usr/bin/python3", "manage.py", "flow"}, services, flags...)
	for _, database := range []string{"default", "crm"} {
		_ = d.run("/usr/bin/python3", "manage.py", "migrate", "--database", database)
	}
	return d
}

// newApplication needs the mappers of Debian's Python.
func newApplication(t *testing.T, program []string, services string, flags ...string) *application {
	t.Helper()
	if os.Getenv("DBCONTROLLER_ADOPTION_PROOF") == "" {
		t.Skip("runs an application for a minute: run make adoption-proof")
	}
	if err := exec.Command("/usr/bin/python3", "-c", "import django, sqlalchemy, psycopg2").Run(); err != nil {
		t.Skip(
			"Django, SQLAlchemy or psycopg is missing: install them with deploy/install-orms.sh (Debian's python3-django, python3-sqlalchemy and python3-psycopg2)")
	}
	d := &application{t: t, program: program, Processes: harness.NewProcesses(t, services,
		append(flags, "--tentative-ttl", "1s")...), file: filepath.Join(t.TempDir(), "tables.yaml")}
	for id, of := range d.Deployments {
		if id.Service == "crm.example.com" {
			d.crm = of
		} else {
			d.shop = of
		}
	}
	shop, err := pgx.ParseConfig(d.shop.DSN)
	require.NoError(t, err)
	crm, err := pgx.ParseConfig(d.crm.DSN)
	require.NoError(t, err)
	admin, err := pgx.ParseConfig(harness.Postgres(t).DSN(""))
	require.NoError(t, err)
	d.env = append(os.Environ(), "SHOP_DB="+shop.Database, "CRM_DB="+crm.Database, "DB_HOST="+admin.Host,
		fmt.Sprint("DB_PORT=", admin.Port),
		"DB_USER="+admin.User, "DB_PASSWORD="+admin.Password, "PYTHONDONTWRITEBYTECODE=1", "PYTHONWARNINGS=ignore")
	services, _, _ = strings.Cut(services, "---\nregions")
	require.NoError(t, os.WriteFile(d.file, []byte(services), 0o600))
	return d
}

// dsn is the connection string of a deployment's database for its owner.
func (d *application) dsn(of *playground.Deployment) string {
	d.t.Helper()
	cfg, err := pgx.ParseConfig(of.DSN)
	require.NoError(d.t, err)
	return harness.Postgres(d.t).DSN(cfg.Database)
}

// run runs a command of the application.
func (d *application) run(command ...string) []byte {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), command[0], command[1:]...)
	cmd.Dir, cmd.Env = "adoption", d.env
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	require.NoError(d.t, err, "%s\n%s", out, problems.String())
	return out
}

// flow runs a flow of the application, and returns its result.
func flow[T any](d *application, args ...string) (out T) {
	d.t.Helper()
	require.NoError(d.t, json.Unmarshal(d.run(append(slices.Clone(d.program), args...)...), &out))
	return out
}

func (d *application) day() string { return string(d.run(append(slices.Clone(d.program), "day")...)) }

func (d *application) customer(holders ...string) string {
	return fmt.Sprint(flow[int](d, append([]string{"customer_with"}, holders...)...))
}

// refused deletes a customer that a row of the shop needs, which is refused.
func (d *application) refused(id string) {
	d.t.Helper()
	got := flow[any](d, "delete_customer", id)
	said, ok := got.([]any)
	require.True(d.t, ok, "customer %s: %v", id, got)
	require.Equal(d.t, "23503", said[0], "an IntegrityError")
	require.Contains(d.t, said[1], "//shop.example.com/eu")
}

// becomes waits until these are the numbers of orders, reviews and invoices of a customer.
func (d *application) becomes(id string, want ...int) {
	d.t.Helper()
	d.eventually(func() string {
		if got := flow[[]int](d, "holders", id)[:3]; !slices.Equal(got, want) {
			return fmt.Sprintf("customer %s has %v orders, reviews and invoices, want %v", id, got, want)
		}
		return ""
	})
}

func (d *application) eventually(wrong func() string) {
	d.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		what := wrong()
		if what == "" {
			return
		}
		require.True(d.t, time.Now().Before(deadline), "%s", what)
		<-time.After(200 * time.Millisecond)
	}
}

// stored waits until all values have their rights; missing is the number of values whose target does not
// exist.
func (d *application) stored(missing int) {
	d.t.Helper()
	const sql = `
SELECT format('%s waiting, %s missing, %s incomplete', count(*) FILTER (WHERE NOT c.missing), count(*) FILTER (WHERE c.missing), (SELECT count(*) FROM dbcontroller.attachment WHERE NOT walked))
FROM (SELECT false AS missing FROM dbcontroller.deleted_row UNION ALL SELECT missing FROM dbcontroller.lacking) AS c`
	want := fmt.Sprintf("0 waiting, %d missing, 0 incomplete", missing)
	d.eventually(func() string {
		if got := one(d.t, d.dsn(d.shop), sql); got != want {
			return got + ", want " + want
		}
		return ""
	})
}

func (d *application) command(of *playground.Deployment, args ...string) string {
	d.t.Helper()
	code, out := exitCode(d.t, append(args, "--postgres", d.dsn(of), "--postgres-plaintext")...)
	require.Zero(d.t, code, out)
	return out
}

// start starts a process again.
func (d *application) start(of *playground.Deployment) {
	d.t.Helper()
	require.NoError(d.t, of.Start())
	ctx, cancel := context.WithTimeout(d.t.Context(), wait.Limit)
	defer cancel()
	require.NoError(d.t, of.WaitReady(ctx))
}

// sql runs a statement on the server.
func (d *application) sql(format string, args ...any) {
	fillTables(d.t, harness.Postgres(d.t).DSN("postgres"), fmt.Sprintf(format, args...))
}

func (d *application) dropBackup(of string) {
	conn, err := pgx.Connect(context.Background(), harness.Postgres(d.t).DSN("postgres"))
	require.NoError(d.t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(context.Background(), "DROP DATABASE IF EXISTS "+of+"_backup")
	require.NoError(d.t, err)
}

// An application in Django from Debian's packages, unchanged, which keeps orders of customers in another
// database: scanned, attached, through its own flows, with a region away, a killed process, one restored
// database, and detached.
func TestADjangoApplicationIsAdoptedUnchanged(t *testing.T) {
	d := newDjango(t, djangoServices)
	day := d.day()
	_ = flow[int](d, "orphan")
	kept := d.customer("order", "invoice")

	t.Log("scan")
	guess := filepath.Join(t.TempDir(), "guess.yaml")
	code, out := exitCode(t, "scan", "--write", guess, "--dsn", "shop="+d.dsn(d.shop), "--dsn", "crm="+d.dsn(d.crm),
		"--postgres-plaintext")
	require.Zero(t, code, out)
	require.Contains(t, out, "! 1 row of 2 refers to 1 target that does not exist")
	for _, table := range []string{"store_order", "store_review", "store_invoice"} {
		require.Regexp(t, `shop public.`+table+` \(customer_id\) +crm public.customers_customer \(id\)`, out)
	}
	before := []string{dumpSchema(t, d.dsn(d.crm)), dumpSchema(t, d.dsn(d.shop))}

	t.Log("attach")
	for _, of := range []*playground.Deployment{d.crm, d.shop} {
		fillTables(t, d.dsn(of), `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+harness.ServingRole)
		before[map[*playground.Deployment]int{d.crm: 0, d.shop: 1}[of]] = dumpSchema(t, d.dsn(of))
		_ = d.command(of, "attach", d.file, "--create-indexes")
	}
	d.stored(1)
	require.Equal(t, day, d.day())
	d.refused(kept)
	gone := d.customer("order", "review")
	d.stored(1)
	require.Equal(t, "deleted", flow[any](d, "delete_customer", gone))
	d.becomes(gone, 0, 0, 0)
	require.Equal(t, 1, flow[[]int](d, "holders", gone)[3], "the review is of nobody")
	require.Equal(t, 1, flow[int](d, "pay", kept))
	d.stored(1)

	t.Log("the region of the customers is dark")
	require.NoError(t, d.crm.Stop())
	require.Equal(t, day, d.day())
	dark := d.customer("order", "invoice")
	d.start(d.crm)
	d.stored(1)
	d.refused(dark)

	t.Log("a process is killed in the middle of a day")
	killed := d.customer("order", "review")
	d.stored(1)
	began := make(chan string, 1)
	go func() { began <- d.day() }()
	<-time.After(300 * time.Millisecond)
	require.NoError(t, d.shop.Kill())
	require.Equal(t, day, <-began)
	require.Equal(t, "deleted", flow[any](d, "delete_customer", killed))
	d.start(d.shop)
	d.stored(1)
	d.becomes(killed, 0, 0, 0)

	t.Log("the database of the customers is restored from a backup")
	cfg, err := pgx.ParseConfig(d.crm.DSN)
	require.NoError(t, err)
	require.NoError(t, d.crm.Stop())
	d.sql(`CREATE DATABASE %[1]s_backup TEMPLATE %[1]s`, cfg.Database)
	t.Cleanup(func() { d.dropBackup(cfg.Database) })
	d.start(d.crm)
	lost := d.customer("order", "invoice")
	d.stored(1)
	require.NoError(t, d.crm.Stop())
	d.sql(`DROP DATABASE %s WITH (FORCE)`, cfg.Database)
	d.sql(`CREATE DATABASE %[1]s TEMPLATE %[1]s_backup`, cfg.Database)
	// rows elsewhere name keys that it would give out again
	fillTables(t, d.dsn(d.crm), `SELECT setval('customers_customer_id_seq', 10000)`)
	d.start(d.crm)
	d.stored(3)
	d.becomes(lost, 1, 0, 1)
	d.refused(dark)
	require.Equal(t, day, d.day())

	t.Log("detach")
	for i, of := range []*playground.Deployment{d.crm, d.shop} {
		_ = d.command(of, "detach")
		require.Equal(t, before[i], dumpSchema(t, d.dsn(of)))
	}
	require.Equal(t, day, d.day())
	require.Equal(t, "deleted", flow[any](d, "delete_customer", dark))
}

// The same application with strict references, as unchanged: a reference counts from its commit, and a
// reference to a missing target is an IntegrityError.
func TestADjangoApplicationIsStrictUnchanged(t *testing.T) {
	d := newDjango(t, strings.ReplaceAll(djangoServices, "targets: [crm.example.com/Customer], ",
		"targets: [crm.example.com/Customer], enforce: strict, "), "--delegations")
	day := d.day()
	before := []string{}
	for _, of := range []*playground.Deployment{d.crm, d.shop} {
		fillTables(t, d.dsn(of), `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+harness.ServingRole)
		before = append(before, dumpSchema(t, d.dsn(of)))
		out := d.command(of, "attach", d.file, "--create-indexes")
		if of == d.shop {
			require.Contains(t, out, "statements on strict tables wait for the rights that they need")
		}
	}
	d.stored(0)
	require.Equal(t, day, d.day())
	d.refused(d.customer("order", "invoice"))
	gone := d.customer("order", "review")
	require.Equal(t, "deleted", flow[any](d, "delete_customer", gone))
	d.becomes(gone, 0, 0, 0)
	require.Equal(t, "23503", flow[any](d, "try_orphan"))
	require.Equal(t, 5000, flow[int](d, "many", "5000"))

	clerks := make(chan bool, 16)
	wanted, made := d.customer(), 0
	for range cap(clerks) {
		go func() { clerks <- flow[bool](d, "invoice_once", "2026/1", wanted) }()
	}
	for range cap(clerks) {
		if <-clerks {
			made++
		}
	}
	require.Equal(t, 1, made, "get_or_create by 16 processes")
	known, unknown := d.customer("order"), d.customer()

	t.Log("the region of the customers is dark")
	require.NoError(t, d.crm.Stop())
	require.NotEmpty(t, flow[any](d, "order_of", known), "its right is known")
	require.Equal(t, "RD002", flow[any](d, "try_order_of", unknown))
	d.start(d.crm)

	t.Log("the process is killed while statements wait")
	require.NoError(t, d.shop.Kill())
	require.Equal(t, "RD002", flow[any](d, "try_order_of", unknown))
	d.start(d.shop)
	require.NotEmpty(t, flow[any](d, "order_of", unknown))

	for i, of := range []*playground.Deployment{d.crm, d.shop} {
		_ = d.command(of, "detach")
		require.Equal(t, before[i], dumpSchema(t, d.dsn(of)))
	}
	require.Equal(t, day, d.day())
}

// The same application with other mappers, as unchanged.
func TestApplicationsOfOtherMappersAreStrictUnchanged(t *testing.T) {
	gorm := filepath.Join(t.TempDir(), "gorm")
	for name, program := range map[string][]string{"SQLAlchemy": {"/usr/bin/python3", "alchemy.py"}, "GORM": {gorm}} {
		t.Run(name, func(t *testing.T) {
			d := newApplication(t, program, strings.ReplaceAll(djangoServices, "targets: [crm.example.com/Customer], ",
				"targets: [crm.example.com/Customer], enforce: strict, "))
			if name == "GORM" {
				build := exec.CommandContext(t.Context(), "go", "build", "-o", gorm, ".")
				build.Dir, build.Env = filepath.Join("adoption", "gorm"), append(os.Environ(), "GOWORK=off")
				out, err := build.CombinedOutput()
				require.NoError(t, err, "%s", out)
			}
			_ = d.run(append(slices.Clone(program), "schema")...)
			day := d.day()
			before := []string{}
			for _, of := range []*playground.Deployment{d.crm, d.shop} {
				fillTables(t, d.dsn(of), `GRANT ALL ON ALL TABLES IN SCHEMA public TO `+harness.ServingRole)
				before = append(before, dumpSchema(t, d.dsn(of)))
				_ = d.command(of, "attach", d.file, "--create-indexes")
			}
			d.stored(0)
			require.Equal(t, day, d.day())
			d.refused(d.customer("order", "invoice"))
			gone := d.customer("order", "review")
			require.Equal(t, "deleted", flow[any](d, "delete_customer", gone))
			d.becomes(gone, 0, 0, 0)
			require.Equal(t, 1, flow[[]int](d, "holders", gone)[3], "the review is of nobody")
			require.Equal(t, "23503", flow[any](d, "try_orphan"))
			require.Equal(t, 3000, flow[int](d, "many", "3000"))

			known, unknown := d.customer("order"), d.customer()
			require.NoError(t, d.crm.Stop())
			require.NotEmpty(t, flow[any](d, "order_of", known), "its right is known")
			require.Equal(t, "RD002", flow[any](d, "try_order_of", unknown))
			d.start(d.crm)
			require.NotEmpty(t, flow[any](d, "order_of", unknown))
			for i, of := range []*playground.Deployment{d.crm, d.shop} {
				_ = d.command(of, "detach")
				require.Equal(t, before[i], dumpSchema(t, d.dsn(of)))
			}
			require.Equal(t, day, d.day())
		})
	}
}
