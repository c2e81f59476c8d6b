-- +goose Up
-- compatible with programs that know migration 20
-- Triggers of attached tables meet keys that are no names of resources, and sessions with old settings; they failed the statement of the user.
-- A backslash in a literal means another character with standard_conforming_strings = off: these functions are parsed in the session of the user.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.key_part(part text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT replace(replace(part, E'\\', E'\\\\'), ',', E'\\,')
$$;

-- A key that is no name of a resource has no shadow, and is not probed: the constraint on names would refuse it.
CREATE OR REPLACE FUNCTION dbcontroller.capture_gone(kind integer, names text[], moved boolean, relation regclass) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    ids bigint[];
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        WITH probed AS (
            INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
            SELECT gen_random_uuid(), kind, 1, 0, 0, 0, n FROM unnest(names) AS n
            WHERE octet_length(n) <= 512 AND n COLLATE "C" !~ '/[.]{0,2}$'
                AND NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.kind_id = kind AND s.name = n)
            ON CONFLICT ON CONSTRAINT shadow_name DO NOTHING RETURNING id
        )
        SELECT array_agg(id) INTO ids FROM probed;
        DELETE FROM dbcontroller.shadow WHERE id = ANY (ids);
    END IF;
    SELECT array_agg(locked.id) INTO ids FROM (
        SELECT s.id FROM dbcontroller.shadow s WHERE s.kind_id = kind AND s.name = ANY (names) AND NOT s.hidden ORDER BY s.id FOR UPDATE
    ) AS locked;
    IF ids IS NOT NULL THEN
        PERFORM dbcontroller.refuse_gone(ids, moved, relation);
        INSERT INTO dbcontroller.captured (kind_id, name, gone, actor)
        SELECT s.kind_id, s.name, s.uid, session_user FROM dbcontroller.shadow s WHERE s.id = ANY (ids);
    END IF;
END $$;

-- Is true, or fails when policies hide rows of a table from this role.
CREATE FUNCTION dbcontroller.unhidden(relation regclass) RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF row_security_active(relation) THEN
        RAISE EXCEPTION 'row-level security hides rows of table "%" from the controller', relation
            USING ERRCODE = '42501', HINT = format('ALTER ROLE %I BYPASSRLS', current_user);
    END IF;
    RETURN true;
END $$;

-- How an attached table differs from the one that was attached, so that its triggers fail statements, or do not see all of them.
CREATE FUNCTION dbcontroller.table_drift(kind_id integer) RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH d AS (
    SELECT a.definition -> 'key' AS key, COALESCE(a.definition -> 'references', '[]') AS refs,
        to_regclass(format('%I.%I', a.definition -> 'table' ->> 'Schema', a.definition -> 'table' ->> 'Name')) AS relation
    FROM dbcontroller.attachment a WHERE a.kind_id = $1
), named AS (
    SELECT k ->> 'name' AS name, k ->> 'type' AS type FROM d, jsonb_array_elements(d.key) AS k
    UNION
    SELECT c.name, r -> 'strict' -> 'types' ->> (c.n - 1)::integer FROM d, jsonb_array_elements(d.refs) AS r, jsonb_array_elements_text(r -> 'columns') WITH ORDINALITY AS c (name, n)
    UNION
    SELECT r ->> 'region', NULL FROM d, jsonb_array_elements(d.refs) AS r WHERE r ? 'region'
)
SELECT 'the table does not exist' FROM d WHERE d.relation IS NULL
UNION
SELECT 'the column ' || n.name || ' is missing: each statement that fires a trigger fails' FROM d, named n
WHERE d.relation IS NOT NULL AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = d.relation AND a.attname = n.name AND a.attnum > 0 AND NOT a.attisdropped)
UNION
SELECT format('the column %s is of type %s, and was of type %s', n.name, format_type(a.atttypid, NULL), n.type)
FROM d, named n, pg_attribute a WHERE a.attrelid = d.relation AND a.attname = n.name AND n.type <> format_type(a.atttypid, NULL)
UNION
SELECT 'no unique index has exactly the columns of the key' FROM d WHERE d.relation IS NOT NULL AND NOT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = d.relation AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
        AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C") FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))
            = (SELECT array_agg(k ->> 'name' ORDER BY k ->> 'name' COLLATE "C") FROM jsonb_array_elements(d.key) AS k))
UNION
SELECT 'the table has rules, which rewrite statements before triggers see them' FROM d JOIN pg_rewrite w ON w.ev_class = d.relation
UNION
SELECT 'the table has become a partition, or has one, or a child: statements at the parent do not fire its triggers'
FROM d JOIN pg_inherits i ON d.relation IN (i.inhrelid, i.inhparent)
$$;
-- +goose StatementEnd

-- A note that was not tried yet has no pause that could be too long: it needs no entry here.
CREATE INDEX captured_tried ON dbcontroller.captured (tries, due) WHERE tries > 0 AND tries < 14;
DROP INDEX dbcontroller.captured_late;

-- +goose Down
CREATE INDEX captured_late ON dbcontroller.captured (tries, due) WHERE tries < 14;
DROP INDEX dbcontroller.captured_tried;
DROP FUNCTION dbcontroller.unhidden, dbcontroller.table_drift;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.key_part(part text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT replace(replace(part, '\', '\\'), ',', '\,')
$$;
CREATE OR REPLACE FUNCTION dbcontroller.capture_gone(kind integer, names text[], moved boolean, relation regclass) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    ids bigint[];
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        WITH probed AS (
            INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
            SELECT gen_random_uuid(), kind, 1, 0, 0, 0, n FROM unnest(names) AS n
            WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.kind_id = kind AND s.name = n)
            ON CONFLICT ON CONSTRAINT shadow_name DO NOTHING RETURNING id
        )
        SELECT array_agg(id) INTO ids FROM probed;
        DELETE FROM dbcontroller.shadow WHERE id = ANY (ids);
    END IF;
    SELECT array_agg(locked.id) INTO ids FROM (
        SELECT s.id FROM dbcontroller.shadow s WHERE s.kind_id = kind AND s.name = ANY (names) AND NOT s.hidden ORDER BY s.id FOR UPDATE
    ) AS locked;
    IF ids IS NOT NULL THEN
        PERFORM dbcontroller.refuse_gone(ids, moved, relation);
        INSERT INTO dbcontroller.captured (kind_id, name, gone, actor)
        SELECT s.kind_id, s.name, s.uid, session_user FROM dbcontroller.shadow s WHERE s.id = ANY (ids);
    END IF;
END $$;
-- +goose StatementEnd
