package migrations_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/test/harness"
	"github.com/db-controller/db-controller/test/wait"
)

// forbiddenToAll are statements that every role except the owner is refused.
var forbiddenToAll = []string{
	`DROP SCHEMA dbcontroller CASCADE`,
	`DROP TABLE dbcontroller.shadow`,
	`TRUNCATE dbcontroller.reference`,
	`TRUNCATE dbcontroller.removal`,
	`ALTER TABLE dbcontroller.shadow DISABLE TRIGGER ALL`,
	`ALTER TABLE dbcontroller.shadow ADD COLUMN x int`,
	`ALTER TABLE dbcontroller.removal OWNER TO CURRENT_USER`,
	`ALTER SCHEMA dbcontroller RENAME TO x`,
	`CREATE TABLE dbcontroller.x (id int)`,
	`CREATE TABLE public.x (id int)`,
	`CREATE SCHEMA x`,
	`CREATE INDEX ON dbcontroller.shadow (revision)`,
	`CREATE TRIGGER x BEFORE UPDATE ON dbcontroller.shadow FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
	`CREATE RULE x AS ON DELETE TO dbcontroller.shadow DO INSTEAD NOTHING`,
	`CREATE POLICY x ON dbcontroller.shadow`,
	`CREATE FUNCTION dbcontroller.x() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
	`CREATE OR REPLACE FUNCTION dbcontroller.forget_removals(age interval, at_most integer) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'`,
	`DROP FUNCTION dbcontroller.forget_removals`,
	`CREATE EXTENSION dblink`,
	`CREATE ROLE x`,
	`CREATE DATABASE x`,
	`ALTER ROLE CURRENT_USER SUPERUSER`,
	`ALTER SYSTEM SET fsync = off`,
	`SET ROLE dbcontroller_test_owner`,
	`SET SESSION AUTHORIZATION dbcontroller_test_owner`,
	`SET session_replication_role = replica`,
	`UPDATE dbcontroller.epoch SET server = 'x'`,
	`GRANT dbcontroller_test_owner TO CURRENT_USER`,
	`COPY dbcontroller.shadow TO PROGRAM 'cat'`,
	`COPY dbcontroller.shadow TO '/tmp/x'`,
	`SELECT pg_read_file('postgresql.conf')`,
	`SELECT lo_export(0, '/tmp/x')`,
	`SELECT * FROM pg_authid`,
	`SELECT pg_reload_conf()`,
	`UPDATE dbcontroller.meta SET token_keys = '{x}'`,
	`UPDATE dbcontroller.meta SET service = 'x'`,
	`UPDATE dbcontroller.meta SET database_id = gen_random_uuid()`,
	`DELETE FROM dbcontroller.meta`,
	`UPDATE dbcontroller.removal SET cause_id = 0`,
	`DELETE FROM dbcontroller.removal`,
	`UPDATE dbcontroller.cause SET actor = 'nobody'`,
	`DELETE FROM dbcontroller.cause`,
	`UPDATE dbcontroller.attempt SET id = gen_random_uuid()`,
	`UPDATE dbcontroller.change SET body = '{}'`,
	`DELETE FROM dbcontroller.decommissioned`,
	`UPDATE dbcontroller.decommissioned SET said_by = 'nobody'`,
	`DELETE FROM dbcontroller.epoch`,
	`DELETE FROM dbcontroller.lease`,
	`INSERT INTO dbcontroller.lease (shard) VALUES (99)`,
	`DELETE FROM dbcontroller.kind`,
	`UPDATE dbcontroller.request SET outcome = '{}'`,
	`UPDATE dbcontroller_migrations.deployment SET is_applied = false`,
}

