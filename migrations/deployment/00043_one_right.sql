-- +goose Up
-- compatible with programs that know migration 20
-- A statement about one row of a strict table paid for a lock, a check, a pin and a note, in a statement each. Where the row names one target it
-- takes the right with the note now, which is the pin as well. Programs and functions without this migration find such pins in the view.
ALTER TABLE dbcontroller.pin RENAME TO statement_pin;
ALTER TABLE dbcontroller.captured
    ADD COLUMN target_id bigint, -- of foreign_target: the row was written under the right to it; null: under none, or those of statement_pin
    ADD COLUMN blocks boolean;   -- the right to block; else the one to act
CREATE INDEX captured_target ON dbcontroller.captured (target_id) WHERE target_id IS NOT NULL;
CREATE VIEW dbcontroller.pin AS
    SELECT p.statement, p.target_id, p.blocks FROM dbcontroller.statement_pin p
    UNION ALL
    SELECT c.statement, c.target_id, c.blocks FROM dbcontroller.captured c WHERE c.target_id IS NOT NULL AND c.statement IS NOT NULL;
-- +goose StatementBegin
-- Programs without this migration tidy pins away here. The pin of a note goes with the note.
CREATE FUNCTION dbcontroller.remove_pin() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM dbcontroller.statement_pin p WHERE p.statement = OLD.statement AND p.target_id = OLD.target_id AND p.blocks = OLD.blocks;
    RETURN OLD;
END $$;
CREATE TRIGGER pin_remove INSTEAD OF DELETE ON dbcontroller.pin FOR EACH ROW EXECUTE FUNCTION dbcontroller.remove_pin();

-- Who had rights on the table has them on the view.
DO $$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT a.privilege_type AS privilege, a.grantee::regrole AS role FROM pg_class c, aclexplode(c.relacl) AS a
            WHERE c.oid = 'dbcontroller.statement_pin'::regclass AND a.grantee NOT IN (0, c.relowner) LOOP
        EXECUTE format('GRANT %s ON dbcontroller.pin TO %s', g.privilege, g.role);
    END LOOP;
    EXECUTE format('ALTER VIEW dbcontroller.pin OWNER TO %s', (SELECT relowner::regrole FROM pg_class WHERE oid = 'dbcontroller.statement_pin'::regclass));
END $$;

-- The timeline and the database of a session; a copy of the database has another one. IMMUTABLE, because neither changes while a session can write,
-- and PostgreSQL keeps plans for one session: each of them has the value as a constant.
CREATE FUNCTION dbcontroller.here() RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8) || '.' || d.oid FROM pg_database d WHERE d.datname = current_database()
$$;

-- The numbers of a deployment and of a kind, which never change. attach makes them before a plan has them as constants. A null region is that
-- of this deployment.
CREATE FUNCTION dbcontroller.number_of_deployment(service text, region text) RETURNS integer LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT d.id FROM dbcontroller.deployment d WHERE d.service = $1 AND d.region = COALESCE($2, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton))
$$;
CREATE FUNCTION dbcontroller.number_of_kind(service text, kind text) RETURNS integer LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT k.id FROM dbcontroller.kind k WHERE k.service = $1 AND k.kind = $2
$$;

