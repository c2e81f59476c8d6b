-- +goose Up
-- The right to block a target of another deployment without asking (docs/protocol.md). At the target's deployment it is a blockade of a
-- proxy, whose holder uid is that of the target: it stands for all references written under the right.
ALTER TABLE dbcontroller.foreign_target
    ADD COLUMN block_attempt uuid, -- of the proxy's blockade; null: there is none. It outlives the right until no reference is left under it
    ADD COLUMN block_epoch   uuid, -- of the target's database when it gave the right; null: the right has ended
    ADD COLUMN block_own     uuid; -- of this database when it asked
CREATE INDEX foreign_target_block ON dbcontroller.foreign_target (deployment_id, name, kind_id) WHERE block_epoch IS NOT NULL;
CREATE INDEX foreign_target_proxy ON dbcontroller.foreign_target (id) WHERE block_attempt IS NOT NULL;

-- Written under a right. A blocking one has no blockade of its own.
ALTER TABLE dbcontroller.reference ADD COLUMN delegated boolean NOT NULL DEFAULT false;
CREATE INDEX reference_delegated ON dbcontroller.reference (target_id) WHERE delegated AND behaviour = 1;

ALTER TABLE dbcontroller.member ADD COLUMN blocks boolean NOT NULL DEFAULT false; -- the process knows the right to block

-- A process with the rights switched off ends them by joining. One that does not know the right to block would answer that the
-- references under it are gone: it does not join while there are such.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.end_rights() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(110373738146831); -- of joins
    IF NOT (NEW.delegates AND NEW.blocks) AND (
        EXISTS (SELECT FROM dbcontroller.member WHERE delegates)
        OR EXISTS (SELECT FROM dbcontroller.foreign_target WHERE acting_epoch IS NOT NULL)
        OR EXISTS (SELECT FROM dbcontroller.foreign_target WHERE block_attempt IS NOT NULL)
    ) THEN
        PERFORM pg_advisory_xact_lock(110373738146817); -- the version's lock
        IF NOT NEW.blocks AND EXISTS (SELECT FROM dbcontroller.foreign_target WHERE block_attempt IS NOT NULL) THEN
            RAISE EXCEPTION 'references here were written under rights that this version of the program does not know'
                USING HINT = 'Run a version that knows them, and switch them off there first: serve --delegations=false.';
        END IF;
        IF NOT NEW.delegates THEN
            UPDATE dbcontroller.foreign_target
            SET acting_epoch = NULL, acting_own = NULL, block_epoch = NULL, block_own = NULL, turn = nextval('dbcontroller.object_id')
            WHERE acting_epoch IS NOT NULL OR block_epoch IS NOT NULL;
        END IF;
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.end_rights() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
ALTER TABLE dbcontroller.member DROP COLUMN blocks;
DROP INDEX dbcontroller.reference_delegated;
ALTER TABLE dbcontroller.reference DROP COLUMN delegated;
DROP INDEX dbcontroller.foreign_target_block, dbcontroller.foreign_target_proxy;
ALTER TABLE dbcontroller.foreign_target DROP COLUMN block_attempt, DROP COLUMN block_epoch, DROP COLUMN block_own;