var forbidden = map[string][]string{
	"api": {
		`INSERT INTO dbcontroller.member (id, name, expires_at) VALUES (gen_random_uuid(), 'x', now())`,
		`DELETE FROM dbcontroller.member`,
		`UPDATE dbcontroller.lease SET member_id = NULL`,
		`UPDATE dbcontroller.meta SET awaiting = false`,
		`INSERT INTO dbcontroller.epoch (id, server) VALUES (gen_random_uuid(), 'x')`,
		`DELETE FROM dbcontroller.attempt`,
		`DELETE FROM dbcontroller.closed_attempt`,
		`DELETE FROM dbcontroller.change`,
		`DELETE FROM dbcontroller.request`,
		`SELECT setval('dbcontroller.object_id', 1)`,
		`SELECT dbcontroller.forget_removals('8 days', 1)`,
		`SELECT dbcontroller.analyze_grown(1000, '')`,
		`INSERT INTO dbcontroller.right_request (target) VALUES ('x')`,
		`UPDATE dbcontroller.right_request SET answered = true`,
	},
	"controller": {
		`SELECT dbcontroller.purge('x')`,
		`INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name) VALUES (gen_random_uuid(), 1, 1, 1, 1, 1, 'x')`,
		`INSERT INTO dbcontroller.resource (id, body) VALUES (1, '{}')`,
		`INSERT INTO dbcontroller.request (id, hash, outcome) VALUES (gen_random_uuid(), 'x', '{}')`,
		`INSERT INTO dbcontroller.decommissioned (deployment_id, blocking, reason, said_by) VALUES (1, 2, 'x', 'x')`,
	},
	"application": {
		`SELECT dbcontroller.acquire_as('{}', 'somebody else')`,
		`SELECT token_keys FROM dbcontroller.meta`,
		`UPDATE dbcontroller.meta SET version = 'x'`,
		`UPDATE dbcontroller.meta SET epoch = NULL`,
		`UPDATE dbcontroller.meta SET awaiting = false`,
		`UPDATE dbcontroller.deployment SET epoch = NULL`,
		`INSERT INTO dbcontroller.blockade (target_id) VALUES (1)`,
		`INSERT INTO dbcontroller.decommissioned (deployment_id, blocking, reason, said_by) VALUES (1, 2, 'x', 'x')`,
		`INSERT INTO dbcontroller.epoch (id, server) VALUES (gen_random_uuid(), 'x')`,
		`UPDATE dbcontroller.member SET expires_at = now()`,
		`UPDATE dbcontroller.lease SET member_id = NULL`,
		`DELETE FROM dbcontroller.attempt`,
		`DELETE FROM dbcontroller.change`,
		`SELECT setval('dbcontroller.object_id', 1)`,
		`SELECT dbcontroller.forget_removals('8 days', 1)`,
		`SELECT dbcontroller.purge('x')`,
		`SELECT dbcontroller.analyze_grown(1000, '')`,
	},
	"audit": {
		`SELECT token_keys FROM dbcontroller.meta`,
		`SELECT * FROM dbcontroller.meta`,
		`SELECT body FROM dbcontroller.resource`,
		`SELECT labels FROM dbcontroller.resource`,
		`SELECT body FROM dbcontroller.change`,
		`SELECT outcome FROM dbcontroller.request`,
		`INSERT INTO dbcontroller.removal (name, uid, kind_id, cause_id) VALUES ('x', gen_random_uuid(), 1, 1)`,
		`INSERT INTO dbcontroller.work (action, shard, deployment_id) VALUES (1, 1, 1)`,
		`UPDATE dbcontroller.shadow SET state = 2`,
		`DELETE FROM dbcontroller.blockade`,
		`DELETE FROM dbcontroller.notice`,
		`SELECT * FROM dbcontroller.shadow FOR UPDATE`,
		`LOCK TABLE dbcontroller.shadow IN ACCESS EXCLUSIVE MODE`,
		`SELECT nextval('dbcontroller.revision')`,
		`SELECT dbcontroller.forget_removals('8 days', 1)`,
		`SELECT dbcontroller.purge('x')`,
		`SELECT dbcontroller.analyze_grown(1000, '')`,
	},
}

func rolesDatabase(t *testing.T, set migrations.Set) (dsn string) {
	t.Helper()
	server := harness.Postgres(t)
	dsn = server.NewDatabase(t, "template0")
	_, err := migrations.Up(t.Context(), dsn, set)
	require.NoError(t, err)
	for range 2 { // again changes nothing
		require.NoError(t, migrations.Roles(t.Context(), dsn, set, "dbcontroller_test"))
	}
	return dsn
}

// as logs in as a user with one role and no other right.
func as(t *testing.T, dsn, role string) *pgx.Conn {
	t.Helper()
	ctx := context.Background()
	admin, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer func() { _ = admin.Close(ctx) }()
	login := pgx.Identifier{role + "_login"}.Sanitize()
	for _, sql := range []string{
		"DROP ROLE IF EXISTS " + login, "CREATE ROLE " + login + " LOGIN PASSWORD 'secret'",
		"GRANT " + role + " TO " + login,
	} {
		_, err := admin.Exec(ctx, sql)
		require.NoError(t, err)
	}
	cfg, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	cfg.User, cfg.Password = role+"_login", "secret"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(ctx) })
	return conn
}

