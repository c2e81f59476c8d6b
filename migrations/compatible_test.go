package migrations_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/test/harness"
)

// A program takes a database with newer migrations only if the database says that it works with this program.
func TestANewerSchemaIsTakenOnlyIfItIsKnownToBeCompatible(t *testing.T) {
	t.Parallel()
	dsn, set := harness.Postgres(t).NewDatabase(t, ""), migrations.Registry
	_, err := migrations.Up(t.Context(), dsn, set)
	require.NoError(t, err)
	conn := connected(t, dsn)
	var mark string
	require.NoError(t,
		conn.QueryRow(t.Context(), "SELECT obj_description('dbcontroller_migrations.registry'::regclass)").Scan(&mark))
	require.Equal(t, fmt.Sprint("works with programs that know migration ", oldest(t)), mark)
	check := func() error {
		current := migrations.Current(t.Context(), dsn, set)
		ready := migrations.Ready(t.Context(), conn, set)
		require.Equal(t, current, ready)
		return ready
	}
	require.NoError(t, check())
	execute(t, conn, "INSERT INTO dbcontroller_migrations.registry (version_id, is_applied) VALUES (999, true)")
	require.NoError(t, check(), "a newer program has said that older ones may go on")
	execute(t, conn,
		"COMMENT ON TABLE dbcontroller_migrations.registry IS 'works with programs that know migration 999'")
	require.ErrorIs(t, check(), migrations.ErrNotReady)
	require.ErrorContains(t, check(), "works with programs that know migration 999 or a newer one; this one knows")
	execute(t, conn, "COMMENT ON TABLE dbcontroller_migrations.registry IS NULL")
	require.ErrorContains(t, check(), "no compatibility is recorded")
}

// oldest is the newest migration of the registry without the line that names an older one.
func oldest(t *testing.T) (n int) {
	t.Helper()
	names, err := filepath.Glob("registry/*.sql")
	require.NoError(t, err)
	for i, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		if !strings.Contains(string(text), "-- compatible with programs that know migration ") {
			n = i + 1
		}
	}
	return n
}

// A deployment and the registry have a database each: migrations of the other set are refused, and nothing is
// changed.
func TestMigrationsOfTheOtherSetAreRefused(t *testing.T) {
	t.Parallel()
	dsn := harness.Postgres(t).NewDatabase(t, "")
	missing, err := migrations.Missing(t.Context(), dsn, migrations.Registry)
	require.NoError(t, err)
	states, err := migrations.List(t.Context(), dsn, migrations.Registry)
	require.NoError(t, err)
	require.Len(t, states, len(missing))
	require.False(t, states[0].Applied)
	require.ErrorContains(t, migrations.Current(t.Context(), dsn, migrations.Registry),
		"the database is not ready: it lacks migration 00001")
	require.Contains(t, missing[0], "-- 00001_baseline.sql\n-- EnvRegistry:")
	require.NotContains(t, strings.Join(missing, ""), "goose")
	var relations int
	require.NoError(t, connected(t, dsn).QueryRow(t.Context(),
		"SELECT count(*) FROM pg_tables WHERE tablename LIKE 'dbcontroller%'").Scan(&relations))
	require.Zero(t, relations, "a dry run changes nothing, and neither does a look")
	require.NoError(t, connected(t, dsn).QueryRow(t.Context(),
		"SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'dbcontroller%'").Scan(&relations))
	require.Zero(t, relations)
	all, err := migrations.Up(t.Context(), dsn, migrations.Registry)
	require.NoError(t, err)
	require.Len(t, missing, len(all))
	missing, err = migrations.Missing(t.Context(), dsn, migrations.Registry)
	require.NoError(t, err)
	require.Empty(t, missing)
	_, err = migrations.Up(t.Context(), dsn, migrations.Deployment)
	require.ErrorContains(t, err, "this is the database of a registry, and not of a deployment")
	_, err = migrations.Missing(t.Context(), dsn, migrations.Deployment)
	require.ErrorContains(t, err, "or --set registry")
	_, err = migrations.List(t.Context(), dsn, migrations.Deployment)
	require.ErrorContains(t, err, "this is the database of a registry, and not of a deployment")
	require.ErrorContains(t, err, "or --set registry")
	require.EqualError(t, migrations.Current(t.Context(), dsn, migrations.Deployment),
		"this is the database of a registry, and not of a deployment: use another database")
}
