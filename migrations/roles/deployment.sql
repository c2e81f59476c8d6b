-- Roles of one deployment's database, with the least rights that their work needs; none of them logs in. What each one
-- may do is the table in the middle. Run again after every migration: what is new is handed over and granted, what was
-- granted besides is taken back.
DO $$
DECLARE
    prefix  text := current_setting('dbcontroller.role_prefix');
    owner   text := prefix || '_owner';
    versions text := 'dbcontroller_migrations.deployment'; -- the table of applied migrations
    one     text;
    object  record;
    granted record;
BEGIN
    FOREACH one IN ARRAY ARRAY['owner', 'rows', 'api', 'controller', 'application', 'audit'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = prefix || '_' || one) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', prefix || '_' || one);
        END IF;
    END LOOP;
    -- Who is no superuser hands over only to a role that it is a member of.
    IF NOT pg_has_role(current_user, owner, CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END) THEN
        EXECUTE format('GRANT %I TO CURRENT_USER', owner);
    END IF;

    EXECUTE format('ALTER SCHEMA dbcontroller OWNER TO %I', owner);
    EXECUTE format('GRANT ALL ON %s TO %I', versions, owner); -- its schema is not ours to give
    EXECUTE format('GRANT USAGE ON SCHEMA dbcontroller_migrations TO %I', owner);
    -- A change of the owner waits for all transactions with the table, and keeps others from it until the end: only those that lack it.
    FOR object IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relnamespace = 'dbcontroller'::regnamespace AND c.relkind = 'r'
            AND c.relowner <> quote_ident(owner)::regrole LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO %I', object.name, owner);
    END LOOP;
    -- Sequences of identity columns follow their tables.
    FOR object IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relnamespace = 'dbcontroller'::regnamespace AND c.relkind = 'S'
            AND c.relowner <> quote_ident(owner)::regrole AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')) LOOP
        EXECUTE format('ALTER SEQUENCE %s OWNER TO %I', object.name, owner);
    END LOOP;
    -- The views of attached tables have no rights of their own: a role that reads or changes rows by them needs the rights on the table.
    FOR object IN SELECT c.oid::regclass AS name, c.relowner FROM pg_class c WHERE c.relnamespace = 'dbcontroller'::regnamespace AND c.relkind = 'v' LOOP
        IF object.relowner <> quote_ident(owner)::regrole THEN
            EXECUTE format('ALTER VIEW %s OWNER TO %I', object.name, owner);
        END IF;
    END LOOP;
    -- Statements on rows of attached tables run as a role that has rights on these tables alone: attach grants them. Those who serve are members of it.
    IF NOT pg_has_role(current_user, prefix || '_rows', CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END) THEN
        EXECUTE format('GRANT %I TO CURRENT_USER', prefix || '_rows');
    END IF;
    EXECUTE format('GRANT USAGE, CREATE ON SCHEMA dbcontroller TO %I', prefix || '_rows');
    FOR object IN SELECT p.oid::regprocedure AS name, x.role FROM pg_proc p, LATERAL (
                SELECT CASE WHEN p.proname IN ('change_rows', 'fire_deferred') THEN prefix || '_rows' ELSE owner END AS role) AS x
            WHERE p.pronamespace = 'dbcontroller'::regnamespace AND p.proowner <> quote_ident(x.role)::regrole LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', object.name, object.role);
    END LOOP;
    -- A trigger of an attached table runs as their owner, which could have altered them, or granted them to others.
    EXECUTE 'ALTER FUNCTION dbcontroller.change_rows SECURITY DEFINER RESET ALL SET row_security = off';
    EXECUTE 'ALTER FUNCTION dbcontroller.fire_deferred SECURITY DEFINER RESET ALL';
    FOR object IN SELECT p.oid::regprocedure AS name, a.grantee::regrole AS grantee FROM pg_proc p, aclexplode(p.proacl) a
            WHERE p.pronamespace = 'dbcontroller'::regnamespace AND p.proname IN ('change_rows', 'fire_deferred') AND a.grantee NOT IN (0, p.proowner) LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %s', object.name, object.grantee);
    END LOOP;

    -- What was granted besides, by whomever, is taken back first.
    FOREACH one IN ARRAY ARRAY['PUBLIC', quote_ident(prefix || '_rows'), quote_ident(prefix || '_api'), quote_ident(prefix || '_controller'), quote_ident(prefix || '_application'), quote_ident(prefix || '_audit')] LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA dbcontroller FROM %s', one);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA dbcontroller FROM %s', one);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA dbcontroller FROM %s', one);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dbcontroller FROM %s', one);
        EXECUTE format('REVOKE ALL ON %s FROM %s', versions, one);
        CONTINUE WHEN one = 'PUBLIC';
        EXECUTE format('REVOKE %I FROM %s', owner, one);
        EXECUTE format('GRANT USAGE ON SCHEMA dbcontroller TO %s', one);
        CONTINUE WHEN one = quote_ident(prefix || '_rows');
        EXECUTE format('GRANT SELECT ON %s TO %s', versions, one);
        EXECUTE format('GRANT USAGE ON SCHEMA dbcontroller_migrations TO %s', one);
    END LOOP;

    FOR granted IN SELECT * FROM (VALUES
        -- Serves requests of users and of other deployments.
        ('api', 'SELECT', 'meta, dbcontroller.position'),
        ('api', 'SELECT, INSERT, UPDATE', 'deployment, dbcontroller.deletion_progress'),
        ('api', 'SELECT, INSERT', 'kind, dbcontroller.field, dbcontroller.decommissioned, dbcontroller.word'),
        ('api', 'SELECT, INSERT, UPDATE, DELETE', 'shadow, dbcontroller.resource, dbcontroller.foreign_target, dbcontroller.reference, dbcontroller.owner_reference, dbcontroller.blockade'),
        ('api', 'SELECT, INSERT, UPDATE, DELETE', 'deletion_walk'),
        ('api', 'SELECT, INSERT, UPDATE, DELETE', 'freeze, dbcontroller.frozen'),
        ('api', 'SELECT, INSERT, DELETE', 'closing, dbcontroller.holder_entry, dbcontroller.ownee_entry, dbcontroller.owner_lost, dbcontroller.notice, dbcontroller.work'),
        ('api', 'UPDATE (look)', 'holder_entry'),
        ('api', 'SELECT, INSERT', 'attempt'),
        ('api', 'UPDATE (committed, decided_at, mark)', 'attempt'), -- of scheduled deletions
        ('api', 'SELECT, INSERT', 'closed_attempt, dbcontroller.request, dbcontroller.change, dbcontroller.removal, dbcontroller.cause'),
        ('api', 'SELECT', 'epoch, dbcontroller.member, dbcontroller.lease, dbcontroller.derivation, dbcontroller.attachment, dbcontroller.deleted_row, dbcontroller.lacking, dbcontroller.right_request'),
        ('api', 'SELECT, INSERT, UPDATE, DELETE', 'ending'),
        ('api', 'UPDATE (token)', 'position'),
        ('api', 'UPDATE (due)', 'deleted_row'),
        ('api', 'UPDATE (due)', 'lacking'),
        -- Acts upon deletions, keeps its place among the processes, follows versions and epochs, tidies up.
        ('controller', 'SELECT, INSERT', 'meta'),
        ('controller', 'UPDATE (singleton, version, generation, digest, compacted, environment, epoch, server, timeline, awaiting, forgotten, started_at, started_mark, positions_until)', 'meta'),
        ('controller', 'SELECT, INSERT, UPDATE', 'deployment'),
        ('controller', 'SELECT, INSERT', 'kind, dbcontroller.field'),
        ('controller', 'UPDATE (finalizers, until_removed)', 'kind'),
        ('controller', 'UPDATE (xid)', 'notice'),
        ('controller', 'SELECT, UPDATE, DELETE', 'shadow, dbcontroller.resource'),
        ('controller', 'SELECT, INSERT, UPDATE, DELETE', 'foreign_target, dbcontroller.reference, dbcontroller.owner_reference, dbcontroller.blockade, dbcontroller.work, dbcontroller.derivation'),
        ('controller', 'SELECT, INSERT, DELETE', 'attempt'),
        ('controller', 'UPDATE (committed, decided_at, mark)', 'attempt'), -- of scheduled deletions
        ('controller', 'SELECT, INSERT, DELETE', 'closed_attempt, dbcontroller.change, dbcontroller.notice, dbcontroller.holder_entry, dbcontroller.ownee_entry, dbcontroller.owner_lost'),
        ('controller', 'UPDATE (look)', 'holder_entry'),
        ('controller', 'SELECT, INSERT', 'removal, dbcontroller.cause, dbcontroller.epoch'),
        ('controller', 'UPDATE (id)', 'epoch'),
        ('controller', 'SELECT, DELETE', 'request, dbcontroller.closing'),
        ('controller', 'SELECT, INSERT, UPDATE, DELETE', 'freeze, dbcontroller.frozen'),
        ('controller', 'SELECT', 'decommissioned, dbcontroller.word'),
        ('controller', 'SELECT, INSERT, UPDATE, DELETE', 'member, dbcontroller.ending'),
        ('controller', 'SELECT, UPDATE', 'lease'),
        ('controller', 'SELECT, UPDATE, DELETE', 'attachment'),
        ('controller', 'SELECT, INSERT, UPDATE, DELETE', 'deleted_row, dbcontroller.lacking, dbcontroller.deletion_progress, dbcontroller.deletion_walk'),
        ('controller', 'SELECT, INSERT, UPDATE', 'position'),
        ('controller', 'SELECT, UPDATE, DELETE', 'right_request'),
        -- Writes and deletes resources in its own transactions. It follows versions and epochs, and establishes nothing for others.
        ('application', 'SELECT (service, region, database_id, version, generation, digest, compacted, environment, epoch, server, timeline, awaiting, forgotten, started_at, started_mark, positions_until)', 'meta'),
        ('application', 'SELECT, INSERT', 'deployment, dbcontroller.kind, dbcontroller.field'),
        ('application', 'UPDATE (pointed_to)', 'deployment'),
        ('application', 'SELECT, INSERT, UPDATE, DELETE', 'shadow, dbcontroller.resource, dbcontroller.foreign_target, dbcontroller.reference, dbcontroller.owner_reference'),
        ('application', 'SELECT, UPDATE, DELETE', 'blockade'),
        ('application', 'SELECT', 'freeze'),
        ('application', 'SELECT, DELETE', 'frozen'),
        ('application', 'SELECT, INSERT, DELETE', 'closing, dbcontroller.holder_entry, dbcontroller.ownee_entry, dbcontroller.owner_lost, dbcontroller.notice, dbcontroller.work'),
        ('application', 'SELECT, INSERT', 'attempt, dbcontroller.closed_attempt, dbcontroller.change, dbcontroller.removal, dbcontroller.cause'),
        ('application', 'SELECT', 'epoch, dbcontroller.decommissioned, dbcontroller.derivation, dbcontroller.ending, dbcontroller.attachment, dbcontroller.deleted_row, dbcontroller.lacking, dbcontroller.mark'),
        -- Looks after it, without what users store and without what tokens are made with.
        ('audit', 'SELECT', 'deployment, dbcontroller.kind, dbcontroller.field, dbcontroller.shadow, dbcontroller.foreign_target, dbcontroller.reference, dbcontroller.owner_reference'),
        ('audit', 'SELECT', 'blockade, dbcontroller.holder_entry, dbcontroller.ownee_entry, dbcontroller.owner_lost, dbcontroller.notice, dbcontroller.work, dbcontroller.attempt, dbcontroller.closed_attempt, dbcontroller.closing, dbcontroller.freeze, dbcontroller.frozen'),
        ('audit', 'SELECT', 'removal, dbcontroller.cause, dbcontroller.decommissioned, dbcontroller.word, dbcontroller.epoch, dbcontroller.member, dbcontroller.lease, dbcontroller.derivation, dbcontroller.ending, dbcontroller.attachment, dbcontroller.deleted_row, dbcontroller.lacking, dbcontroller.right_request, dbcontroller.deletion_progress, dbcontroller.deletion_walk'),
        ('audit', 'SELECT (service, region, database_id, version, generation, digest, compacted, epoch, server, timeline, awaiting, forgotten, started_at, started_mark, positions_until)', 'meta')
    ) AS g (role, rights, tables) LOOP
        EXECUTE format('GRANT %s ON dbcontroller.%s TO %I', granted.rights, granted.tables, prefix || '_' || granted.role);
    END LOOP;
    EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA dbcontroller TO %I, %I, %I', prefix || '_api', prefix || '_controller', prefix || '_application');
    -- A new epoch passes over numbers that were given out and lost.
    EXECUTE format('GRANT SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA dbcontroller TO %I', prefix || '_controller');
    EXECUTE format('GRANT %I TO %I, %I', prefix || '_rows', prefix || '_api', prefix || '_controller');
    EXECUTE format('GRANT EXECUTE ON FUNCTION dbcontroller.session_state, dbcontroller.refuse_changed_session, dbcontroller.may_defer, dbcontroller.number_of_command, dbcontroller.forget_commands, dbcontroller.is_gone,
        dbcontroller.is_missing TO %I', prefix || '_rows');
    EXECUTE format('GRANT EXECUTE ON FUNCTION dbcontroller.change_rows, dbcontroller.fire_deferred, dbcontroller.purge TO %I', prefix || '_api');
    EXECUTE format('GRANT EXECUTE ON FUNCTION dbcontroller.change_rows TO %I', prefix || '_controller');
    EXECUTE format('GRANT EXECUTE ON FUNCTION dbcontroller.fire_deferred TO %I', prefix || '_controller');
    EXECUTE format('GRANT EXECUTE ON FUNCTION dbcontroller.forget_removals TO %I', prefix || '_controller');
    EXECUTE format('GRANT EXECUTE ON FUNCTION dbcontroller.analyze_grown TO %I', prefix || '_controller');
    EXECUTE format('GRANT EXECUTE ON FUNCTION dbcontroller.acquire, dbcontroller.acquired TO %I', prefix || '_application');
    EXECUTE format('GRANT EXECUTE ON FUNCTION dbcontroller.acquire_as TO %I', prefix || '_api');
    EXECUTE format('GRANT EXECUTE ON FUNCTION dbcontroller.table_drift, dbcontroller.attached_columns, dbcontroller.default_of TO %I, %I, %I', prefix || '_api', prefix || '_controller', prefix || '_audit');
    EXECUTE format('GRANT EXECUTE ON FUNCTION dbcontroller.attached_relation TO %I, %I, %I, %I', prefix || '_api', prefix || '_controller', prefix || '_application', prefix || '_audit');
    -- The views of attached tables, as attach grants them.
    FOR object IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relnamespace = 'dbcontroller'::regnamespace AND c.relkind = 'v' AND c.relname ~ '^attached_[0-9]+$' LOOP
        EXECUTE format('GRANT SELECT, UPDATE, DELETE ON %s TO %I, %I, %I, %I, %I', object.name,
            prefix || '_rows', prefix || '_api', prefix || '_controller', prefix || '_application', prefix || '_audit');
    END LOOP;
END $$;
