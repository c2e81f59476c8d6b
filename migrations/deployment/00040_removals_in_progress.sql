-- +goose Up
-- compatible with programs that know migration 20
-- The removal of a resource that is still in DELETING, and its cause, are needed until it is removed: other deployments are told the cause,
-- also those that were away for longer than removals are kept.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.forget_removals(age interval, at_most integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    forgotten bigint;
BEGIN
    -- As dates: intervals compare a month as 30 days.
    IF age IS NULL OR now() - age > now() - interval '7 days' THEN
        RAISE EXCEPTION 'removals are kept for at least 7 days';
    END IF;
    DELETE FROM dbcontroller.removal WHERE (name, uid) IN (
        SELECT r.name, r.uid FROM dbcontroller.removal r
        WHERE r.decided_at < now() - age AND NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.uid = r.uid) LIMIT at_most
    );
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    -- After what refers to them.
    DELETE FROM dbcontroller.cause WHERE id IN (
        SELECT id FROM dbcontroller.cause WHERE noted_at < now() - age - interval '1 day' AND NOT id = ANY (ARRAY (
            SELECT r.cause_id FROM dbcontroller.shadow s JOIN dbcontroller.removal r ON r.name = s.name AND r.uid = s.uid WHERE s.state = 2
        )) LIMIT at_most
    );
    RETURN forgotten;
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.forget_removals(age interval, at_most integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    forgotten bigint;
BEGIN
    -- As dates: intervals compare a month as 30 days.
    IF age IS NULL OR now() - age > now() - interval '7 days' THEN
        RAISE EXCEPTION 'removals are kept for at least 7 days';
    END IF;
    DELETE FROM dbcontroller.removal WHERE (name, uid) IN (
        SELECT name, uid FROM dbcontroller.removal WHERE decided_at < now() - age LIMIT at_most
    );
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    -- After what refers to them.
    DELETE FROM dbcontroller.cause WHERE id IN (
        SELECT id FROM dbcontroller.cause WHERE noted_at < now() - age - interval '1 day' LIMIT at_most
    );
    RETURN forgotten;
END $$;
-- +goose StatementEnd