func TestRolesMayDoNothingElse(t *testing.T) {
	dsn := rolesDatabase(t, migrations.Deployment)
	for role, more := range forbidden {
		t.Run(role, func(t *testing.T) {
			conn := as(t, dsn, "dbcontroller_test_"+role)
			statements := append(append([]string{}, forbiddenToAll...), more...)
			require.GreaterOrEqual(t, len(statements), 40)
			for _, sql := range statements {
				err := inVain(t, conn, sql)
				require.Error(t, err, sql)
				var refused *pgconn.PgError
				require.ErrorAs(t, err, &refused, sql)
				require.Equal(t, "42501", refused.Code, "%s: %s", sql, refused.Message)
			}
		})
	}
}

// inVain never commits, so that a statement that is allowed by mistake does not disturb the next ones.
func inVain(t *testing.T, conn *pgx.Conn, sql string) error {
	t.Helper()
	if sql == `CREATE DATABASE x` || sql == `ALTER SYSTEM SET fsync = off` { // not in transactions
		_, err := conn.Exec(t.Context(), sql)
		return err
	}
	errDone := errors.New("done")
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			return err
		}
		return errDone
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

func TestRegistryRolesMayDoNothingElse(t *testing.T) {
	dsn := rolesDatabase(t, migrations.Registry)
	for role, statements := range map[string][]string{
		"api": {
			`DROP TABLE dbcontroller_registry.region`, `TRUNCATE dbcontroller_registry.change`,
			`UPDATE dbcontroller_registry.meta SET token_keys = '{x}'`,
			`DELETE FROM dbcontroller_registry.decommissioned`, `UPDATE dbcontroller_registry.change SET gone = true`,
			`CREATE TABLE dbcontroller_registry.x (id int)`,
			`ALTER TABLE dbcontroller_registry.region ADD COLUMN x int`,
			`SET SESSION AUTHORIZATION dbcontroller_test_owner`,
		},
		"audit": {
			`SELECT token_keys FROM dbcontroller_registry.meta`,
			`INSERT INTO dbcontroller_registry.region (name) VALUES ('x')`,
			`UPDATE dbcontroller_registry.deployment SET disabled = true`,
			`DELETE FROM dbcontroller_registry.deployment`,
		},
	} {
		conn := as(t, dsn, "dbcontroller_test_"+role)
		for _, sql := range statements {
			var refused *pgconn.PgError
			require.ErrorAs(t, inVain(t, conn, sql), &refused, sql)
			require.Equal(t, "42501", refused.Code, "%s: %s", sql, refused.Message)
		}
	}
}

func TestAnAuditorMayReadWhatHappened(t *testing.T) {
	conn := as(t, rolesDatabase(t, migrations.Deployment), "dbcontroller_test_audit")
	for _, sql := range []string{
		`SELECT * FROM dbcontroller.removal JOIN dbcontroller.cause ON cause.id = removal.cause_id`,
		`SELECT * FROM dbcontroller.shadow JOIN dbcontroller.reference ON reference.holder_id = shadow.id`,
		`SELECT * FROM dbcontroller.blockade`, `SELECT * FROM dbcontroller.decommissioned`,
		`SELECT service, region, version, epoch FROM dbcontroller.meta`,
		`SELECT * FROM dbcontroller.member, dbcontroller.lease`,
	} {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
}

func TestRemovalsAreKeptForAWeek(t *testing.T) {
	conn := as(t, rolesDatabase(t, migrations.Deployment), "dbcontroller_test_controller")
	_, err := conn.Exec(t.Context(), `SELECT dbcontroller.forget_removals('6 days', 1)`)
	require.ErrorContains(t, err, "at least 7 days")
	// as intervals compare, a week
	_, err = conn.Exec(t.Context(), `SELECT dbcontroller.forget_removals('-1200 months 36007 days', 1)`)
	require.ErrorContains(t, err, "at least 7 days")
	_, err = conn.Exec(t.Context(), `SELECT dbcontroller.forget_removals('8 days', 1)`)
	require.NoError(t, err)
}

func TestRolesRefuseAPrefixThatIsNone(t *testing.T) {
	for _, prefix := range []string{"", "A", "x; DROP TABLE y", "1", `x"`} {
		require.ErrorContains(t, migrations.Roles(t.Context(), "", migrations.Deployment, prefix), "role prefix")
	}
}

// The owner of the database with CREATEROLE needs not to be a superuser.
func TestRolesAreMadeByTheDatabasesOwner(t *testing.T) {
	dsn := harness.Postgres(t).NewDatabase(t, "template0")
	admin, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = admin.Close(context.Background()) }()
	cfg, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	for _, sql := range []string{
		`DROP ROLE IF EXISTS dbcontroller_test_creator`,
		`CREATE ROLE dbcontroller_test_creator LOGIN CREATEROLE PASSWORD 'secret'`,
		`ALTER DATABASE ` + pgx.Identifier{cfg.Database}.Sanitize() + ` OWNER TO dbcontroller_test_creator`,
	} {
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.User = url.UserPassword("dbcontroller_test_creator", "secret")
	_, err = migrations.Up(t.Context(), u.String(), migrations.Deployment)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, migrations.Roles(t.Context(), u.String(), migrations.Deployment, "dbcontroller_created"))
	}
}

