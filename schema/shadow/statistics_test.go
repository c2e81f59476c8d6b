package shadow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/test/wait"
)

// Autovacuum has analysed the tables after a large deletion, and rows of batches fill the pages that the
// tables have: the planner expects few.
func TestTheStatisticsOfGrownTablesAreRenewed(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	there := b.ID(bEast)
	pool, store := b.Pools[there], b.Stores[there]
	putHolders(t, b, "former", 2000, nil)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	for _, sql := range []string{
		`DELETE FROM dbcontroller.resource`, `DELETE FROM dbcontroller.shadow`,
		`SELECT pg_stat_force_next_flush()`, `VACUUM (TRUNCATE false, ANALYZE)`,
	} {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	// By ANALYZE: autovacuum, which may look as well, has a count of its own.
	looked := func() (rows float64, times int) {
		err := pool.QueryRow(t.Context(),
			`SELECT reltuples, pg_stat_get_analyze_count(oid) FROM pg_class WHERE oid = 'dbcontroller.shadow'::regclass`).Scan(&rows, &times)
		require.NoError(t, err)
		return rows, times
	}
	_, before := looked()
	ctx, cancel := context.WithCancel(t.Context())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return store.Admin.RunStatistics(ctx) })
	putHolders(t, b, "new", 2000, nil)
	require.Eventually(t, func() bool {
		rows, after := looked()
		return rows == 2000 && after > before
	}, wait.Limit, 100*time.Millisecond)
	cancel()
	require.NoError(t, g.Wait())
}

// Rows that come and go are no growth: a table of work would be analysed every second.
func TestRowsThatComeAndGoAreNoGrowth(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	pool := b.Pools[b.ID(bEast)]
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	grown := func() (name *string) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT dbcontroller.analyze_grown(1000, '')`).Scan(&name))
		return name
	}
	exec(`ANALYZE`)
	work := `INSERT INTO dbcontroller.closing (target_id, delete_id, until) SELECT g, gen_random_uuid(), now() FROM generate_series(1, 2000) AS g`
	exec(`WITH flush AS MATERIALIZED (SELECT pg_stat_force_next_flush()) ` + work + `, flush`)
	require.Equal(t, "closing", *grown())
	require.Nil(t, grown())
	exec(`DELETE FROM dbcontroller.closing`)
	exec(`ANALYZE dbcontroller.closing`)
	for range 3 {
		exec(work)
		exec(
			`WITH flush AS MATERIALIZED (SELECT pg_stat_force_next_flush()) DELETE FROM dbcontroller.closing USING flush`)
	}
	require.Nil(t, grown())
}
