package migrations_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
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

// The table of applied migrations may be moved to a schema of its own, and stays the one table: for migrations in either direction, for
// the check at a start, and for roles; also where search_path has changed.
func TestTheTableOfMigrationsMayBeMoved(t *testing.T) {
	t.Parallel()
	for _, set := range []migrations.Set{migrations.Deployment, migrations.Registry} {
		dsn, ctx := harness.Postgres(t).NewDatabase(t, ""), t.Context()
		all, err := migrations.Up(ctx, dsn, set)
		require.NoError(t, err)
		conn, err := pgx.Connect(ctx, dsn)
		require.NoError(t, err)
		defer func() { _ = conn.Close(context.Background()) }()
		_, err = conn.Exec(ctx, `BEGIN; CREATE SCHEMA dbcontroller_migrations; ALTER TABLE dbcontroller_migration_`+string(set)+` SET SCHEMA dbcontroller_migrations; COMMIT`)
		require.NoError(t, err)
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