// Further grants, to a role or to PUBLIC, are revoked when Roles runs again.
func TestRolesRevokeFurtherGrants(t *testing.T) {
	dsn := rolesDatabase(t, migrations.Deployment)
	admin, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { _ = admin.Close(context.Background()) }()
	for _, sql := range []string{
		`GRANT CREATE ON SCHEMA dbcontroller TO dbcontroller_test_api`, `GRANT SELECT ON dbcontroller.meta TO PUBLIC`,
		`GRANT EXECUTE ON FUNCTION dbcontroller.forget_removals TO PUBLIC`,
		`GRANT ALL ON dbcontroller_migrations.deployment TO dbcontroller_test_api`,
		`GRANT dbcontroller_test_owner TO dbcontroller_test_api`,
	} {
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	require.NoError(t, migrations.Roles(t.Context(), dsn, migrations.Deployment, "dbcontroller_test"))
	for role, all := range map[string][]string{
		"api": {
			`CREATE TABLE dbcontroller.x (id int)`,
			`UPDATE dbcontroller_migrations.deployment SET is_applied = false`, `SET ROLE dbcontroller_test_owner`,
		},
		"audit": {`SELECT token_keys FROM dbcontroller.meta`, `SELECT dbcontroller.forget_removals('8 days', 1)`},
	} {
		conn := as(t, dsn, "dbcontroller_test_"+role)
		for _, sql := range all {
			var refused *pgconn.PgError
			require.ErrorAs(t, inVain(t, conn, sql), &refused, sql)
		}
	}
}

// Databases of one server can be prepared at the same time, with the same roles.
func TestRolesOfTwoDatabasesAtATime(t *testing.T) {
	server := harness.Postgres(t)
	var all errgroup.Group
	for range 4 {
		dsn := server.NewDatabase(t, "template0")
		_, err := migrations.Up(t.Context(), dsn, migrations.Deployment)
		require.NoError(t, err)
		all.Go(func() error { return migrations.Roles(t.Context(), dsn, migrations.Deployment, "dbcontroller_shared") })
	}
	require.NoError(t, all.Wait())
}

// Roles that are made again, as after each migration, wait for no transaction of a process that serves, and
// hand over new tables.
func TestRolesWaitForNoTransaction(t *testing.T) {
	for _, set := range []migrations.Set{migrations.Deployment, migrations.Registry} {
		dsn := rolesDatabase(t, set)
		admin, serving := connected(t, dsn), connected(t, dsn)
		first := map[migrations.Set]string{
			migrations.Deployment: "dbcontroller.shadow",
			migrations.Registry:   "dbcontroller_registry.meta",
		}[set]
		schema, _, _ := strings.Cut(first, ".")
		execute(t, admin, `CREATE TABLE `+schema+`.late (id bigint)`)
		execute(t, serving, `BEGIN`)
		execute(t, serving, `LOCK TABLE `+first+` IN ROW EXCLUSIVE MODE`)
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		defer cancel()
		require.NoError(t, migrations.Roles(ctx, dsn, set, "dbcontroller_test"), "it waits for no transaction")
		execute(t, serving, `COMMIT`)
		var owner string
		require.NoError(t,
			admin.QueryRow(t.Context(), `SELECT relowner::regrole FROM pg_class WHERE oid = $1::text::regclass`,
				schema+".late").Scan(&owner))
		require.Equal(t, "dbcontroller_test_owner", owner)
	}
}

// The process asks for rights for its callers, under their names.
func TestTheRoleOfTheProcessAsksForOthers(t *testing.T) {
	dsn := rolesDatabase(t, migrations.Deployment)
	conn := as(t, dsn, "dbcontroller_test_api")
	_, err := conn.Exec(t.Context(), `SELECT dbcontroller.acquire_as('{ACT //a.example.com/eu/x/1}', 'user/ann')`)
	require.NoError(t, err)
	var by string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT asked_by FROM dbcontroller.right_request`).Scan(&by))
	require.Equal(t, "user/ann", by)
}
