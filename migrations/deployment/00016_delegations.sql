-- +goose Up
-- A delegation: this deployment may refer to a target of another one by acting references without asking (docs/protocol.md).
-- The turn of a row is new whenever a right ends, so that no answer to an earlier question fits. Rows of before have turn 0.
ALTER TABLE dbcontroller.foreign_target
    ADD COLUMN turn         bigint NOT NULL DEFAULT 0,
    ADD COLUMN acting_epoch uuid, -- of the target's database when it granted the right; null: not granted
    ADD COLUMN acting_own   uuid; -- of this database when it asked
ALTER TABLE dbcontroller.foreign_target ALTER COLUMN turn SET DEFAULT nextval('dbcontroller.object_id');
CREATE INDEX foreign_target_acting ON dbcontroller.foreign_target (deployment_id, name, kind_id) WHERE acting_epoch IS NOT NULL;

-- Targets whose rights are about to end: a write does not begin to share their rows, so that whoever ends the right waits for
-- the present writes alone.
CREATE TABLE dbcontroller.ending (
    target_id bigint NOT NULL CONSTRAINT ending_pkey PRIMARY KEY, -- of foreign_target
    until     timestamptz NOT NULL
);

ALTER TABLE dbcontroller.member ADD COLUMN delegates boolean NOT NULL DEFAULT false; -- the process knows rights and ends them

-- A process that does not know rights acts upon deletions without ending them: it ends all of them by joining. Nobody writes
-- under a right, or takes one, meanwhile, because both hold the version's lock shared. Joins exclude one another, so that one of
-- two always sees the other; the version's lock is left alone where nobody knows rights.
-- +goose StatementBegin
CREATE FUNCTION dbcontroller.end_rights() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(110373738146831); -- of joins
    IF NOT NEW.delegates AND (
        EXISTS (SELECT FROM dbcontroller.member WHERE delegates)
        OR EXISTS (SELECT FROM dbcontroller.foreign_target WHERE acting_epoch IS NOT NULL)
    ) THEN
        PERFORM pg_advisory_xact_lock(110373738146817); -- the version's lock
        UPDATE dbcontroller.foreign_target SET acting_epoch = NULL, acting_own = NULL, turn = nextval('dbcontroller.object_id')
        WHERE acting_epoch IS NOT NULL;
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER member_rights BEFORE INSERT ON dbcontroller.member FOR EACH ROW EXECUTE FUNCTION dbcontroller.end_rights();

-- +goose Down
DROP TRIGGER member_rights ON dbcontroller.member;
DROP FUNCTION dbcontroller.end_rights;
ALTER TABLE dbcontroller.member DROP COLUMN delegates;
DROP TABLE dbcontroller.ending;
DROP INDEX dbcontroller.foreign_target_acting;
ALTER TABLE dbcontroller.foreign_target DROP COLUMN turn, DROP COLUMN acting_epoch, DROP COLUMN acting_own;