-- The way of most statements: it locks the rights to names of one kind and region, and reports whether all of them are there; null: there are no
-- names. If not, the statement asks take_rights, which decides. A statement about one row names one target: one statement takes its right. PostgreSQL looks
-- at the conditions on the row again under its lock, so a right that ended before the lock is not taken. One of an epoch that was lost in
-- the meantime may be: whoever compares references after a failover ends such rights under the same lock, and then waits for the pins.
CREATE OR REPLACE FUNCTION dbcontroller.take(number bigint, service text, kind text, region text, names text[], block boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    taken bigint;
BEGIN
    IF names IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(names) > 1 THEN
        RETURN dbcontroller.take_known(number, service, kind, region, ARRAY(SELECT DISTINCT n FROM unnest(names) AS n), block);
    END IF;
    -- Whoever ends a right commits its row in ending, and then waits for the lock.
    IF block THEN
        INSERT INTO dbcontroller.statement_pin (statement, target_id, blocks)
        SELECT number, f.id, block FROM dbcontroller.foreign_target f
        WHERE f.block_epoch IS NOT NULL AND f.name = names[1]
            AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take.service AND k.kind = take.kind)
            AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take.service
                AND d.region = COALESCE(take.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
            AND f.block_epoch = COALESCE((SELECT d.epoch FROM dbcontroller.deployment d WHERE d.id = f.deployment_id), f.block_epoch)
            AND f.block_own = (SELECT m.epoch FROM dbcontroller.meta m WHERE m.singleton AND m.timeline || '.' || split_part(m.server, '.', 2) = dbcontroller.here())
            AND (SELECT x.deployment_id FROM dbcontroller.decommissioned x WHERE x.deployment_id = f.deployment_id) IS NULL
            AND (SELECT e.target_id FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min') IS NULL
        FOR SHARE OF f
        ON CONFLICT DO NOTHING; -- pinned for another reference: take_rights decides
    ELSE
        INSERT INTO dbcontroller.statement_pin (statement, target_id, blocks)
        SELECT number, f.id, block FROM dbcontroller.foreign_target f
        WHERE f.acting_epoch IS NOT NULL AND f.name = names[1]
            AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take.service AND k.kind = take.kind)
            AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take.service
                AND d.region = COALESCE(take.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
            AND f.acting_epoch = COALESCE((SELECT d.epoch FROM dbcontroller.deployment d WHERE d.id = f.deployment_id), f.acting_epoch)
            AND f.acting_own = (SELECT m.epoch FROM dbcontroller.meta m WHERE m.singleton AND m.timeline || '.' || split_part(m.server, '.', 2) = dbcontroller.here())
            AND (SELECT x.deployment_id FROM dbcontroller.decommissioned x WHERE x.deployment_id = f.deployment_id) IS NULL
            AND (SELECT e.target_id FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min') IS NULL
        FOR SHARE OF f
        ON CONFLICT DO NOTHING; -- pinned for another reference: take_rights decides
    END IF;
    GET DIAGNOSTICS taken = ROW_COUNT;
    RETURN taken = 1;
END $$;

CREATE OR REPLACE FUNCTION dbcontroller.take_known(number bigint, service text, kind text, region text, names text[], block boolean) RETURNS boolean LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    locked bigint[];
    named  bigint;  -- the number of different names
    home   integer; -- the deployment of the targets
    taken  bigint;
BEGIN
    -- Whoever ends a right commits its row in ending, and then waits for these locks.
    IF block THEN
        SELECT array_agg(l.id), count(DISTINCT l.name), min(l.deployment_id) INTO locked, named, home FROM (
            SELECT f.id, f.name, f.deployment_id FROM dbcontroller.foreign_target f WHERE f.block_epoch IS NOT NULL AND f.name = ANY (names)
                AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take_known.service AND k.kind = take_known.kind)
                AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take_known.service
                    AND d.region = COALESCE(take_known.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
                AND NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
            ORDER BY f.id FOR SHARE OF f
        ) AS l;
    ELSE
        SELECT array_agg(l.id), count(DISTINCT l.name), min(l.deployment_id) INTO locked, named, home FROM (
            SELECT f.id, f.name, f.deployment_id FROM dbcontroller.foreign_target f WHERE f.acting_epoch IS NOT NULL AND f.name = ANY (names)
                AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take_known.service AND k.kind = take_known.kind)
                AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take_known.service
                    AND d.region = COALESCE(take_known.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
                AND NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
            ORDER BY f.id FOR SHARE OF f
        ) AS l;
    END IF;
    IF locked IS NULL OR cardinality(locked) <> cardinality(names) OR named <> cardinality(names) THEN
        RETURN false;
    END IF;
    -- After the locks, in a statement of its own: a right that ended before the lock is not seen. One that was about to end is not locked.
    INSERT INTO dbcontroller.statement_pin (statement, target_id, blocks)
    SELECT number, f.id, block FROM dbcontroller.foreign_target f
    WHERE f.id = ANY (locked) AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = home)
        AND CASE WHEN block THEN f.block_epoch ELSE f.acting_epoch END
            = COALESCE((SELECT d.epoch FROM dbcontroller.deployment d WHERE d.id = home), CASE WHEN block THEN f.block_epoch ELSE f.acting_epoch END)
        AND CASE WHEN block THEN f.block_own ELSE f.acting_own END = (
            SELECT m.epoch FROM dbcontroller.meta m WHERE m.singleton AND m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
                AND split_part(m.server, '.', 2) = (SELECT o.oid FROM pg_database o WHERE o.datname = current_database())::text)
    ON CONFLICT DO NOTHING; -- pinned for another reference: take_rights decides
    GET DIAGNOSTICS taken = ROW_COUNT;
    RETURN taken = cardinality(names);
END $$;

CREATE OR REPLACE FUNCTION dbcontroller.take_rights(relation regclass, services text[], kinds text[], regions text[], names text[], blocks boolean[])
    RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    number  bigint;
    locked  bigint[];
    places  bigint[];
    counted bigint[];
    lacking text[];
BEGIN
    IF names IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(i.service), array_agg(i.kind), array_agg(i.region), array_agg(i.name), array_agg(i.block) INTO services, kinds, regions, names, blocks FROM (
        SELECT DISTINCT i.service, i.kind, COALESCE(i.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)) AS region, i.name, i.block
        FROM unnest(services, kinds, regions, names, blocks) AS i (service, kind, region, name, block)
    ) AS i;
    -- Whoever ends a right commits its row in ending, and then waits for these locks.
    SELECT array_agg(l.id), array_agg(l.place) INTO locked, places FROM (
        SELECT f.id, i.place FROM unnest(services, kinds, regions, names, blocks) WITH ORDINALITY AS i (service, kind, region, name, block, place)
        JOIN dbcontroller.deployment d ON d.service = i.service AND d.region = i.region
        JOIN dbcontroller.kind k ON k.service = i.service AND k.kind = i.kind
        CROSS JOIN LATERAL (
            SELECT a.id FROM dbcontroller.foreign_target a
            WHERE NOT i.block AND a.acting_epoch IS NOT NULL AND a.deployment_id = d.id AND a.name = i.name AND a.kind_id = k.id
            UNION ALL
            SELECT b.id FROM dbcontroller.foreign_target b
            WHERE i.block AND b.block_epoch IS NOT NULL AND b.deployment_id = d.id AND b.name = i.name AND b.kind_id = k.id
            OFFSET 0
        ) AS t
        JOIN dbcontroller.foreign_target f ON f.id = t.id
        WHERE NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
        ORDER BY f.id FOR SHARE OF f
    ) AS l;
    number := nextval('dbcontroller.statement');
    -- After the locks, in a statement of its own: a right that ended before the lock is not seen. One that was about to end is not locked.
    WITH held AS MATERIALIZED (
        SELECT f.id, l.place, blocks[l.place] AS block FROM unnest(locked, places) AS l (id, place)
        JOIN dbcontroller.foreign_target f ON f.id = l.id
        JOIN dbcontroller.deployment d ON d.id = f.deployment_id
        JOIN dbcontroller.meta m ON m.singleton AND m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
            AND split_part(m.server, '.', 2) = (SELECT o.oid FROM pg_database o WHERE o.datname = current_database())::text
        WHERE NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id) AND CASE WHEN blocks[l.place]
            THEN f.block_epoch = COALESCE(d.epoch, f.block_epoch) AND f.block_own = m.epoch
            ELSE f.acting_epoch = COALESCE(d.epoch, f.acting_epoch) AND f.acting_own = m.epoch END
    ), pinned AS (
        INSERT INTO dbcontroller.statement_pin (statement, target_id, blocks) SELECT number, held.id, held.block FROM held
    )
    SELECT array_agg(one.place) INTO counted FROM (SELECT held.place FROM held GROUP BY held.place HAVING count(*) = 1) AS one;
    IF cardinality(counted) = cardinality(names) THEN
        RETURN number;
    END IF;
    SELECT array_agg(CASE WHEN i.block THEN 'BLOCK' ELSE 'ACT' END || ' //' || i.service || '/' || i.region || '/' || i.name ORDER BY i.service, i.region, i.name, i.block) INTO lacking
    FROM unnest(services, kinds, regions, names, blocks) WITH ORDINALITY AS i (service, kind, region, name, block, place)
    WHERE i.place NOT IN (SELECT c FROM unnest(counted) AS c);
    RAISE EXCEPTION 'table "%" refers to resources without the right to do so: % lacking', relation,
            CASE WHEN cardinality(lacking) = 1 THEN '1 right is' ELSE cardinality(lacking) || ' rights are' END
        USING ERRCODE = 'RD001', DETAIL = array_to_string(lacking[1:1000], E'\n'), TABLE = relation::text,
            HINT = CASE WHEN cardinality(lacking) > 1000
                THEN 'Roll back, and write rows with at most 100 new targets in one transaction: rights that wait to be used are returned after 15 seconds.'
                ELSE 'Roll back, call dbcontroller.acquire and dbcontroller.acquired with the lines of DETAIL, and repeat the transaction.' END;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION dbcontroller.remove_pin, dbcontroller.here, dbcontroller.number_of_deployment, dbcontroller.number_of_kind FROM PUBLIC;

