package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/internal/postgres/launcher"
	"github.com/db-controller/db-controller/test/wait"
)

// The server counts the statements of deployments' databases while it is told to, and the log has the rows
// and the entries of indexes.
func TestTheServerCountsStatementsRowsAndEntries(t *testing.T) {
	ctx := t.Context()
	pg, err := launcher.Start(ctx, launcher.Config{InMemory: true, Settings: CountingSettings})
	if err != nil && strings.Contains(err.Error(), "pg_stat_statements") {
		t.Skip("this PostgreSQL lacks the module pg_stat_statements")
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, pg.Stop()) }()
	require.NoError(t, pg.CreateDatabase(ctx, "dbc_one"))
	conn, err := pgx.Connect(ctx, pg.DSN("dbc_one"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, `CREATE TABLE counted (a int PRIMARY KEY, b int)`)
	require.NoError(t, err)
	pool, err := pgxpool.New(ctx, pg.DSN(""))
	require.NoError(t, err)
	defer pool.Close()

	r := &run{Config: Config{Server: Server{CountsStatements: true}}, baseline: pool}
	counted, off, err := r.counting(ctx)
	require.NoError(t, err)
	require.True(t, counted)
	require.Eventually(t, func() bool { // sessions read the setting soon
		var which string
		require.NoError(t, conn.QueryRow(ctx, `SHOW pg_stat_statements.track`).Scan(&which))
		return which == "top"
	}, wait.Limit, time.Millisecond)
	before, err := r.workNow(ctx, counted)
	require.NoError(t, err)
	for i := range 10 {
		_, err := conn.Exec(ctx, `INSERT INTO counted VALUES ($1, 0)`, i)
		require.NoError(t, err)
	}
	_, err = conn.Exec(ctx, `UPDATE counted SET b = 1`) // in place: no entry
	require.NoError(t, err)
	done, err := r.workSince(ctx, before, counted)
	require.NoError(t, err)
	require.InDelta(t, 11, done.statements, 0)
	require.InDelta(t, 20, done.rows, 0)
	require.InDelta(t, 10, done.entries, 0)
	require.GreaterOrEqual(t, done.transactions, 11.0)
	require.Positive(t, done.bytes)

	var plans bytes.Buffer
	require.NoError(t, writePlansOf(ctx, conn, &plans))
	require.Contains(t, plans.String(), "INSERT INTO counted VALUES ($1, $2)")
	require.Contains(t, plans.String(), "-- 1: ")
	require.Contains(t, plans.String(), "Update on counted")

	off()
	require.Eventually(t, func() bool {
		var which string
		require.NoError(t, conn.QueryRow(ctx, `SHOW pg_stat_statements.track`).Scan(&which))
		return which == "none"
	}, wait.Limit, time.Millisecond)
}
