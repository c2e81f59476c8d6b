-- +goose Up
-- compatible with programs that know migration 20
-- A statement about one row of a strict table paid for sorting and grouping one target. An answer to a question about a target that did not exist
-- was also the answer to those who asked after its creation. Errors name their command in full.
ALTER TABLE dbcontroller.wish
    ADD COLUMN asks bigint NOT NULL DEFAULT nextval('dbcontroller.statement'), -- the number of the last question
    ADD COLUMN answers bigint; -- the number of the question that problem and missing answer; null: none, or the answer of an earlier release
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.acquire(targets text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    waiting bigint;
    own     bigint;
BEGIN
    IF cardinality(targets) > 1000 THEN
        RAISE EXCEPTION '% names at once: at most 1000', cardinality(targets) USING ERRCODE = '54000';
    END IF;
    IF EXISTS (SELECT FROM unnest(targets) AS t WHERE octet_length(t) > 1024) THEN
        RAISE EXCEPTION 'a right to be asked for has more than 1024 bytes' USING ERRCODE = '54000', HINT = 'Pass the lines of DETAIL of RD001.';
    END IF;
    SELECT count(*), count(*) FILTER (WHERE w.asked_by = session_user) INTO waiting, own FROM (SELECT asked_by FROM dbcontroller.wish LIMIT 100000) AS w;
    IF waiting = 100000 OR own >= 60000 THEN
        RAISE EXCEPTION '% rights were asked for in the last minutes, % of them by %', waiting, own, session_user USING ERRCODE = 'RD002',
            HINT = 'Write rows with fewer new targets; what was asked for is forgotten after five minutes.';
    END IF;
    INSERT INTO dbcontroller.wish AS w (target) SELECT DISTINCT t FROM unnest(targets) AS t WHERE t IS NOT NULL ORDER BY t
    ON CONFLICT (target) DO UPDATE SET asks = nextval('dbcontroller.statement'), answered = false, asked_at = CASE WHEN w.answered THEN now() ELSE w.asked_at END;
END $$;

CREATE OR REPLACE FUNCTION dbcontroller.acquired(targets text[], patience interval DEFAULT interval '10 s') RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until timestamptz := clock_timestamp() + patience;
    asked bigint[]; -- the number of the question of each target, of this caller or a later one
    open  bigint;
    found record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'dbcontroller.acquired has to run at READ COMMITTED' USING ERRCODE = '25001';
    END IF;
    asked := ARRAY(SELECT (SELECT w.asks FROM dbcontroller.wish w WHERE w.target = i.t) FROM unnest(targets) WITH ORDINALITY AS i (t, n) ORDER BY i.n);
    LOOP
        -- An answer to an earlier question may be older than the target. A process of an earlier release writes none with a number.
        SELECT count(*) INTO open FROM unnest(targets, asked) AS i (target, asks)
        WHERE NOT EXISTS (SELECT FROM dbcontroller.wish w WHERE w.target = i.target AND (w.answered OR w.answers >= i.asks));
        EXIT WHEN open = 0 OR clock_timestamp() > until;
        PERFORM pg_sleep(0.01);
    END LOOP;
    IF open > 0 THEN
        RAISE EXCEPTION 'the rights to refer to % resources were not acquired in %', open, patience USING ERRCODE = 'RD002';
    END IF;
    SELECT w.* INTO found FROM dbcontroller.wish w WHERE w.target = ANY (targets) AND w.problem IS NOT NULL ORDER BY w.missing DESC, w.target LIMIT 1;
    IF found.problem IS NOT NULL THEN
        RAISE EXCEPTION '%', found.problem USING ERRCODE = CASE WHEN found.missing THEN '23503' ELSE 'RD002' END, DETAIL = found.target;
    END IF;
END $$;

-- The way of most statements: it locks the rights to names of one kind and region, and reports whether all of them are there; null: there are no
-- names. If not, the statement asks take_rights, which decides. A statement about one row names one target: it pays for no sorting, no
-- grouping and no settings. The settings are those of the trigger's function.
CREATE FUNCTION dbcontroller.take(number bigint, service text, kind text, region text, names text[], block boolean) RETURNS boolean LANGUAGE plpgsql AS $$
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

CREATE OR REPLACE FUNCTION dbcontroller.refuse_gone(ids bigint[], every boolean, relation regclass) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    total  bigint;
    holder text;
    target text;
BEGIN
    IF NOT EXISTS (SELECT FROM dbcontroller.blockade b WHERE b.target_id = ANY (ids) AND (every OR b.behaviour = 1))
        AND NOT EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = ANY (ids) AND (every OR r.behaviour = 1))
        AND NOT (every AND EXISTS (SELECT FROM dbcontroller.holder_entry e WHERE e.target_id = ANY (ids))) THEN
        RETURN;
    END IF;
    WITH blockers AS (
        SELECT b.target_id, '//' || d.service || '/' || d.region || CASE WHEN b.holder_uid = s.uid THEN ' (rows written under its right)' ELSE '/' || b.holder_name END AS holder
        FROM dbcontroller.blockade b JOIN dbcontroller.deployment d ON d.id = b.deployment_id JOIN dbcontroller.shadow s ON s.id = b.target_id
        WHERE b.target_id = ANY (ids) AND (every OR b.behaviour = 1)
        UNION ALL
        SELECT r.target_id, h.name FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id
        WHERE r.target_id = ANY (ids) AND (every OR r.behaviour = 1)
        UNION ALL
        SELECT e.target_id, '//' || d.service || '/' || d.region FROM dbcontroller.holder_entry e JOIN dbcontroller.deployment d ON d.id = e.deployment_id
        WHERE every AND e.target_id = ANY (ids)
    ), first AS (
        SELECT * FROM blockers ORDER BY target_id, holder LIMIT 3
    )
    SELECT (SELECT count(*) FROM blockers), (SELECT string_agg(first.holder, ', ') FROM first),
        (SELECT '//' || m.service || '/' || m.region || '/' || s.name FROM dbcontroller.shadow s, dbcontroller.meta m WHERE m.singleton AND s.id = (SELECT min(first.target_id) FROM first))
    INTO total, holder, target;
    RAISE EXCEPTION 'update or delete on table "%" violates references of other resources to %', relation, target
        USING ERRCODE = '23503', DETAIL = CASE WHEN total = 1 THEN format('1 reference, from %s.', holder) ELSE format('%s references, the first from %s.', total, holder) END,
            HINT = format('db-controller plan %s', target), TABLE = relation::text;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION dbcontroller.take FROM PUBLIC;

