package shadow_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/attach"
	"github.com/db-controller/db-controller/migrations"
	"github.com/db-controller/db-controller/schema/peer"
	registryv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/registry/v1"
	"github.com/db-controller/db-controller/schema/shadow"
	"github.com/db-controller/db-controller/test/harness"
)

const rowsRole = harness.RolePrefix + "_rows"

// A sequence keeps its value when the transaction that has moved it is rolled back.
const othersSQL = `
CREATE SCHEMA others; GRANT USAGE, CREATE ON SCHEMA others TO PUBLIC;
CREATE TABLE others.seen (what text); GRANT ALL ON others.seen TO PUBLIC;
CREATE TABLE private (id bigint); INSERT INTO private VALUES (1);
CREATE SEQUENCE others.escapes; GRANT ALL ON others.escapes TO PUBLIC;
CREATE FUNCTION others.note() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN
    IF current_user <> '` + rowsRole + `' THEN PERFORM nextval('others.escapes'); END IF;
    RETURN 1;
END $$;
`

// Triggers that others have made on an attached table, or on a table that refers to it by a native key, run
// when the controller deletes rows: as a role that reads nothing of the controller, changes no other table,
// and becomes no other role.
func TestCodeOfOthersHasNoRightsOfTheController(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	const attack = othersSQL + `
CREATE FUNCTION others.attack() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    sql text;
BEGIN
    INSERT INTO others.seen VALUES ('ran as ' || current_user);
    FOREACH sql IN ARRAY ARRAY['RESET ROLE', 'SET ROLE dbcontroller_box_controller', 'SET LOCAL ROLE postgres', 'SET SESSION AUTHORIZATION DEFAULT', 'SET SESSION AUTHORIZATION dbcontroller_box_controller'] LOOP
        BEGIN
            EXECUTE sql;
            INSERT INTO others.seen VALUES (sql || ': ' || current_user);
        EXCEPTION WHEN OTHERS THEN
        END;
        BEGIN PERFORM * FROM dbcontroller.meta; INSERT INTO others.seen VALUES ('read the keys of tokens'); EXCEPTION WHEN OTHERS THEN END;
        BEGIN INSERT INTO dbcontroller.removal DEFAULT VALUES; EXCEPTION WHEN insufficient_privilege THEN WHEN OTHERS THEN INSERT INTO others.seen VALUES ('wrote a removal'); END;
        BEGIN DELETE FROM dbcontroller.shadow; INSERT INTO others.seen VALUES ('deleted resources'); EXCEPTION WHEN OTHERS THEN END;
        BEGIN DELETE FROM public.private; INSERT INTO others.seen VALUES ('deleted rows of another table'); EXCEPTION WHEN OTHERS THEN END;
    END LOOP;
    RETURN NULL;
END $$;
`
	a.exec(a.crm,
		attack+
			`INSERT INTO customers VALUES (1), (2); CREATE TRIGGER others AFTER DELETE ON customers FOR EACH ROW EXECUTE FUNCTION others.attack()`)
	a.exec(a.shop, attack+`CREATE TABLE others.children (order_id uuid REFERENCES orders ON DELETE CASCADE);
CREATE TRIGGER others AFTER DELETE ON others.children FOR EACH ROW EXECUTE FUNCTION others.attack();
CREATE TRIGGER others BEFORE UPDATE OR DELETE ON orders FOR EACH STATEMENT EXECUTE FUNCTION others.attack()`)
	a.attach()
	a.exec(a.shop,
		`INSERT INTO orders (customer_id) VALUES (1); INSERT INTO orders (approver_id, approver_region) VALUES (1, 'eu'); INSERT INTO others.children SELECT id FROM orders`)
	a.Settle()
	// its native key runs as its owner
	a.exec(a.shop, `TRUNCATE others.seen; ALTER TABLE others.children OWNER TO `+rowsRole)
	a.MustDelete("//" + crm + "/customers/1")
	a.Settle()
	require.Equal(t, []string{"ran as " + rowsRole}, a.rows(a.crm, `SELECT DISTINCT what FROM others.seen ORDER BY 1`))
	require.Equal(t, []string{"ran as " + rowsRole}, a.rows(a.shop, `SELECT DISTINCT what FROM others.seen ORDER BY 1`))
	require.Equal(t, []string{"3"}, a.rows(a.shop, `SELECT count(*)::text FROM others.seen`),
		"the cascade to a row and its child, and the row that is unset")
	require.Equal(t, []string{"1"}, a.rows(a.shop, `SELECT count(*)::text FROM orders`))
	require.Equal(t, []string{"1"}, a.rows(a.shop, `SELECT count(*)::text FROM private`))
	require.Empty(t, harness.AuditDatabases(t, a.Pools))
}

