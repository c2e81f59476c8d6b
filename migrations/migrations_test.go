package migrations_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3/lock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

func TestMigrationsGoUpDownAndUpAgain(t *testing.T) {
	t.Parallel()
	for _, set := range []migrations.Set{migrations.Deployment, migrations.Registry} {
		dsn, ctx := harness.Postgres(t).NewDatabase(t, ""), context.Background()
		require.ErrorContains(t, migrations.Current(ctx, dsn, set), "the database is not ready: it lacks migration 00001")
		all, err := migrations.Up(ctx, dsn, set)
		require.NoError(t, err)
		require.NotEmpty(t, all)
		require.NoError(t, migrations.Current(ctx, dsn, set))
		again, err := migrations.Up(ctx, dsn, set)
		require.NoError(t, err)
		require.Empty(t, again)
		for range all {
			name, err := migrations.Down(ctx, dsn, set)
			require.NoError(t, err)
			require.NotEmpty(t, name)
		}
		name, err := migrations.Down(ctx, dsn, set)
		require.NoError(t, err)
		require.Empty(t, name, "there is nothing left to take back")
		_, err = migrations.Up(ctx, dsn, set)
		require.NoError(t, err)
	}
}

// The keys of a large statement are compressed by lz4, unless the server was built without it.
func TestKeysOfLargeStatementsAreCompressedFast(t *testing.T) {
	t.Parallel()
	ctx, dsn := t.Context(), harness.Postgres(t).NewDatabase(t, "")
	_, err := migrations.Up(ctx, dsn, migrations.Deployment)
	require.NoError(t, err)
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var same bool
	require.NoError(t, conn.QueryRow(ctx, `
SELECT (a.attcompression = 'l') = ('lz4' = ANY (s.enumvals)) FROM pg_attribute a, pg_settings s
WHERE a.attrelid = 'dbcontroller.captured_batch'::regclass AND a.attname = 'names' AND s.name = 'default_toast_compression'`).Scan(&same))
	require.True(t, same)
}

func TestProcessesThatStartTogetherMigrateOnce(t *testing.T) {
	t.Parallel()
	dsn := harness.Postgres(t).NewDatabase(t, "")
	errs := make(chan error)
	for range 3 {
		go func() { _, err := migrations.Up(context.Background(), dsn, migrations.Deployment); errs <- err }()
	}
	for range 3 {
		require.NoError(t, <-errs)
	}
}

// A process that starts on a database with all migrations does not wait for one that holds the lock of the migrations.
func TestACompleteDatabaseIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for _, set := range []migrations.Set{migrations.Deployment, migrations.Registry} {
		dsn := harness.Postgres(t).NewDatabase(t, "")
		_, err := migrations.Up(t.Context(), dsn, set)
		require.NoError(t, err)
		migrating, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		defer func() { _ = migrating.Close(context.Background()) }()
		_, err = migrating.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, lock.DefaultLockID)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		applied, err := migrations.Up(ctx, dsn, set)
		require.NoError(t, err)
		require.Empty(t, applied)
	}
}