-- +goose Down
DROP VIEW dbcontroller.pin;
DROP FUNCTION dbcontroller.remove_pin;
INSERT INTO dbcontroller.statement_pin (statement, target_id, blocks)
SELECT c.statement, c.target_id, c.blocks FROM dbcontroller.captured c WHERE c.target_id IS NOT NULL AND c.statement IS NOT NULL ON CONFLICT DO NOTHING;
ALTER TABLE dbcontroller.captured DROP COLUMN blocks, DROP COLUMN target_id;
ALTER TABLE dbcontroller.statement_pin RENAME TO pin;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.take(number bigint, service text, kind text, region text, names text[], block boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    locked bigint[];
    taken  bigint;
BEGIN
    IF names IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(names) > 1 THEN
        RETURN dbcontroller.take_known(number, service, kind, region, ARRAY(SELECT DISTINCT n FROM unnest(names) AS n), block);
    END IF;
    -- Whoever ends a right commits its row in ending, and then waits for these locks.
    IF block THEN
        locked := ARRAY(
            SELECT f.id FROM dbcontroller.foreign_target f WHERE f.block_epoch IS NOT NULL AND f.name = names[1]
                AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take.service AND k.kind = take.kind)
                AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take.service
                    AND d.region = COALESCE(take.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
                AND (SELECT e.target_id FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min') IS NULL
            FOR SHARE OF f);
    ELSE
        locked := ARRAY(
            SELECT f.id FROM dbcontroller.foreign_target f WHERE f.acting_epoch IS NOT NULL AND f.name = names[1]
                AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take.service AND k.kind = take.kind)
                AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take.service
                    AND d.region = COALESCE(take.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
                AND (SELECT e.target_id FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min') IS NULL
            FOR SHARE OF f);
    END IF;
    IF cardinality(locked) <> 1 THEN
        RETURN false;
    END IF;
    -- After the lock, in a statement of its own: a right that ended before the lock is not seen. One that was about to end is not locked.
    INSERT INTO dbcontroller.pin (statement, target_id, blocks)
    SELECT number, f.id, block FROM dbcontroller.foreign_target f
    WHERE f.id = locked[1] AND (SELECT x.deployment_id FROM dbcontroller.decommissioned x WHERE x.deployment_id = f.deployment_id) IS NULL
        AND CASE WHEN block THEN f.block_epoch ELSE f.acting_epoch END
            = COALESCE((SELECT d.epoch FROM dbcontroller.deployment d WHERE d.id = f.deployment_id), CASE WHEN block THEN f.block_epoch ELSE f.acting_epoch END)
        AND CASE WHEN block THEN f.block_own ELSE f.acting_own END = (
            SELECT m.epoch FROM dbcontroller.meta m WHERE m.singleton AND m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
                AND split_part(m.server, '.', 2) = (SELECT o.oid FROM pg_database o WHERE o.datname = current_database())::text)
    ON CONFLICT DO NOTHING; -- pinned for another reference: take_rights decides
    GET DIAGNOSTICS taken = ROW_COUNT;
    RETURN taken = 1;
END $$;

CREATE OR REPLACE FUNCTION dbcontroller.take_known(number bigint, service text, kind text, region text, names text[], block boolean) RETURNS boolean LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_nestloop = on SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    locked bigint[];
    named  bigint;  -- the number of different names
    home   integer; -- the deployment of the targets
    taken  bigint;
BEGIN
    -- Whoever ends a right commits its row in ending, and then waits for these locks.
    IF block THEN
        SELECT array_agg(l.id), count(DISTINCT l.name), min(l.deployment_id) INTO locked, named, home FROM (
            SELECT f.id, f.name, f.deployment_id FROM dbcontroller.foreign_target f WHERE f.block_epoch IS NOT NULL AND f.name = ANY (names)
                AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take_known.service AND k.kind = take_known.kind)
                AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take_known.service
                    AND d.region = COALESCE(take_known.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
                AND NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
            ORDER BY f.id FOR SHARE OF f
        ) AS l;
    ELSE
        SELECT array_agg(l.id), count(DISTINCT l.name), min(l.deployment_id) INTO locked, named, home FROM (
            SELECT f.id, f.name, f.deployment_id FROM dbcontroller.foreign_target f WHERE f.acting_epoch IS NOT NULL AND f.name = ANY (names)
                AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take_known.service AND k.kind = take_known.kind)
                AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take_known.service
                    AND d.region = COALESCE(take_known.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
                AND NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
            ORDER BY f.id FOR SHARE OF f
        ) AS l;
    END IF;
    IF locked IS NULL OR cardinality(locked) <> cardinality(names) OR named <> cardinality(names) THEN
        RETURN false;
    END IF;
    -- After the locks, in a statement of its own: a right that ended before the lock is not seen. One that was about to end is not locked.
    INSERT INTO dbcontroller.pin (statement, target_id, blocks)
    SELECT number, f.id, block FROM dbcontroller.foreign_target f
    WHERE f.id = ANY (locked) AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = home)
        AND CASE WHEN block THEN f.block_epoch ELSE f.acting_epoch END
            = COALESCE((SELECT d.epoch FROM dbcontroller.deployment d WHERE d.id = home), CASE WHEN block THEN f.block_epoch ELSE f.acting_epoch END)
        AND CASE WHEN block THEN f.block_own ELSE f.acting_own END = (
            SELECT m.epoch FROM dbcontroller.meta m WHERE m.singleton AND m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
                AND split_part(m.server, '.', 2) = (SELECT o.oid FROM pg_database o WHERE o.datname = current_database())::text)
    ON CONFLICT DO NOTHING; -- pinned for another reference: take_rights decides
    GET DIAGNOSTICS taken = ROW_COUNT;
    RETURN taken = cardinality(names);
END $$;

CREATE OR REPLACE FUNCTION dbcontroller.take_rights(relation regclass, services text[], kinds text[], regions text[], names text[], blocks boolean[])
    RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    number  bigint;
    locked  bigint[];
    places  bigint[];
    counted bigint[];
    lacking text[];
BEGIN
    IF names IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(i.service), array_agg(i.kind), array_agg(i.region), array_agg(i.name), array_agg(i.block) INTO services, kinds, regions, names, blocks FROM (
        SELECT DISTINCT i.service, i.kind, COALESCE(i.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)) AS region, i.name, i.block
        FROM unnest(services, kinds, regions, names, blocks) AS i (service, kind, region, name, block)
    ) AS i;
    -- Whoever ends a right commits its row in ending, and then waits for these locks.
    SELECT array_agg(l.id), array_agg(l.place) INTO locked, places FROM (
        SELECT f.id, i.place FROM unnest(services, kinds, regions, names, blocks) WITH ORDINALITY AS i (service, kind, region, name, block, place)
        JOIN dbcontroller.deployment d ON d.service = i.service AND d.region = i.region
        JOIN dbcontroller.kind k ON k.service = i.service AND k.kind = i.kind
        CROSS JOIN LATERAL (
            SELECT a.id FROM dbcontroller.foreign_target a
            WHERE NOT i.block AND a.acting_epoch IS NOT NULL AND a.deployment_id = d.id AND a.name = i.name AND a.kind_id = k.id
            UNION ALL
            SELECT b.id FROM dbcontroller.foreign_target b
            WHERE i.block AND b.block_epoch IS NOT NULL AND b.deployment_id = d.id AND b.name = i.name AND b.kind_id = k.id
            OFFSET 0
        ) AS t
        JOIN dbcontroller.foreign_target f ON f.id = t.id
        WHERE NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
        ORDER BY f.id FOR SHARE OF f
    ) AS l;
    number := nextval('dbcontroller.statement');
    -- After the locks, in a statement of its own: a right that ended before the lock is not seen. One that was about to end is not locked.
    WITH held AS MATERIALIZED (
        SELECT f.id, l.place, blocks[l.place] AS block FROM unnest(locked, places) AS l (id, place)
        JOIN dbcontroller.foreign_target f ON f.id = l.id
        JOIN dbcontroller.deployment d ON d.id = f.deployment_id
        JOIN dbcontroller.meta m ON m.singleton AND m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
            AND split_part(m.server, '.', 2) = (SELECT o.oid FROM pg_database o WHERE o.datname = current_database())::text
        WHERE NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id) AND CASE WHEN blocks[l.place]
            THEN f.block_epoch = COALESCE(d.epoch, f.block_epoch) AND f.block_own = m.epoch
            ELSE f.acting_epoch = COALESCE(d.epoch, f.acting_epoch) AND f.acting_own = m.epoch END
    ), pinned AS (
        INSERT INTO dbcontroller.pin (statement, target_id, blocks) SELECT number, held.id, held.block FROM held
    )
    SELECT array_agg(one.place) INTO counted FROM (SELECT held.place FROM held GROUP BY held.place HAVING count(*) = 1) AS one;
    IF cardinality(counted) = cardinality(names) THEN
        RETURN number;
    END IF;
    SELECT array_agg(CASE WHEN i.block THEN 'BLOCK' ELSE 'ACT' END || ' //' || i.service || '/' || i.region || '/' || i.name ORDER BY i.service, i.region, i.name, i.block) INTO lacking
    FROM unnest(services, kinds, regions, names, blocks) WITH ORDINALITY AS i (service, kind, region, name, block, place)
    WHERE i.place NOT IN (SELECT c FROM unnest(counted) AS c);
    RAISE EXCEPTION 'table "%" refers to resources without the right to do so: % lacking', relation,
            CASE WHEN cardinality(lacking) = 1 THEN '1 right is' ELSE cardinality(lacking) || ' rights are' END
        USING ERRCODE = 'RD001', DETAIL = array_to_string(lacking[1:1000], E'\n'), TABLE = relation::text,
            HINT = CASE WHEN cardinality(lacking) > 1000
                THEN 'Roll back, and write rows with at most 100 new targets in one transaction: rights that wait to be used are returned after 15 seconds.'
                ELSE 'Roll back, call dbcontroller.acquire and dbcontroller.acquired with the lines of DETAIL, and repeat the transaction.' END;
END $$;
-- +goose StatementEnd
DROP FUNCTION dbcontroller.number_of_kind, dbcontroller.number_of_deployment, dbcontroller.here;
