-- +goose Up
-- compatible with programs that know migration 20
-- Strict references of attached tables (docs/adoption.md): a statement that names a target fails with SQLSTATE RD001 unless this
-- deployment has the right to refer to it without asking, and its row is stored as written under that right.
ALTER TABLE dbcontroller.attachment ADD COLUMN strict boolean NOT NULL DEFAULT false;
ALTER TABLE dbcontroller.member ADD COLUMN pins boolean NOT NULL DEFAULT false; -- the process waits for rows that are written under rights
ALTER TABLE dbcontroller.foreign_target
    ADD COLUMN acting_attempt uuid,   -- under which the right to act was asked for without a reference
    ADD COLUMN kept_until timestamptz; -- rights that were asked for are not returned before, though nothing refers yet

-- The targets of a statement on an attached table, under whose rights it wrote. They count while a row of the statement is not stored.
CREATE TABLE dbcontroller.pin (
    statement bigint NOT NULL,
    target_id bigint NOT NULL, -- of foreign_target
    blocks    boolean NOT NULL, -- written under the right to block; else under the one to act
    CONSTRAINT pin_pkey PRIMARY KEY (target_id, statement, blocks)
);
CREATE INDEX pin_statement ON dbcontroller.pin (statement);
CREATE SEQUENCE dbcontroller.statement AS bigint;
ALTER TABLE dbcontroller.captured ADD COLUMN statement bigint; -- of pins; null: nothing of the row was written under a right
CREATE INDEX captured_statement ON dbcontroller.captured (statement) WHERE statement IS NOT NULL;

-- Targets that an application wants to be able to refer to (dbcontroller.acquire).
CREATE TABLE dbcontroller.wish (
    target   text COLLATE "C" CONSTRAINT wish_pkey PRIMARY KEY, -- the right, BLOCK or ACT, and the full name of the target
    asked_at timestamptz NOT NULL DEFAULT now(),
    answered boolean NOT NULL DEFAULT false,
    problem  text,                           -- why the rights are not there; null: they are
    missing  boolean NOT NULL DEFAULT false  -- the target does not exist
);

-- +goose StatementBegin
-- Locks the rights to refer to targets until the end of the transaction, and returns the number of the statement, or fails with RD001.
-- The arguments are parallel arrays; a null region is that of this deployment.
CREATE FUNCTION dbcontroller.take_rights(relation regclass, services text[], kinds text[], regions text[], names text[], blocks boolean[])
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

-- Asks for rights, as the lines of DETAIL name them. It takes effect with the commit.
CREATE FUNCTION dbcontroller.acquire(targets text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(targets) > 1000 THEN
        RAISE EXCEPTION '% names at once: at most 1000', cardinality(targets) USING ERRCODE = '54000';
    END IF;
    INSERT INTO dbcontroller.wish AS w (target) SELECT DISTINCT t FROM unnest(targets) AS t WHERE t IS NOT NULL ORDER BY t
    ON CONFLICT (target) DO UPDATE SET asked_at = now(), answered = false, problem = NULL, missing = false WHERE w.answered OR w.asked_at < now() - interval '1 s';
END $$;

-- Waits until the rights are there. It fails with 23503 when a resource does not exist, and with RD002 when a right is not to be had now.
CREATE FUNCTION dbcontroller.acquired(targets text[], patience interval DEFAULT interval '10 s') RETURNS void LANGUAGE plpgsql SECURITY DEFINER
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

-- A process that does not know pins would answer that nothing refers while rows wait to be stored: it does not join while there are strict tables.
-- A process with the rights switched off does not join either: the tables would refuse every new reference.
CREATE FUNCTION dbcontroller.refuse_member() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(110373738146831); -- of joins
    IF NOT (NEW.pins AND NEW.delegates) AND EXISTS (SELECT FROM dbcontroller.attachment WHERE strict AND ready) THEN
        RAISE EXCEPTION 'tables here have strict references, and this process does not know them, or has delegations switched off'
            USING HINT = 'Run a version that knows them with --delegations, or declare the references as enforce: async and attach again first.';
    END IF;
    RETURN NEW;
END $$;

-- The blockade of a right has no holder of its own.
CREATE OR REPLACE FUNCTION dbcontroller.refuse_gone(ids bigint[], every boolean, relation regclass) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
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
CREATE TRIGGER member_strict BEFORE INSERT ON dbcontroller.member FOR EACH ROW EXECUTE FUNCTION dbcontroller.refuse_member();
REVOKE ALL ON FUNCTION dbcontroller.take_rights, dbcontroller.acquire, dbcontroller.acquired FROM PUBLIC;

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.refuse_gone(ids bigint[], every boolean, relation regclass) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
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
        SELECT b.target_id, '//' || d.service || '/' || d.region || '/' || b.holder_name AS holder
        FROM dbcontroller.blockade b JOIN dbcontroller.deployment d ON d.id = b.deployment_id
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
DROP TRIGGER member_strict ON dbcontroller.member;
DROP FUNCTION dbcontroller.refuse_member, dbcontroller.acquired, dbcontroller.acquire, dbcontroller.take_rights;
DROP TABLE dbcontroller.wish;
ALTER TABLE dbcontroller.captured DROP COLUMN statement;
DROP SEQUENCE dbcontroller.statement;
DROP TABLE dbcontroller.pin;
ALTER TABLE dbcontroller.foreign_target DROP COLUMN acting_attempt, DROP COLUMN kept_until;
ALTER TABLE dbcontroller.member DROP COLUMN pins;
ALTER TABLE dbcontroller.attachment DROP COLUMN strict;