// A new database has the table of applied migrations in a schema of its own. One that an earlier program made is moved there, any number of
// times and beside others that do so, and stays the one table wherever it is: for migrations in either direction, for the check at a start,
// and for roles; also where search_path has changed.
func TestTheTableOfMigrationsIsInItsOwnSchema(t *testing.T) {
	t.Parallel()
	for _, set := range []migrations.Set{migrations.Deployment, migrations.Registry} {
		dsn, ctx := harness.Postgres(t).NewDatabase(t, ""), t.Context()
		all, err := migrations.Up(ctx, dsn, set)
		require.NoError(t, err)
		conn, err := pgx.Connect(ctx, dsn)
		require.NoError(t, err)
		defer func() { _ = conn.Close(context.Background()) }()
		in := func(table string) (schemas []string) {
			t.Helper()
			rows, err := conn.Query(ctx, `SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = $1`, table)
			require.NoError(t, err)
			schemas, err = pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			return schemas
		}
		table := "dbcontroller_migration_" + string(set)
		require.Equal(t, []string{"dbcontroller_migrations"}, in(table))
		moved, err := migrations.MoveTable(ctx, dsn, set)
		require.NoError(t, err)
		require.False(t, moved)

		// As an earlier program made it.
		_, err = conn.Exec(ctx, `ALTER TABLE dbcontroller_migrations.`+table+` SET SCHEMA public; DROP SCHEMA dbcontroller_migrations`)
		require.NoError(t, err)
		require.NoError(t, migrations.Current(ctx, dsn, set))
		_, err = migrations.TakeBack(ctx, dsn, set, "try")
		require.NoError(t, err)
		_, err = migrations.Up(ctx, dsn, set)
		require.NoError(t, err)
		require.Equal(t, []string{"public"}, in(table), "it stays where it is until somebody moves it")
		require.Equal(t, []string{"public"}, in("dbcontroller_migration_undone"), "beside it")
		results := make(chan bool)
		for range 3 {
			go func() {
				moved, err := migrations.MoveTable(context.Background(), dsn, set)
				results <- moved && err == nil
				assert.NoError(t, err)
			}()
		}
		times := 0
		for range 3 {
			if <-results {
				times++
			}
		}
		require.Equal(t, 1, times)
		require.Equal(t, []string{"dbcontroller_migrations"}, in(table))
		require.Equal(t, []string{"dbcontroller_migrations"}, in("dbcontroller_migration_undone"))
		undone, err := migrations.ListUndone(ctx, dsn, set)
		require.NoError(t, err)
		require.Len(t, undone, 1)
		require.NoError(t, migrations.Current(ctx, dsn, set))
		require.NoError(t, migrations.Roles(ctx, dsn, set, "moved_"+string(set)))
		name, err := migrations.Down(ctx, dsn, set)
		require.NoError(t, err)
		require.Equal(t, all[len(all)-1], name)
		again, err := migrations.Up(ctx, dsn+"&search_path=elsewhere", set)
		require.NoError(t, err)
		require.Equal(t, []string{name}, again)
		var tables int
		require.NoError(t, conn.QueryRow(ctx, `SELECT count(*) FROM pg_class WHERE relname = 'dbcontroller_migration_`+string(set)+`'`).Scan(&tables))
		require.Equal(t, 1, tables)
	}
}

// A process that serves locks tables in another order than a migration that changes several: the deadlock ends the migration, which is
// tried again.
func TestAMigrationSurvivesADeadlockWithAWriter(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dsn := harness.Postgres(t).NewDatabase(t, "")
	all, err := migrations.Up(ctx, dsn, migrations.Deployment)
	require.NoError(t, err)
	var missing []string
	for name := ""; name != "00027_finalizers.sql"; missing = append([]string{name}, missing...) {
		name, err = migrations.Down(ctx, dsn, migrations.Deployment)
		require.NoError(t, err)
		require.NotEmpty(t, name)
	}
	writer := connected(t, dsn)
	// PostgreSQL ends the session that looks first, which is the migration's.
	execute(t, writer, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''5s''', current_database()); END $$`)
	execute(t, writer, `SET deadlock_timeout = '5min'`)
	execute(t, writer, `BEGIN`)
	execute(t, writer, `LOCK TABLE dbcontroller.change IN ROW EXCLUSIVE MODE`)
	type result struct {
		applied []string
		err     error
	}
	done := make(chan result, 1)
	go func() {
		applied, err := migrations.Up(ctx, dsn, migrations.Deployment)
		done <- result{applied, err}
	}()
	require.Eventually(t, func() bool {
		var waits bool
		err := writer.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'dbcontroller.change'::regclass AND NOT granted)`).Scan(&waits)
		return err == nil && waits
	}, wait.Limit, time.Millisecond)
	execute(t, writer, `LOCK TABLE dbcontroller.kind IN ROW EXCLUSIVE MODE`)
	execute(t, writer, `COMMIT`)
	got := <-done
	require.NoError(t, got.err)
	require.Equal(t, missing, got.applied)
	require.Equal(t, all[len(all)-1], got.applied[len(got.applied)-1])
}
