package migrations_test

import (
	"context"
	"database/sql"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// A process that serves locks tables in another order than a migration that changes several: the deadlock
// ends the migration, which is tried again.
func TestAMigrationSurvivesADeadlockWithAWriter(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dsn := harness.Postgres(t).NewDatabase(t, "")
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	defer func() { _ = db.Close() }()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, fstest.MapFS{
		"00001_tables.sql": {Data: []byte("-- +goose Up\nCREATE TABLE a ();\nCREATE TABLE b ();\n")},
		"00002_columns.sql": {
			Data: []byte("-- +goose Up\nALTER TABLE a ADD COLUMN x int;\nALTER TABLE b ADD COLUMN x int;\n"),
		},
	})
	require.NoError(t, err)
	_, err = provider.UpByOne(ctx)
	require.NoError(t, err)
	writer, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer func() { _ = writer.Close(context.Background()) }()
	execute := func(sql string) {
		t.Helper()
		_, err := writer.Exec(ctx, sql)
		require.NoError(t, err)
	}
	// PostgreSQL ends the session that looks first, which is the migration's.
	execute(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''5s''', current_database()); END $$`)
	execute(`SET deadlock_timeout = '5min'`)
	execute(`BEGIN`)
	execute(`LOCK TABLE b IN ROW EXCLUSIVE MODE`)
	type result struct {
		applied []string
		err     error
	}
	done := make(chan result, 1)
	go func() {
		applied, err := migrations.UpBesideWriters(ctx, provider)
		done <- result{applied, err}
	}()
	require.Eventually(t, func() bool {
		var waits bool
		err := writer.QueryRow(ctx,
			`SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'b'::regclass AND NOT granted)`).Scan(&waits)
		return err == nil && waits
	}, wait.Limit, time.Millisecond)
	execute(`LOCK TABLE a IN ROW EXCLUSIVE MODE`)
	execute(`COMMIT`)
	got := <-done
	require.NoError(t, got.err)
	require.Equal(t, []string{"00002_columns.sql"}, got.applied)
}
