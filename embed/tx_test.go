package embed_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/dbctest"
	"github.com/db-controller/db-controller/embed"
	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/test/wait"
)

const strictServices = `
service: crm.example.com
version: v1
kinds:
  - {kind: Customer, table: public.customers, key: [id], patterns: ["customers/{customer}"]}
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
      - {columns: [customer_id], targets: [crm.example.com/Customer], behaviour: BLOCK, enforce: strict}
      - {columns: [approver_id], targets: [crm.example.com/Customer], behaviour: UNSET, enforce: strict}
---
regions: [eu]
deployments:
  - { deployment: crm.example.com/eu, version: v1 }
  - { deployment: shop.example.com/eu, version: v1 }
`

// newStrictWorld is an installation with attached tables; the pools are of the application of shop, and of
// the owner of the tables of crm.
func newStrictWorld(t *testing.T) (in *dbctest.Installation, shop, crm *pgxpool.Pool) {
	t.Helper()
	in = dbctest.New(t, dbctest.Config{Services: strictServices, Args: []string{"--delegations"}})
	file, err := schema.ParseFile("services", strings.NewReader(strictServices))
	require.NoError(t, err)
	admin := map[string]*pgxpool.Pool{}
	for service, ddl := range map[string]string{
		"crm.example.com":  `CREATE TABLE customers (id bigint PRIMARY KEY); INSERT INTO customers SELECT generate_series(1, 9); GRANT ALL ON customers TO PUBLIC`,
		"shop.example.com": `CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id bigint, approver_id bigint); CREATE INDEX ON orders (customer_id); CREATE INDEX ON orders (approver_id); GRANT ALL ON orders TO PUBLIC`,
	} {
		admin[service] = connect(t, in.DSN(service+"/eu"))
		_, err := admin[service].Exec(t.Context(), ddl)
		require.NoError(t, err)
	}
	for _, service := range []string{"crm.example.com", "shop.example.com"} {
		model, err := schema.NewModel(schema.ServiceVersion{Service: service, Version: "v1"}, file.Services)
		require.NoError(t, err)
		conn, err := admin[service].Acquire(t.Context())
		require.NoError(t, err)
		plans, err := attach.Prepare(t.Context(), conn.Conn(), model, false)
		require.NoError(t, err)
		require.Len(t, plans, 1)
		require.False(t, plans[0].Refused(), "%v", plans[0].Findings)
		require.NoError(t, attach.Apply(t.Context(), conn.Conn(), plans[0], func(error) {}))
		conn.Release()
	}
	return in, connect(t, in.ApplicationDSN("shop.example.com/eu")), admin["crm.example.com"]
}

func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// Tx acquires the rights that a transaction lacks, and repeats it; the example in Python does so too.
func TestTransactionsOfStrictTablesAreRepeated(t *testing.T) {
	t.Parallel()
	in, shop, crm := newStrictWorld(t)
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit)
	defer cancel()
	runs := 0
	order := func(customer, approver any) error {
		return embed.Tx(ctx, shop, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			runs++
			_, err := tx.Exec(ctx, `INSERT INTO orders (customer_id, approver_id) VALUES ($1, $2)`, customer, approver)
			return err
		})
	}
	require.NoError(t, order(1, 2))
	require.GreaterOrEqual(t, runs, 2)
	runs = 0
	require.NoError(t, order(1, 2))
	require.Equal(t, 1, runs)
	_, err := crm.Exec(ctx, `DELETE FROM customers WHERE id = 1`)
	require.Equal(t, "23503", code(err))
	err = order(77, nil)
	require.Equal(t, "23503", code(err), "%v", err)
	require.ErrorIs(t, embed.Tx(ctx, shop, pgx.TxOptions{}, func(pgx.Tx) error { return errMine }), errMine)

	if exec.Command("/usr/bin/python3", "-c", "import psycopg2").Run() != nil {
		t.Log("the example in Python is not run: Debian's python3-psycopg2 is not installed (deploy/install-orms.sh)")
		return
	}
	python := func(customer string) string {
		cmd := exec.CommandContext(ctx, "/usr/bin/python3", "../docs/examples/strict.py", in.DSN("shop.example.com/eu"),
			customer)
		cmd.Env = append(os.Environ(), "PGOPTIONS=-c role="+dbctest.ApplicationRole)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Regexp(t, `^order \d+\n$`, python("5"))
	require.Regexp(t, `^refused: 23503 .*customers/78.* does not exist\n$`, python("78"))
	_, err = crm.Exec(ctx, `DELETE FROM customers WHERE id = 5`)
	require.Equal(t, "23503", code(err))
}
