package shadow_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
)

// asOfABusierServer gives the rows of a database ids of transactions as a server has them that has used a
// million more.
const asOfABusierServer = `
UPDATE dbcontroller.notice SET xid = (xid::text::bigint + 1000000)::text::xid8;
UPDATE dbcontroller.work SET xid = (xid::text::bigint + 1000000)::text::xid8;
UPDATE dbcontroller.change SET xid = (xid::text::bigint + 1000000)::text::xid8;
UPDATE dbcontroller.meta SET compacted = (SELECT min(xid) FROM dbcontroller.change)`

// A dump of a server that has used more transactions than the one where it is restored: waiting work goes on,
// a watch receives its snapshot and later changes alone, and its token is good.
func TestADumpOfABusierServer_I1_I13_I23_I24(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	ctx := t.Context()
	b.MustPut(target, nil)
	b.MustPut(holder, body{"cascade": target})
	b.MustPut(targetName("kept"), body{"label": "first"})
	b.MustPut(targetName("kept"), body{"label": "second"})
	b.Settle()
	b.SetDown(bEast, true)
	b.MustDelete(target)
	_, err := b.Pools[b.ID(aWest)].Exec(ctx, asOfABusierServer)
	require.NoError(t, err)
	b.Renew(aWest)

	store := b.Stores[b.ID(aWest)]
	f, stop := follow(t, store, "")
	f.until("the end of the snapshot", func() bool { return f.ended && len(f.state) == 2 })
	before := f.events
	b.MustPut(targetName("later"), nil)
	f.until("the change", func() bool { _, ok := f.state["targets/later"]; return ok })
	require.Equal(t, before+1, f.events, "the changes of before the dump are in the snapshot")
	stop()
	g, _ := follow(t, store, f.token)
	b.MustPut(targetName("last"), nil)
	g.until("the change behind the token", func() bool { _, ok := g.state["targets/last"]; return ok })

	b.SetDown(bEast, false)
	b.Settle()
	b.Gone(target, holder)
	require.Zero(t, b.Count(aWest, "work"))
	require.Zero(t, b.Count(aWest, "notice"))
	b.Audit()
}

// A subscriber of logical replication has the rows, and no sequence has moved: all numbers go on behind the
// rows.
func TestAPromotedSubscriber_I1_I10(t *testing.T) {
	t.Parallel()
	b := newPair(t, nil)
	cascade := func(name string) {
		target := targetName(name)
		b.MustPut(target, nil)
		b.MustPut(fmt.Sprintf("//%s/holders/%s", bEast, name), body{"cascade": target})
		b.Settle()
		b.MustDelete(target)
		b.Settle()
		b.Gone(target)
	}
	for i := range 3 {
		cascade(fmt.Sprint("before", i))
	}
	first := b.MustPut(target, nil)
	for _, deployment := range []string{aWest, bEast} {
		for i := range 2 { // the second subscriber has the numbers of the epoch before
			restartSequences(t, b.Pools[b.ID(deployment)])
			b.Renew(deployment)
			requireSequencesBehindRows(t, b.Pools[b.ID(deployment)])
			b.Settle()
			cascade(fmt.Sprint("after-", deployment[0:1], i))
		}
	}
	second := b.MustPut(target, body{"label": "second"})
	require.Greater(t, second.Revision, first.Revision)
	_, err := b.Stores[b.ID(aWest)].Write.Save(t.Context(),
		[]peer.Write{{Name: "targets/t", Mode: peer.Update, UID: first.UID, Revision: first.Revision}})
	require.ErrorIs(t, err, peer.ErrConflict)
	b.Audit()
}

func restartSequences(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	ctx := context.Background()
	rows, err := pool.Query(ctx,
		`SELECT format('ALTER SEQUENCE %s RESTART', seqrelid::regclass) FROM pg_sequence JOIN pg_class c ON c.oid = seqrelid WHERE relnamespace = 'dbcontroller'::regnamespace`)
	require.NoError(t, err)
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.NotEmpty(t, statements)
	for _, sql := range statements {
		_, err := pool.Exec(ctx, sql)
		require.NoError(t, err)
	}
}

// requireSequencesBehindRows looks at every identity column, also of new tables.
func requireSequencesBehindRows(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	ctx := context.Background()
	const sql = `
SELECT format('SELECT %L, last_value, COALESCE((SELECT max(%I) FROM %s), 0) FROM %s', c.relname || '.' || attname, attname, c.oid::regclass, pg_get_serial_sequence(c.oid::regclass::text, attname))
FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = 'dbcontroller'::regnamespace AND attidentity <> ''`
	rows, err := pool.Query(ctx, sql)
	require.NoError(t, err)
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.NotEmpty(t, statements)
	for _, sql := range statements {
		var column string
		var last, greatest int64
		require.NoError(t, pool.QueryRow(ctx, sql).Scan(&column, &last, &greatest))
		require.GreaterOrEqual(t, last, greatest, column)
	}
}