// The functions that change rows belong to the role as which code of others runs. One that was altered runs
// no statement with the rights of its caller, and migrate up --roles makes it as it was.
func TestAnAlteredFunctionChangesNoRows(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `INSERT INTO customers VALUES (1), (2)`)
	a.attach()
	for _, alter := range []string{
		`ALTER FUNCTION dbcontroller.change_rows SECURITY INVOKER`,
		`ALTER FUNCTION dbcontroller.change_rows SECURITY INVOKER SET search_path = others`,
	} {
		a.exec(a.crm, alter)
		_, err := a.Delete("//" + crm + "/customers/1")
		require.ErrorContains(t, err, "dbcontroller.change_rows was altered, and does not run as its owner")
	}
	require.Equal(t, []string{"2"}, a.rows(a.crm, `SELECT count(*)::text FROM customers`))
	a.exec(a.crm, `GRANT EXECUTE ON FUNCTION dbcontroller.change_rows TO pg_monitor`)
	require.NoError(t, migrations.Roles(t.Context(), a.crm.Config().ConnString(), migrations.Deployment,
		harness.RolePrefix))
	a.MustDelete("//" + crm + "/customers/1")
	require.Equal(t, []string{"false"},
		a.rows(a.crm,
			`SELECT has_function_privilege('pg_monitor', 'dbcontroller.change_rows(text, text[], text[])', 'EXECUTE')::text`))
}

// An object or a setting that a trigger leaves in the session of the controller would run later with its
// rights: such a trigger keeps the row.
func TestCodeOfOthersLeavesNothingInTheSession(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, othersSQL+`
CREATE FUNCTION others.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM others.note(); RETURN pg_catalog.now(); END $$;
CREATE FUNCTION others."="(text[], text[]) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR others.= (LEFTARG = text[], RIGHTARG = text[], FUNCTION = others."=");
CREATE FUNCTION others.leave() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM others.note(); EXECUTE TG_ARGV[0]; RETURN NULL; END $$;
CREATE FUNCTION others.later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM others.note();
    SET CONSTRAINTS ALL DEFERRED;
    INSERT INTO others.queue VALUES (1);
    RETURN NULL;
END $$;
CREATE TABLE others.queue (id bigint); GRANT ALL ON others.queue TO PUBLIC;
CREATE FUNCTION others.boxed(bigint) RETURNS box LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM others.note(); RETURN pg_catalog.box(pg_catalog.point(0, 0), pg_catalog.point(1, 1)); END $$;
CREATE TABLE others.boxes (id bigint, EXCLUDE USING gist (others.boxed(id) WITH &&) DEFERRABLE INITIALLY DEFERRED); GRANT ALL ON others.boxes TO PUBLIC;
SELECT setval('others.escapes', 1, false);
INSERT INTO customers VALUES (1), (2)`)
	a.attach()
	for sql, want := range map[string]string{
		`SET search_path = others, pg_catalog`:                                           "a trigger changed the session of the controller: the setting search_path, ",
		`SET synchronous_commit = off`:                                                   "a trigger changed the session of the controller: the setting synchronous_commit, off",
		`PREPARE later AS SELECT others.note()`:                                          "a trigger changed the session of the controller: the prepared statement later",
		`SET plpgsql.extra_errors = 'all'`:                                               "a trigger changed the session of the controller: the setting plpgsql.extra_errors, ",
		`SET dbcontroller.acquire_timeout = '1h'`:                                        "a trigger changed the session of the controller: the setting dbcontroller.acquire_timeout, ",
		`ALTER FUNCTION dbcontroller.change_rows SECURITY INVOKER`:                       "a trigger changed the session of the controller: the function ",
		`GRANT EXECUTE ON FUNCTION dbcontroller.change_rows TO PUBLIC`:                   "a trigger changed the session of the controller: the function ",
		`DROP FUNCTION dbcontroller.change_rows`:                                         "a trigger changed the session of the controller: the function ",
		`CREATE FUNCTION others.door() RETURNS void LANGUAGE sql SECURITY DEFINER AS ''`: "a trigger changed the session of the controller: the function ",
		`DECLARE later CURSOR WITH HOLD FOR SELECT others.note()`:                        "a trigger changed the session of the controller: the cursor later",
		// an index expression, which the deferred constraint computes again
		`INSERT INTO others.boxes VALUES (1), (2); DELETE FROM others.boxes WHERE id = 1`: "",
		`CREATE TEMPORARY TABLE pg_roles AS SELECT 'x' AS rolname`:                        "",
		`SELECT pg_catalog.set_config('application.user', 'the controller', true)`:        "",
	} {
		a.exec(a.crm, `DROP TRIGGER IF EXISTS others ON customers; INSERT INTO customers VALUES (1) ON CONFLICT DO NOTHING;
CREATE TRIGGER others AFTER DELETE ON customers FOR EACH STATEMENT EXECUTE FUNCTION others.leave($sql$`+sql+`$sql$)`)
		_, err := a.Delete("//" + crm + "/customers/1")
		if want == "" {
			require.NoError(t, err, sql)
			a.Settle()
			continue
		}
		var kept *peer.KeptError
		require.ErrorAs(t, err, &kept, sql)
		require.Contains(t, kept.Text, want)
	}
	a.exec(a.crm, `DROP TRIGGER others ON customers; INSERT INTO customers VALUES (1) ON CONFLICT DO NOTHING;
CREATE CONSTRAINT TRIGGER others AFTER DELETE ON customers DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION others.later()`)
	a.MustDelete("//" + crm + "/customers/2")
	a.exec(a.crm,
		`CREATE CONSTRAINT TRIGGER others AFTER INSERT ON others.queue DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION others.later()`)
	_, err := a.Delete("//" + crm + "/customers/1")
	require.ErrorContains(t, err,
		"deferred triggers of attached tables, or of tables that refer to them, queue others without an end")
	require.Equal(t, []string{"false"}, a.rows(a.crm, `SELECT is_called::text FROM others.escapes`),
		"code of others ran with the rights of the controller")
	require.Equal(t, []string{"1"}, a.rows(a.crm, `SELECT id::text FROM customers`))
}

