package shadow_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/attach"
)

// The statements that are printed for a copy of the database free its tables from the triggers, with no process beside it; also those of a table that the
// copy lacks, and a second time.
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
		require.Equal(t, []string{"0"}, a.rows(a.shop, `SELECT count(*)::text FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'dbcontroller'`))
		a.exec(a.shop, `DROP TABLE IF EXISTS orders`)
	}
}
