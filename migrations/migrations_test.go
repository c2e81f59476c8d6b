package migrations_test

import (
	"context"
	"os"
	"testing"

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
