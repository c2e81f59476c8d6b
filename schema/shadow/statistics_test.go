package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// Autovacuum has analysed the tables after a large deletion, and rows of batches fill the pages that the tables have: the planner expects few.
func TestTheStatisticsOfGrownTablesAreRenewed(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	there := b.ID(bEast)
	pool, store := b.Pools[there], b.Stores[there]
	putHolders(t, b, "former", 2000, nil)
	for _, sql := range []string{`DELETE FROM dbcontroller.resource`, `DELETE FROM dbcontroller.shadow`, `VACUUM (TRUNCATE false, ANALYZE)`} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return store.RunStatistics(ctx) })
	putHolders(t, b, "new", 2000, nil)
	require.Eventually(t, func() bool {
		var rows float64
		err := pool.QueryRow(t.Context(), `SELECT reltuples FROM pg_class WHERE oid = 'dbcontroller.shadow'::regclass`).Scan(&rows)
		require.NoError(t, err)
		return rows == 2000
	}, 20*time.Second, 100*time.Millisecond)
	cancel()
	require.NoError(t, g.Wait())
}
