package shadow_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Many other targets, and many rights.
const manyRightsSQL = `
INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name, acting_epoch, acting_own)
SELECT gen_random_uuid(), f.deployment_id, f.kind_id, 'customers/' || g, f.acting_epoch, f.acting_own
FROM (SELECT * FROM dbcontroller.foreign_target WHERE acting_epoch IS NOT NULL LIMIT 1) f, generate_series(1000, 999 + $1::bigint) g`

// A statement on a strict table finds the rights to its targets by their names, however many others there are. DBCONTROLLER_TEST_ROWS is
// their number.
func TestStrictStatementsFindRightsByName(t *testing.T) {
	t.Parallel()
	n, err := strconv.Atoi(os.Getenv("DBCONTROLLER_TEST_ROWS"))
	if err != nil {
		n = 20_000
	}
	a := newStrict(t)
	a.write(`INSERT INTO orders (customer_id, note) VALUES (1, 'x')`)
	a.Settle()
	a.exec(a.shop, manyRightsSQL, n)
	a.exec(a.shop, `ANALYZE dbcontroller.foreign_target`)
	a.exec(a.shop, `SELECT pg_stat_force_next_flush()`)
	read := func() (rows int) {
		a.exec(a.shop, `SELECT pg_stat_force_next_flush()`)
		require.NoError(t, a.shop.QueryRow(t.Context(), `
SELECT sum(idx_tup_read)::int + (SELECT seq_tup_read::int FROM pg_stat_user_tables WHERE relid = 'dbcontroller.foreign_target'::regclass)
FROM pg_stat_user_indexes WHERE relid = 'dbcontroller.foreign_target'::regclass`).Scan(&rows))
		return rows
	}
	before := read()
	a.exec(a.shop, `INSERT INTO orders (customer_id, note) SELECT 1000 + g % 100, 'n' FROM generate_series(1, 2000) g`)
	a.exec(a.shop, `UPDATE orders SET customer_id = customer_id + 1 WHERE note = 'n'`)
	require.Less(t, read()-before, 1500, "index entries and rows of 200 targets")
}
