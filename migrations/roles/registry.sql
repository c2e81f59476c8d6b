-- Roles of the registry's database: as those of a deployment's, see there.
DO $$
DECLARE
    prefix  text := current_setting('dbcontroller.role_prefix');
    owner   text := prefix || '_owner';
    versions text := 'dbcontroller_migrations.registry'; -- the table of applied migrations
    one     text;
    object  record;
    granted record;
BEGIN
    FOREACH one IN ARRAY ARRAY['owner', 'api', 'audit'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = prefix || '_' || one) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', prefix || '_' || one);
        END IF;
    END LOOP;
    IF NOT pg_has_role(current_user, owner, CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END) THEN
        EXECUTE format('GRANT %I TO CURRENT_USER', owner);
    END IF;

    EXECUTE format('ALTER SCHEMA dbcontroller_registry OWNER TO %I', owner);
    EXECUTE format('GRANT ALL ON %s TO %I', versions, owner);
    EXECUTE format('GRANT USAGE ON SCHEMA dbcontroller_migrations TO %I', owner);
    -- A change of the owner waits for all transactions with the table, and keeps others from it until the end: only those that lack it.
    FOR object IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relnamespace = 'dbcontroller_registry'::regnamespace AND c.relkind = 'r'
            AND c.relowner <> quote_ident(owner)::regrole LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO %I', object.name, owner);
    END LOOP;

    FOREACH one IN ARRAY ARRAY['PUBLIC', quote_ident(prefix || '_api'), quote_ident(prefix || '_audit')] LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA dbcontroller_registry FROM %s', one);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA dbcontroller_registry FROM %s', one);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA dbcontroller_registry FROM %s', one);
        EXECUTE format('REVOKE ALL ON %s FROM %s', versions, one);
        CONTINUE WHEN one = 'PUBLIC';
        EXECUTE format('REVOKE %I FROM %s', owner, one);
        EXECUTE format('GRANT USAGE ON SCHEMA dbcontroller_registry TO %s', one);
        EXECUTE format('GRANT SELECT ON %s TO %s', versions, one);
        EXECUTE format('GRANT USAGE ON SCHEMA dbcontroller_migrations TO %s', one);
    END LOOP;

    FOR granted IN SELECT * FROM (VALUES
        ('api', 'SELECT', 'meta'),
        ('api', 'UPDATE (revision, compacted, epoch, server, timeline, history, files)', 'meta'),
        ('api', 'SELECT, INSERT, UPDATE', 'history'),
        ('api', 'SELECT, INSERT, UPDATE, DELETE', 'region, dbcontroller_registry.service_version, dbcontroller_registry.deployment'),
        ('api', 'SELECT, INSERT, UPDATE', 'rights'),
        ('api', 'SELECT, INSERT', 'decommissioned'),
        ('api', 'SELECT, INSERT, UPDATE', 'removed'),
        ('api', 'SELECT, INSERT, DELETE', 'change'),
        ('api', 'SELECT, INSERT', 'revision'), -- what is on record stays
        ('audit', 'SELECT', 'region, dbcontroller_registry.service_version, dbcontroller_registry.deployment, dbcontroller_registry.decommissioned, dbcontroller_registry.removed, dbcontroller_registry.change, dbcontroller_registry.rights, dbcontroller_registry.history, dbcontroller_registry.revision'),
        ('audit', 'SELECT (singleton, revision, database_id, compacted, epoch, server, timeline, history)', 'meta')
    ) AS g (role, rights, tables) LOOP
        EXECUTE format('GRANT %s ON dbcontroller_registry.%s TO %I', granted.rights, granted.tables, prefix || '_' || granted.role);
    END LOOP;
    EXECUTE format('GRANT USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA dbcontroller_registry TO %I', prefix || '_api');
END $$;
