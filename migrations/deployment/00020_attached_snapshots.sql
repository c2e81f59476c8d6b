-- +goose Up
-- Above READ COMMITTED a trigger of an attached table does not see what was committed after the snapshot of its transaction. A newer
-- shadow of a deleted key now fails the transaction with 40001: an INSERT meets it, whatever the snapshot is. A newer reference to an
-- older shadow does so too: whoever establishes it updates the shadow.
-- Rows whose targets were lost by a restore are read again. Verifications compare the functions with those that attach made.
ALTER TABLE dbcontroller.captured ADD lost boolean NOT NULL DEFAULT false; -- a target was lost by a restore: the row is reported, and nothing else
ALTER TABLE dbcontroller.attachment ADD functions jsonb; -- md5 of the source of each trigger's function, as attach made it
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.capture_gone(kind integer, names text[], moved boolean, relation regclass) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
-- As the sessions of the controller: the tables may have grown since their statistics were made.
ALTER FUNCTION dbcontroller.capture_gone SET enable_seqscan = off;
ALTER FUNCTION dbcontroller.refuse_gone SET enable_seqscan = off;
ALTER FUNCTION dbcontroller.capture_truncate SET enable_seqscan = off;

-- +goose Down
ALTER FUNCTION dbcontroller.capture_truncate RESET enable_seqscan;
ALTER FUNCTION dbcontroller.refuse_gone RESET enable_seqscan;
ALTER TABLE dbcontroller.attachment DROP functions;
ALTER TABLE dbcontroller.captured DROP lost;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.capture_gone(kind integer, names text[], moved boolean, relation regclass) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
-- +goose StatementEnd