-- +goose Down
DROP FUNCTION dbcontroller.take;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.acquire(targets text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    waiting bigint;
    own     bigint;
BEGIN
    IF cardinality(targets) > 1000 THEN
        RAISE EXCEPTION '% names at once: at most 1000', cardinality(targets) USING ERRCODE = '54000';
    END IF;
    IF EXISTS (SELECT FROM unnest(targets) AS t WHERE octet_length(t) > 1024) THEN
        RAISE EXCEPTION 'a right to be asked for has more than 1024 bytes' USING ERRCODE = '54000', HINT = 'Pass the lines of DETAIL of RD001.';
    END IF;
    SELECT count(*), count(*) FILTER (WHERE w.asked_by = session_user) INTO waiting, own FROM (SELECT asked_by FROM dbcontroller.wish LIMIT 100000) AS w;
    IF waiting = 100000 OR own >= 60000 THEN
        RAISE EXCEPTION '% rights were asked for in the last minutes, % of them by %', waiting, own, session_user USING ERRCODE = 'RD002',
            HINT = 'Write rows with fewer new targets; what was asked for is forgotten after five minutes.';
    END IF;
    INSERT INTO dbcontroller.wish AS w (target) SELECT DISTINCT t FROM unnest(targets) AS t WHERE t IS NOT NULL ORDER BY t
    ON CONFLICT (target) DO UPDATE SET asked_at = now(), answered = false, problem = NULL, missing = false WHERE w.answered OR w.asked_at < now() - interval '1 s';
END $$;

CREATE OR REPLACE FUNCTION dbcontroller.acquired(targets text[], patience interval DEFAULT interval '10 s') RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until timestamptz := clock_timestamp() + patience;
    open  bigint;
    found record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'dbcontroller.acquired has to run at READ COMMITTED' USING ERRCODE = '25001';
    END IF;
    LOOP
        SELECT count(*) INTO open FROM unnest(targets) AS t WHERE NOT EXISTS (SELECT FROM dbcontroller.wish w WHERE w.target = t AND w.answered);
        EXIT WHEN open = 0 OR clock_timestamp() > until;
        PERFORM pg_sleep(0.01);
    END LOOP;
    IF open > 0 THEN
        RAISE EXCEPTION 'the rights to refer to % resources were not acquired in %', open, patience USING ERRCODE = 'RD002';
    END IF;
    SELECT w.* INTO found FROM dbcontroller.wish w WHERE w.target = ANY (targets) AND w.problem IS NOT NULL ORDER BY w.missing DESC, w.target LIMIT 1;
    IF found.problem IS NOT NULL THEN
        RAISE EXCEPTION '%', found.problem USING ERRCODE = CASE WHEN found.missing THEN '23503' ELSE 'RD002' END, DETAIL = found.target;
    END IF;
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
    RAISE EXCEPTION 'table "%" refers to resources without the right to do so, and % rights are lacking', relation, cardinality(lacking)
        USING ERRCODE = 'RD001', DETAIL = array_to_string(lacking[1:1000], E'\n'), TABLE = relation::text,
            HINT = CASE WHEN cardinality(lacking) > 1000
                THEN 'Roll back, and write rows with at most 100 new targets in one transaction: rights that wait to be used are returned after 15 seconds.'
                ELSE 'Roll back, call dbcontroller.acquire and dbcontroller.acquired with the lines of DETAIL, and repeat the transaction.' END;
END $$;

CREATE OR REPLACE FUNCTION dbcontroller.refuse_gone(ids bigint[], every boolean, relation regclass) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    total  bigint;
    holder text;
    target text;
BEGIN
    IF NOT EXISTS (SELECT FROM dbcontroller.blockade b WHERE b.target_id = ANY (ids) AND (every OR b.behaviour = 1))
        AND NOT EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = ANY (ids) AND (every OR r.behaviour = 1))
        AND NOT (every AND EXISTS (SELECT FROM dbcontroller.holder_entry e WHERE e.target_id = ANY (ids))) THEN
        RETURN;
    END IF;
    WITH blockers AS (
        SELECT b.target_id, '//' || d.service || '/' || d.region || CASE WHEN b.holder_uid = s.uid THEN ' (rows written under its right)' ELSE '/' || b.holder_name END AS holder
        FROM dbcontroller.blockade b JOIN dbcontroller.deployment d ON d.id = b.deployment_id JOIN dbcontroller.shadow s ON s.id = b.target_id
        WHERE b.target_id = ANY (ids) AND (every OR b.behaviour = 1)
        UNION ALL
        SELECT r.target_id, h.name FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id
        WHERE r.target_id = ANY (ids) AND (every OR r.behaviour = 1)
        UNION ALL
        SELECT e.target_id, '//' || d.service || '/' || d.region FROM dbcontroller.holder_entry e JOIN dbcontroller.deployment d ON d.id = e.deployment_id
        WHERE every AND e.target_id = ANY (ids)
    ), first AS (
        SELECT * FROM blockers ORDER BY target_id, holder LIMIT 3
    )
    SELECT (SELECT count(*) FROM blockers), (SELECT string_agg(first.holder, ', ') FROM first),
        (SELECT s.name FROM dbcontroller.shadow s WHERE s.id = (SELECT min(first.target_id) FROM first))
    INTO total, holder, target;
    RAISE EXCEPTION 'update or delete on table "%" violates references of other resources to %', relation, target
        USING ERRCODE = '23503', DETAIL = format('%s references, the first from %s.', total, holder),
            HINT = format('db-controller explain %s', target), TABLE = relation::text;
END $$;
-- +goose StatementEnd
ALTER TABLE dbcontroller.wish DROP COLUMN answers, DROP COLUMN asks;
