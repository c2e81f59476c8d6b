package migrations_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

func TestMigrationsGoUpDownAndUpAgain(t *testing.T) {
	t.Parallel()
	for _, set := range []migrations.Set{migrations.Deployment, migrations.Registry} {
		dsn, ctx := harness.Postgres(t).NewDatabase(t, ""), context.Background()
		require.ErrorContains(t, migrations.Current(ctx, dsn, set), "the database lacks migration 00001")
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
