package migrations_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3/lock"
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
		require.ErrorContains(t, migrations.Current(ctx, dsn, set),
			"the database is not ready: it lacks migration 00001")
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

// A process that starts on a database with all migrations does not wait for a process that holds the lock of
// the migrations.
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

// The tables of applied migrations, and of migrations that were taken back, are in a schema of their own,
// with any search_path.
func TestTheTableOfMigrationsIsInItsOwnSchema(t *testing.T) {
	t.Parallel()
	for _, set := range []migrations.Set{migrations.Deployment, migrations.Registry} {
		dsn, ctx := harness.Postgres(t).NewDatabase(t, ""), t.Context()
		all, err := migrations.Up(ctx, dsn+"&search_path=elsewhere", set)
		require.NoError(t, err)
		_, err = migrations.TakeBack(ctx, dsn, set, "try")
		require.NoError(t, err)
		again, err := migrations.Up(ctx, dsn, set)
		require.NoError(t, err)
		require.Equal(t, all[len(all)-1:], again)
		rows, err := connected(t, dsn).
			Query(ctx,
				`SELECT relnamespace::regnamespace || '.' || relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'dbcontroller_migrations'::regnamespace`)
		require.NoError(t, err)
		tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"dbcontroller_migrations." + string(set), "dbcontroller_migrations.undone"},
			tables)
		undone, err := migrations.ListUndone(ctx, dsn, set)
		require.NoError(t, err)
		require.Len(t, undone, 1)
	}
}

// A database of a program before version 0.1.0 is refused with one sentence, by each function that meets it,
// and nothing in it is changed.
func TestADatabaseOfBeforeTheFirstReleaseIsRefused(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		"public", "dbcontroller_migrations", "dbcontroller.pin",
		"dbcontroller.attachment",
	} {
		for _, set := range []migrations.Set{migrations.Deployment, migrations.Registry} {
			dsn := harness.Postgres(t).NewDatabase(t, "")
			conn := connected(t, dsn)
			table := schema + ".dbcontroller_migration_" + string(set)
			if strings.HasPrefix(schema, "dbcontroller.") { // a baseline that is no more
				table = schema
			}
			execute(t, conn, `CREATE SCHEMA dbcontroller_migrations; CREATE SCHEMA dbcontroller; CREATE TABLE `+table+
				` (version_id bigint, is_applied boolean)`)
			_, up := migrations.Up(t.Context(), dsn, set)
			_, missing := migrations.Missing(t.Context(), dsn, set)
			_, states := migrations.List(t.Context(), dsn, set)
			_, down := migrations.TakeBack(t.Context(), dsn, set, "try")
			for what, err := range map[string]error{
				"up": up, "up --dry-run": missing, "status": states, "down": down,
				"serve": migrations.Current(t.Context(), dsn, set),
			} {
				require.ErrorAs(t, err, new(*migrations.RefusedError), what)
				require.ErrorContains(t, err, "this database was made by a program before version 0.1.0", what)
				require.ErrorContains(t, err, "use an empty database", what)
			}
			var relations int
			require.NoError(t,
				conn.QueryRow(t.Context(),
					`SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text !~ '^(pg_|information_schema)'`).Scan(&relations))
			require.Equal(t, 1, relations)
		}
	}
}
