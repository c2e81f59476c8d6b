-- +goose Up
-- The shapes of the names of each kind in the version that runs, and those of earlier versions that it lacks: resources
-- that have such a name are kept.
ALTER TABLE dbcontroller.derivation
    ADD COLUMN shapes text[] NOT NULL DEFAULT '{}',
    ADD COLUMN dropped text[] NOT NULL DEFAULT '{}';

-- +goose Down
ALTER TABLE dbcontroller.derivation DROP COLUMN shapes, DROP COLUMN dropped;
