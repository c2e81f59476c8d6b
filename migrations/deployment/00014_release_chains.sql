-- +goose Up
-- A write that is repeated while its target's deployment does not answer leaves one release there, not one for each attempt.
ALTER TABLE dbcontroller.work ADD COLUMN chain uuid;
CREATE UNIQUE INDEX work_chain ON dbcontroller.work (chain, deployment_id) WHERE chain IS NOT NULL;

-- +goose Down
ALTER TABLE dbcontroller.work DROP COLUMN chain;
