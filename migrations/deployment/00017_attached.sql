-- +goose Up
-- Attached tables: rows of the deployment's own tables that are resources (docs/adoption.md). Triggers of such a table capture which
-- rows changed; a process reads the rows afterwards and keeps shadow, reference and resource as for resources with bodies.
CREATE TABLE dbcontroller.attachment (
    kind_id    integer CONSTRAINT attachment_pkey PRIMARY KEY,
    kind       text NOT NULL,    -- its name when it was attached
    definition jsonb NOT NULL,   -- of schema.Definition: table, key, references
    checksum   text NOT NULL,    -- of the definition; the comment of each trigger has it too
    ready      boolean NOT NULL,  -- false: detached, and references of its rows are still to be given up
    filled     text[],           -- the key of the last row that the first reading has passed; null: none
    complete   boolean NOT NULL DEFAULT false, -- the first reading has passed all rows
    attached_at timestamptz NOT NULL DEFAULT now()
);

-- Rows that changed since they were read. A row stays here until a transaction has stored what it says: a crash costs a second reading.
CREATE TABLE dbcontroller.captured (
    seq     bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT captured_pkey PRIMARY KEY,
    kind_id integer NOT NULL,
    name    text COLLATE "C",     -- null: any row, after TRUNCATE
    gone    uuid,                 -- of the resource whose row was deleted
    actor   text,                 -- who deleted it
    problem text,                 -- why the row could not be stored; null: not tried yet
    missing boolean NOT NULL DEFAULT false, -- it is stored without references to targets that do not exist, which problem names
    tries   integer NOT NULL DEFAULT 0,
    due     timestamptz NOT NULL DEFAULT '-infinity', -- not before
    at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX captured_name ON dbcontroller.captured (kind_id, name); -- has this row changed since it was read?
CREATE INDEX captured_due ON dbcontroller.captured (due, seq);

-- The id of a text, as schema.EscapeID has it.
-- +goose StatementBegin
CREATE FUNCTION dbcontroller.segment(part text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN part COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+,;=:@-]*$' THEN part ELSE (
    SELECT string_agg(CASE WHEN chr(CASE WHEN b BETWEEN 1 AND 127 THEN b ELSE 1 END) COLLATE "C" ~ '[A-Za-z0-9._~!$&''()*+,;=:@-]' THEN chr(b)
        ELSE '%' || upper(lpad(to_hex(b), 2, '0')) END, '' ORDER BY i)
    FROM generate_series(0, octet_length(part) - 1) AS i, get_byte(convert_to(part, 'UTF8'), i) AS b
) END
$$;

-- One column of a key of several, as schema.Definition joins them.
CREATE FUNCTION dbcontroller.key_part(part text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT replace(replace(part, '\', '\\'), ',', '\,')
$$;

-- Refuses the deletion of resources, by id, that others block: from this database and, by the blockades, from other deployments. every
-- counts acting references as well, for a key that changes.
CREATE FUNCTION dbcontroller.refuse_gone(ids bigint[], every boolean, relation regclass) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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

-- Captures deleted rows that are resources: locks their shadows first, refuses the statement for those that others block, and keeps
-- new references away by the row in captured until the deletion is carried out. Above READ COMMITTED the snapshot may be older
-- than a shadow: then every row is captured.
CREATE FUNCTION dbcontroller.capture_gone(kind integer, names text[], moved boolean, relation regclass) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ids bigint[];
BEGIN
    SELECT array_agg(locked.id) INTO ids FROM (
        SELECT s.id FROM dbcontroller.shadow s WHERE s.kind_id = kind AND s.name = ANY (names) AND NOT s.hidden ORDER BY s.id FOR UPDATE
    ) AS locked;
    IF ids IS NOT NULL THEN
        PERFORM dbcontroller.refuse_gone(ids, moved, relation);
        INSERT INTO dbcontroller.captured (kind_id, name, gone, actor)
        SELECT s.kind_id, s.name, s.uid, session_user FROM dbcontroller.shadow s WHERE s.id = ANY (ids);
    END IF;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        INSERT INTO dbcontroller.captured (kind_id, name) SELECT kind, n FROM unnest(names) AS n;
    END IF;
END $$;

-- TRUNCATE is refused while anybody refers, as with native keys; else one row says that any row may be gone.
CREATE FUNCTION dbcontroller.capture_truncate(kind integer, relation regclass) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM dbcontroller.refuse_gone(array_agg(s.id), true, relation) FROM dbcontroller.shadow s WHERE s.kind_id = kind AND NOT s.hidden;
    INSERT INTO dbcontroller.captured (kind_id) VALUES (kind);
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION dbcontroller.refuse_gone, dbcontroller.capture_gone, dbcontroller.capture_truncate FROM PUBLIC;

-- +goose Down
DROP FUNCTION dbcontroller.capture_truncate, dbcontroller.capture_gone, dbcontroller.refuse_gone, dbcontroller.key_part, dbcontroller.segment;
DROP TABLE dbcontroller.captured;
DROP TABLE dbcontroller.attachment;
