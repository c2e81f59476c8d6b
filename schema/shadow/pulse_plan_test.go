package shadow_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/test/harness"
)

// The pulse reads the index where new rows are, and not the rows before them.
func TestAPulseReadsNoOldRows(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), harness.Postgres(t).NewDatabase(t, ""))
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	_, err = conn.Exec(t.Context(), `
CREATE TABLE change (seq bigint PRIMARY KEY, xid xid8 NOT NULL);
CREATE INDEX ON change (xid);
INSERT INTO change SELECT n, n::text::xid8 FROM generate_series(1, 20000) AS n;
ANALYZE change;
SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan;`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `PREPARE pulse AS SELECT `+feed.AnyNew("change"))
	require.NoError(t, err)
	rows, err := conn.Query(t.Context(), `EXPLAIN (ANALYZE) EXECUTE pulse ('20001', '{19999999}')`,
		pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	plan := strings.Join(lines, "\n")
	require.Equal(t, 2, strings.Count(plan, "Index Cond: (xid"), plan)
	require.NotContains(t, plan, "Rows Removed", plan)
}
