package migrations_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

func connected(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := conn.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
}

// besideTables has the rights on sequences and functions that are looked at, and their names in the error.
var besideTables = map[migrations.Set]map[string]string{
	migrations.Deployment: {
		"REVOKE EXECUTE ON FUNCTION dbcontroller.forget_removals":    "EXECUTE on function dbcontroller.forget_removals: run",
		"REVOKE UPDATE ON SEQUENCE dbcontroller.mark":                "UPDATE on sequence dbcontroller.mark: run",
		"REVOKE USAGE ON SEQUENCE dbcontroller.work_seq_seq":         "USAGE on sequence dbcontroller.work_seq_seq: run",
		"REVOKE SELECT ON ALL SEQUENCES IN SCHEMA dbcontroller":      "SELECT on sequence dbcontroller.",
		"REVOKE USAGE ON SCHEMA dbcontroller":                        "USAGE on schema dbcontroller: run",
		"REVOKE UPDATE (finalizers), INSERT ON dbcontroller.kind":    "INSERT on dbcontroller.kind, UPDATE on dbcontroller.kind (finalizers): run",
		"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dbcontroller":         "EXECUTE on function dbcontroller.acquire_as, EXECUTE on function dbcontroller.analyze_grown, EXECUTE on function dbcontroller.change_rows, EXECUTE on function dbcontroller.fire_deferred, EXECUTE on function dbcontroller.forget_removals: run",
		"REVOKE SELECT, INSERT, UPDATE, DELETE ON dbcontroller.work": "DELETE on dbcontroller.work, INSERT on dbcontroller.work, ",
	},
	migrations.Registry: {
		"REVOKE USAGE ON SCHEMA dbcontroller_registry": "USAGE on schema dbcontroller_registry: run",
	},
}

// A right that the user lacks, and a migration that the database lacks, are named with the remedy.
func TestReadyNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for set, c := range map[migrations.Set]struct{ grants, revoke, missing string }{
		migrations.Deployment: {
			"dbcontroller_ready_api, dbcontroller_ready_controller",
			"REVOKE INSERT ON dbcontroller.cause FROM dbcontroller_ready_api, dbcontroller_ready_controller",
			"its user lacks INSERT on dbcontroller.cause: run `db-controller migrate up --set deployment --roles`",
		},
		migrations.Registry: {
			"dbcontroller_registered_api",
			"REVOKE UPDATE (revision) ON dbcontroller_registry.meta FROM dbcontroller_registered_api",
			"its user lacks UPDATE on dbcontroller_registry.meta (revision): run `db-controller migrate up --set registry --roles`",
		},
	} {
		t.Run(string(set), func(t *testing.T) {
			t.Parallel()
			prefix, dsn := "dbcontroller_ready", harness.Postgres(t).NewDatabase(t, "")
			if set == migrations.Registry {
				prefix = "dbcontroller_registered"
			}
			admin, serving := connected(t, dsn), connected(t, dsn)
			ready := func() error { return migrations.Ready(t.Context(), serving, set) }
			require.ErrorIs(t, ready(), migrations.ErrNotReady)
			_, err := migrations.Up(t.Context(), dsn, set)
			require.NoError(t, err)
			require.NoError(t, ready(), "a superuser may do everything")

			role := prefix + "_serving"
			execute(t, admin, "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '"+role+
				"') THEN CREATE ROLE "+role+"; END IF; END $$")
			require.NoError(t, migrations.Roles(t.Context(), dsn, set, prefix))
			// roles are of the server: another run may have left them
			execute(t, admin, "REVOKE "+c.grants+" FROM "+role)
			execute(t, serving, "SET ROLE "+role)
			require.Error(t, ready(), "the roles are not granted to it")
			execute(t, admin, "GRANT "+c.grants+" TO "+role)
			require.NoError(t, ready(), "the least rights are enough")
			execute(t, admin, c.revoke)
			require.ErrorIs(t, ready(), migrations.ErrNotReady)
			require.ErrorContains(t, ready(), c.missing)
			require.NoError(t, migrations.Roles(t.Context(), dsn, set, prefix))
			require.NoError(t, ready())
			for revoke, missing := range besideTables[set] {
				execute(t, admin, revoke+" FROM "+c.grants)
				if set == migrations.Deployment { // of which they are members
					execute(t, admin, revoke+" FROM "+prefix+"_rows")
				}
				require.ErrorIs(t, ready(), migrations.ErrNotReady, revoke)
				require.ErrorContains(t, ready(), "its user lacks "+missing)
				require.NoError(t, migrations.Roles(t.Context(), dsn, set, prefix))
				require.NoError(t, ready())
			}

			_, err = migrations.Down(t.Context(), dsn, set)
			require.NoError(t, err)
			require.ErrorIs(t, ready(), migrations.ErrNotReady)
			require.ErrorContains(t, ready(), "it lacks migration 0")
		})
	}
}

// A serving process does not lose its tables, and the record of a taken-back migration has the operator and
// the reason.
func TestAMigrationIsTakenBackWhenNoProcessUsesTheDatabase(t *testing.T) {
	t.Parallel()
	for _, set := range []migrations.Set{migrations.Deployment, migrations.Registry} {
		dsn := harness.Postgres(t).NewDatabase(t, "")
		all, err := migrations.Up(t.Context(), dsn, set)
		require.NoError(t, err)
		admin := connected(t, dsn)
		_, err = migrations.TakeBack(t.Context(), dsn, set, " ")
		require.ErrorContains(t, err, "the reason is missing")
		if set == migrations.Deployment {
			execute(t, admin,
				`INSERT INTO dbcontroller.member (id, name, expires_at) VALUES (gen_random_uuid(), 'host:1', now() + interval '1 hour')`)
			_, err = migrations.TakeBack(t.Context(), dsn, set, "a mistake")
			require.ErrorContains(t, err, "processes of this database are running: host:1: stop them first")
			require.ErrorAs(t, err, new(*migrations.RefusedError))
			execute(t, admin, `UPDATE dbcontroller.member SET expires_at = now() - interval '1 hour'`)
		}
		serving, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		serving.RuntimeParams["application_name"] = "db-controller registry"
		conn, err := pgx.ConnectConfig(t.Context(), serving)
		require.NoError(t, err)
		_, err = migrations.TakeBack(t.Context(), dsn, set, "a mistake")
		require.ErrorContains(t, err, "open connections to this database: stop them first")
		require.NoError(t, conn.Close(t.Context()))
		states, err := migrations.List(t.Context(), dsn, set)
		require.NoError(t, err)
		require.True(t, states[len(states)-1].Applied, "refused, nothing is taken back")

		require.Eventually(t, func() bool {
			name, err := migrations.TakeBack(t.Context(), dsn, set, "it was too early")
			return err == nil && name == all[len(all)-1]
		}, wait.Limit, 20*time.Millisecond, "the session ends a moment after its connection")
		for range all[1:] {
			_, err := migrations.TakeBack(t.Context(), dsn, set, "all of it")
			require.NoError(t, err)
		}
		undone, err := migrations.ListUndone(t.Context(), dsn, set)
		require.NoError(t, err)
		require.Len(t, undone, len(all))
		require.Equal(t, all[len(all)-1], undone[0].Name)
		require.Equal(t, "it was too early", undone[0].Reason)
		require.NotEmpty(t, undone[0].By)
		name, err := migrations.TakeBack(t.Context(), dsn, set, "more")
		require.NoError(t, err)
		require.Empty(t, name)
	}
}
