-- +goose Up
-- compatible with programs that know migration 20
-- What a statement on an attached table costs. A session of the application has PostgreSQL's defaults: it compiled the plans of these
-- functions anew for each statement (three seconds with jit), because scans that are switched off make a plan look expensive, and it planned
-- them anew. An UPDATE of few rows left a plan that compares each row of a later, larger one with each other. And a statement that named
-- one target in two rows of a table with one strict reference failed with RD001.
-- +goose StatementBegin
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
    RAISE EXCEPTION 'table "%" refers to resources without the right to do so, and % rights are lacking', relation, cardinality(lacking)
        USING ERRCODE = 'RD001', DETAIL = array_to_string(lacking[1:1000], E'\n'), TABLE = relation::text,
            HINT = CASE WHEN cardinality(lacking) > 1000
                THEN 'Roll back, and write rows with at most 100 new targets in one transaction: rights that wait to be used are returned after 15 seconds.'
                ELSE 'Roll back, call dbcontroller.acquire and dbcontroller.acquired with the lines of DETAIL, and repeat the transaction.' END;
END $$;

-- Rights that are asked for are counted: a program that asks without end fills no disk.
CREATE OR REPLACE FUNCTION dbcontroller.acquire(targets text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(targets) > 1000 THEN
        RAISE EXCEPTION '% names at once: at most 1000', cardinality(targets) USING ERRCODE = '54000';
    END IF;
    IF (SELECT count(*) FROM (SELECT FROM dbcontroller.wish LIMIT 100000) AS w) = 100000 THEN
        RAISE EXCEPTION '100000 rights were asked for in the last minutes' USING ERRCODE = 'RD002',
            HINT = 'Write rows with fewer new targets; what was asked for is forgotten after five minutes.';
    END IF;
    INSERT INTO dbcontroller.wish AS w (target) SELECT DISTINCT t FROM unnest(targets) AS t WHERE t IS NOT NULL ORDER BY t
    ON CONFLICT (target) DO UPDATE SET asked_at = now(), answered = false, problem = NULL, missing = false WHERE w.answered OR w.asked_at < now() - interval '1 s';
END $$;

-- The way that most statements take: it locks the rights to distinct names of one kind and region, and reports whether all of them are there.
-- If not, the statement asks take_rights, which decides. The settings are those of the trigger's function, and of take_rights.
CREATE FUNCTION dbcontroller.take_known(number bigint, service text, kind text, region text, names text[], block boolean) RETURNS boolean LANGUAGE plpgsql
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

-- The functions of tables that are attached already. Their next attach replaces them.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'dbcontroller'::regnamespace AND p.proname ~ '^attached_[0-9]+_(insert|update|delete|truncate)$' LOOP
        EXECUTE format('ALTER FUNCTION %s SET jit = off', f);
        EXECUTE format('ALTER FUNCTION %s SET enable_nestloop = off', f);
    END LOOP;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION dbcontroller.take_known FROM PUBLIC;
ALTER FUNCTION dbcontroller.capture_gone SET enable_nestloop = on;
ALTER FUNCTION dbcontroller.capture_gone SET jit = off;
ALTER FUNCTION dbcontroller.capture_gone SET plan_cache_mode = force_generic_plan;
ALTER FUNCTION dbcontroller.refuse_gone SET enable_nestloop = on;
ALTER FUNCTION dbcontroller.refuse_gone SET jit = off;
ALTER FUNCTION dbcontroller.refuse_gone SET plan_cache_mode = force_generic_plan;
ALTER FUNCTION dbcontroller.capture_truncate SET enable_nestloop = on;
ALTER FUNCTION dbcontroller.capture_truncate SET jit = off;
ALTER FUNCTION dbcontroller.capture_truncate SET plan_cache_mode = force_generic_plan;

-- +goose Down
ALTER FUNCTION dbcontroller.capture_gone RESET plan_cache_mode;
ALTER FUNCTION dbcontroller.capture_gone RESET jit;
ALTER FUNCTION dbcontroller.capture_gone RESET enable_nestloop;
ALTER FUNCTION dbcontroller.refuse_gone RESET plan_cache_mode;
ALTER FUNCTION dbcontroller.refuse_gone RESET jit;
ALTER FUNCTION dbcontroller.refuse_gone RESET enable_nestloop;
ALTER FUNCTION dbcontroller.capture_truncate RESET plan_cache_mode;
ALTER FUNCTION dbcontroller.capture_truncate RESET jit;
ALTER FUNCTION dbcontroller.capture_truncate RESET enable_nestloop;
DROP FUNCTION dbcontroller.take_known;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.acquire(targets text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(targets) > 1000 THEN
        RAISE EXCEPTION '% names at once: at most 1000', cardinality(targets) USING ERRCODE = '54000';
    END IF;
    INSERT INTO dbcontroller.wish AS w (target) SELECT DISTINCT t FROM unnest(targets) AS t WHERE t IS NOT NULL ORDER BY t
    ON CONFLICT (target) DO UPDATE SET asked_at = now(), answered = false, problem = NULL, missing = false WHERE w.answered OR w.asked_at < now() - interval '1 s';
END $$;
CREATE OR REPLACE FUNCTION dbcontroller.take_rights(relation regclass, services text[], kinds text[], regions text[], names text[], blocks boolean[])
    RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    locked  bigint[];
    ids     bigint[];
    of      boolean[];
    lacking text[];
    number  bigint;
BEGIN
    IF names IS NULL THEN
        RETURN NULL;
    END IF;
    -- Whoever ends a right commits its row in ending, and then waits for these locks.
    SELECT array_agg(l.id) INTO locked FROM (SELECT f.id FROM dbcontroller.foreign_target f WHERE f.id IN (
        SELECT t.id FROM unnest(services, kinds, regions, names, blocks) AS i (service, kind, region, name, block)
        JOIN dbcontroller.deployment d ON d.service = i.service AND d.region = COALESCE(i.region, (SELECT m.region FROM dbcontroller.meta m))
        JOIN dbcontroller.kind k ON k.service = i.service AND k.kind = i.kind
        CROSS JOIN LATERAL (
            SELECT a.id FROM dbcontroller.foreign_target a
            WHERE NOT i.block AND a.acting_epoch IS NOT NULL AND a.deployment_id = d.id AND a.name = i.name AND a.kind_id = k.id
            UNION ALL
            SELECT b.id FROM dbcontroller.foreign_target b
            WHERE i.block AND b.block_epoch IS NOT NULL AND b.deployment_id = d.id AND b.name = i.name AND b.kind_id = k.id
            OFFSET 0
        ) AS t
    ) AND NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
    ORDER BY f.id FOR SHARE) AS l;
    -- After the locks, in a statement of its own: a right that ended before the lock is not seen. One that was about to end is not locked.
    WITH m AS (
        SELECT m.epoch FROM dbcontroller.meta m
        WHERE m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
            AND split_part(m.server, '.', 2) = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())::text
    ), i AS (
        SELECT i.service, COALESCE(i.region, (SELECT region FROM dbcontroller.meta)) AS region, i.kind, i.name, i.block
        FROM unnest(services, kinds, regions, names, blocks) AS i (service, kind, region, name, block)
    ), held AS (
        SELECT f.id, f.name, k.service, k.kind, d.region, f.block_epoch = COALESCE(d.epoch, f.block_epoch) AND f.block_own = (SELECT epoch FROM m) AS block,
            f.acting_epoch = COALESCE(d.epoch, f.acting_epoch) AND f.acting_own = (SELECT epoch FROM m) AS act
        FROM dbcontroller.foreign_target f JOIN dbcontroller.deployment d ON d.id = f.deployment_id JOIN dbcontroller.kind k ON k.id = f.kind_id
        WHERE f.id = ANY (locked) AND k.service = d.service AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id)
    ), found AS (
        SELECT i.service, i.region, i.name, i.block, min(h.id) AS id, count(h.id) AS n
        FROM i LEFT JOIN held h ON h.service = i.service AND h.region = i.region AND h.kind = i.kind AND h.name = i.name AND CASE WHEN i.block THEN h.block ELSE h.act END
        GROUP BY 1, 2, 3, 4
    )
    SELECT array_agg(CASE WHEN block THEN 'BLOCK' ELSE 'ACT' END || ' //' || service || '/' || region || '/' || name ORDER BY service, region, name, block) FILTER (WHERE n <> 1),
        array_agg(id ORDER BY id, block) FILTER (WHERE n = 1), array_agg(block ORDER BY id, block) FILTER (WHERE n = 1)
    INTO lacking, ids, of FROM found;
    IF lacking IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" refers to resources without the right to do so, and % rights are lacking', relation, cardinality(lacking)
            USING ERRCODE = 'RD001', DETAIL = array_to_string(lacking[1:1000], E'\n'), TABLE = relation::text,
                HINT = 'Roll back, call dbcontroller.acquire and dbcontroller.acquired with the lines of DETAIL, and repeat the transaction.';
    END IF;
    number := nextval('dbcontroller.statement');
    INSERT INTO dbcontroller.pin (statement, target_id, blocks) SELECT DISTINCT number, p.id, p.block FROM unnest(ids, of) AS p (id, block);
    RETURN number;
END $$;
-- +goose StatementEnd
