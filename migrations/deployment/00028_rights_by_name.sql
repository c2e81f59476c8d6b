-- +goose Up
-- compatible with programs that know migration 20
-- A statement on a strict table finds the rights to its targets by their names. Before, it read all targets of their deployments:
-- 100,000 rows with 1,000 targets took four minutes beside 1,000,000 other targets, and take a second.
-- +goose StatementBegin
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

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.take_rights(relation regclass, services text[], kinds text[], regions text[], names text[], blocks boolean[])
    RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    locked  bigint[];
    ids     bigint[];
    lacking text[];
    number  bigint;
BEGIN
    IF names IS NULL THEN
        RETURN NULL;
    END IF;
    -- Whoever ends a right commits its row in ending, and then waits for these locks.
    SELECT array_agg(l.id) INTO locked FROM (SELECT f.id FROM dbcontroller.foreign_target f WHERE f.id IN (
        SELECT t.id FROM unnest(services, kinds, regions, names) AS i (service, kind, region, name)
        JOIN dbcontroller.deployment d ON d.service = i.service AND d.region = COALESCE(i.region, (SELECT m.region FROM dbcontroller.meta m))
        JOIN dbcontroller.kind k ON k.service = i.service AND k.kind = i.kind
        JOIN dbcontroller.foreign_target t ON t.deployment_id = d.id AND t.kind_id = k.id AND t.name = i.name AND (t.acting_epoch IS NOT NULL OR t.block_epoch IS NOT NULL)
    ) AND NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
    ORDER BY f.id FOR SHARE) AS l;
    -- After the locks, in a statement of its own: a right that ended before the lock is not seen. One that was about to end is not locked.
    WITH m AS (
        SELECT m.region, m.epoch FROM dbcontroller.meta m
        WHERE m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
            AND split_part(m.server, '.', 2) = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())::text
    ), i AS (
        SELECT i.service, COALESCE(i.region, (SELECT region FROM dbcontroller.meta)) AS region, i.kind, i.name, i.block
        FROM unnest(services, kinds, regions, names, blocks) AS i (service, kind, region, name, block)
    ), found AS (
        SELECT i.service, i.region, i.name, i.block, min(f.id) AS id, count(f.id) AS n
        FROM i LEFT JOIN (
            dbcontroller.deployment d
            JOIN dbcontroller.foreign_target f ON f.deployment_id = d.id AND f.id = ANY (locked)
                AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id)
            JOIN dbcontroller.kind k ON k.id = f.kind_id
        ) ON d.service = i.service AND d.region = i.region AND k.service = i.service AND k.kind = i.kind AND f.name = i.name AND CASE WHEN i.block
            THEN f.block_epoch = COALESCE(d.epoch, f.block_epoch) AND f.block_own = (SELECT epoch FROM m)
            ELSE f.acting_epoch = COALESCE(d.epoch, f.acting_epoch) AND f.acting_own = (SELECT epoch FROM m) END
        GROUP BY 1, 2, 3, 4
    )
    SELECT array_agg(CASE WHEN block THEN 'BLOCK' ELSE 'ACT' END || ' //' || service || '/' || region || '/' || name ORDER BY service, region, name, block) FILTER (WHERE n <> 1),
        array_agg(id) FILTER (WHERE n = 1)
    INTO lacking, ids FROM found;
    IF lacking IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" refers to resources without the right to do so, and % rights are lacking', relation, cardinality(lacking)
            USING ERRCODE = 'RD001', DETAIL = array_to_string(lacking[1:1000], E'\n'), TABLE = relation::text,
                HINT = 'Roll back, call dbcontroller.acquire and dbcontroller.acquired with the lines of DETAIL, and repeat the transaction.';
    END IF;
    number := nextval('dbcontroller.statement');
    INSERT INTO dbcontroller.pin (statement, target_id, blocks)
    SELECT DISTINCT number, f.id, i.block FROM unnest(services, kinds, regions, names, blocks) AS i (service, kind, region, name, block)
    JOIN dbcontroller.foreign_target f ON f.id = ANY (ids) AND f.name = i.name
    JOIN dbcontroller.deployment d ON d.id = f.deployment_id AND d.service = i.service AND d.region = COALESCE(i.region, (SELECT m.region FROM dbcontroller.meta m));
    RETURN number;
END $$;
-- +goose StatementEnd
