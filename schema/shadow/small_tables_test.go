package shadow_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

const (
	someHundredSQL = `
INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
SELECT gen_random_uuid(), (SELECT max(id) FROM dbcontroller.kind), 1, 1, g, 1, 'projects/small' || g FROM generate_series(1, 1000) AS g;
ANALYZE dbcontroller.shadow`
)

var (
	parameter = regexp.MustCompile(`\$\d+`)
	named     = regexp.MustCompile(`@[a-z_]+`)
)

// The statements of a write and of an establish find rows by their keys, also when they are planned while a
// table has some hundred rows. A hash of such a table costs less than ten look-ups by the estimates, and more
// than the single look-up that is made; and the plan stays when the table has grown.
func TestATableOfSomeHundredRowsIsReadByKeys(t *testing.T) {
	t.Parallel()
	b, c := countedPair(t)
	b.MustPut(target, nil)
	for _, pool := range b.Pools {
		_, err := pool.Exec(t.Context(), someHundredSQL)
		require.NoError(t, err)
	}
	c.reset(t, "before")
	b.MustPut(holder, body{"cascade": target})
	c.mu.Lock()
	sent := slices.Clone(c.sent)
	c.mu.Unlock()
	locks, settings := 0, ""
	for _, sql := range slices.Concat(sent...) {
		switch {
		case strings.Contains(sql, "force_generic_plan"):
			settings = sql
			continue
		case settings == "" || strings.HasPrefix(sql, "begin") || sql == "commit":
			continue
		case strings.Contains(sql, "FOR SHARE OF s"):
			locks++
		}
		for id, pool := range b.Pools {
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), `SET LOCAL enable_seqscan = off`) // as the sessions of the store
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), settings)
			require.NoError(t, err)
			plan := genericPlan(t, tx, sql)
			require.NoError(t, tx.Rollback(t.Context()))
			require.NotRegexp(t, `(Hash|Merge) Join|Seq Scan on shadow`, plan, "%s at %s", sql, id)
		}
	}
	require.Positive(t, locks, "the lock of the target")
}

// The statements of many rows are planned for them, in a session that has the plans of a write of one row,
// too: the nested loops of such plans compare each row of a batch with each other. (A write of 30,000
// resources, 500 in a batch, took four times as long.)
func TestABatchIsNotReadByThePlansOfOneRow(t *testing.T) {
	t.Parallel()
	b, c := countedPair(t)
	b.MustPut(target, nil)
	for range 3 {
		b.MustPut(holder, body{"cascade": target})
		b.MustPut(holder, nil)
	}
	c.reset(t, "before")
	putHolders(t, b, "many", 300, body{"cascade": target})
	c.mu.Lock()
	sent := slices.Concat(slices.Clone(c.sent)...)
	c.mu.Unlock()
	planned := 0
	for _, sql := range sent {
		if strings.Contains(sql, "plan_cache_mode") {
			require.Contains(t, sql, "force_custom_plan")
			planned++
		}
	}
	require.Equal(t, 2, planned, "the establish and the write: %q", sent)
}

// genericPlan returns the plan of a statement for any values.
func genericPlan(t *testing.T, tx pgx.Tx, sql string) string {
	t.Helper()
	names := map[string]string{}
	sql = named.ReplaceAllStringFunc(sql, func(name string) string {
		if names[name] == "" {
			names[name] = fmt.Sprintf("$%d", len(names)+1)
		}
		return names[name]
	})
	_, err := tx.Exec(t.Context(), `PREPARE looked_at AS `+sql)
	require.NoError(t, err, sql)
	defer func() {
		_, err := tx.Exec(t.Context(), `DEALLOCATE looked_at`)
		require.NoError(t, err)
	}()
	values := ""
	if n := len(slices.Compact(slices.Sorted(slices.Values(parameter.FindAllString(sql, -1))))); n > 0 {
		values = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
	}
	rows, err := tx.Query(t.Context(), fmt.Sprintf("EXPLAIN EXECUTE looked_at%s", values),
		pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return strings.Join(lines, "\n")
}