// attach grants the role as which rows are changed its rights, names the roles whose code will run, and
// detach takes the rights back.
func TestAttachGrantsTheRightsToChangeRows(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.shop,
		`CREATE TABLE children (order_id uuid REFERENCES orders); ALTER TABLE children OWNER TO dbcontroller_box_application; GRANT TRIGGER ON invoices TO PUBLIC; GRANT REFERENCES (id) ON invoices TO dbcontroller_box_audit`)
	plans, err := attach.Prepare(t.Context(), a.shop, a.Stores[a.ID(shop)].Model(), false)
	require.NoError(t, err)
	var found []string
	for _, p := range plans {
		for _, f := range p.Findings {
			found = append(found, p.Kind.Kind+" "+f.Text)
		}
	}
	const runs = ": its code runs when the controller deletes or changes rows, with the rights of the role as which it does so, and those are the rights on all attached tables"
	require.Equal(t, []string{
		"Order the table children of dbcontroller_box_application refers to it" + runs,
		"Invoice dbcontroller_box_audit may create tables that refer to it" + runs,
		"Invoice everyone may create triggers on it" + runs,
	}, found)
	require.Contains(t, plans[0].Statements,
		`GRANT SELECT, DELETE, UPDATE ("approver_id", "customer_id") ON "public"."orders" TO `+rowsRole)

	const granted = `SELECT DISTINCT a.grantee::regrole::text FROM pg_class c, aclexplode(c.relacl) AS a WHERE c.oid = 'orders'::regclass AND a.grantee <> c.relowner`
	require.Empty(t, a.rows(a.shop, granted))
	a.attachTo(shop)
	require.Equal(t, []string{rowsRole}, a.rows(a.shop, granted))
	all, err := attach.All(t.Context(), a.shop)
	require.NoError(t, err)
	for _, one := range all {
		require.Empty(t, one.Grants)
		require.NoError(t, attach.Detach(t.Context(), a.shop, one, func(err error) { t.Log(err) }))
	}
	require.Empty(t, a.rows(a.shop, granted))
}

// A service that runs in several regions has rows to refer to in each: attach asks which ones are meant.
func TestAttachAsksForTheRegionOfTargets(t *testing.T) {
	t.Parallel()
	a := &attached{Box: harness.NewBox(t, strings.Replace(attachedServices, "region: eu, behaviour: BLOCK}",
		"behaviour: BLOCK}", 1), func(cfg *shadow.Config) {
		cfg.Delegations = true
	}, crm, shop), t: t}
	a.tables()
	findings := func(regions ...string) (found []string) {
		env := &registryv1.Environment{}
		for _, region := range regions {
			env.Deployments = append(env.Deployments, &registryv1.Deployment{
				Service: "crm.example.com",
				Region:  region,
			})
		}
		raw, err := proto.Marshal(env)
		require.NoError(t, err)
		require.NoError(t, a.Stores[a.ID(shop)].Admin.KeepEnvironment(t.Context(), raw))
		plans, err := attach.Prepare(t.Context(), a.shop, a.Stores[a.ID(shop)].Model(), true)
		require.NoError(t, err)
		for _, p := range plans {
			for _, f := range p.Findings {
				require.True(t, f.Refuses)
				found = append(found, p.Kind.Kind+" "+f.Text)
			}
		}
		return found
	}
	require.Empty(t, findings("eu"))
	require.Equal(t,
		[]string{
			"Invoice customer_id: crm.example.com runs in eu, us: declare the region of the targets: region: same (that of the rows), a region, or {column: …}",
		}, findings("us", "eu"))
}
