-- +goose Up
-- compatible with programs that know migration 20
-- The start of the server that a process has noticed last, with the value of the sequence mark at that time, and the deployments that have not
-- shown since how far they have seen this database.
ALTER TABLE dbcontroller.meta
    ADD COLUMN started_at timestamptz,
    ADD COLUMN started_mark bigint NOT NULL DEFAULT 0,
    ADD COLUMN positions_until timestamptz;
ALTER TABLE dbcontroller.deployment ADD COLUMN position_due boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE dbcontroller.deployment DROP COLUMN position_due;
ALTER TABLE dbcontroller.meta DROP COLUMN started_at, DROP COLUMN started_mark, DROP COLUMN positions_until;
