package shadow_test

import (
	"context"
	"errors"
	osexec "os/exec"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/test/harness"
)

// The statements that are printed for a copy of the database free its tables from the triggers, with no
// process beside it; also a table that the copy lacks, and a second time.
func TestACopyIsDetachedWithoutAProcess(t *testing.T) {
	t.Parallel()
	a := newStrict(t)
	ctx := context.Background()
	_, err := a.shop.Exec(ctx, `INSERT INTO invoices (id, customer_id) VALUES ('i', 1)`)
	var pg *pgconn.PgError
	require.True(t, errors.As(err, &pg), "%v", err)
	all, err := attach.All(ctx, a.shop)
	require.NoError(t, err)
	require.Len(t, all, 2)
	for range 2 {
		for _, sql := range attach.DetachSQL(all) {
			_, err := a.shop.Exec(ctx, sql)
			require.NoError(t, err, sql)
		}
		a.exec(a.shop, `INSERT INTO invoices (id, customer_id) VALUES ('i' || random(), 1)`)
		require.Equal(t, []string{"0"},
			a.rows(a.shop,
				`SELECT count(*)::text FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_class c ON c.oid = g.tgrelid WHERE n.nspname = 'dbcontroller' AND c.relnamespace <> n.oid`))
		a.exec(a.shop, `DROP TABLE IF EXISTS orders`)
	}
}

// A dump of a database with attached tables is restored whole: the view and the function by which a table is
// read are in it, under the present names.
func TestADumpOfAttachedTablesIsRestored(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"pg_dump", "psql"} {
		if _, err := osexec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	a := newGone(t)
	a.write(`INSERT INTO orders (id, customer_id, payer_id) VALUES (1, 1, 2), (2, 1, NULL)`)
	a.exec(a.shop, `ALTER TABLE orders RENAME id TO "a""b $1"`)
	to := harness.Postgres(t).NewDatabase(t, "")
	out, err := osexec.CommandContext(t.Context(), "sh", "-c", `pg_dump "$0" | psql -qX -v ON_ERROR_STOP=1 "$1"`,
		harness.Postgres(t).DSN(a.shop.Config().Database), to).CombinedOutput()
	require.NoError(t, err, "%s", out)
	restored, err := pgx.Connect(t.Context(), to)
	require.NoError(t, err)
	defer func() { _ = restored.Close(context.Background()) }()
	require.Empty(t,
		a.rows(restored, `SELECT d FROM dbcontroller.attachment a, dbcontroller.table_drift(a.kind_id) AS d`))
	view := a.rows(a.shop,
		`SELECT 'dbcontroller.attached_' || kind_id FROM dbcontroller.attachment WHERE kind = 'Order'`)[0]
	require.Equal(t, []string{"1", "2"}, a.rows(restored, `SELECT v.id::text FROM `+view+` AS v ORDER BY 1`))
	_, err = restored.Exec(t.Context(), `INSERT INTO public.orders ("a""b $1", customer_id) VALUES (9, 7)`)
	var pg *pgconn.PgError
	require.True(t, errors.As(err, &pg), "%v", err)
	require.Contains(t, pg.Message, "without the right")
}
