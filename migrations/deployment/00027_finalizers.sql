-- +goose Up
-- compatible with programs that know migration 20
-- Who has to clean up before a resource in DELETING is removed: of a kind the names of the finalizers in the version that runs, of a
-- resource those that are left. The rows of kinds are written with a switch of the version, so that every process marks resources by them,
-- also one that has not heard of the switch. Null: none.
ALTER TABLE dbcontroller.kind ADD COLUMN finalizers text[];
ALTER TABLE dbcontroller.shadow ADD COLUMN finalizers text[];
-- What a controller reports on a resource, beside its body, with a generation of its own. Null: nothing.
ALTER TABLE dbcontroller.resource ADD COLUMN status jsonb, ADD COLUMN status_generation bigint;
ALTER TABLE dbcontroller.change ADD COLUMN finalizers text[], ADD COLUMN status jsonb, ADD COLUMN status_generation bigint;

-- +goose Down
ALTER TABLE dbcontroller.change DROP COLUMN finalizers, DROP COLUMN status, DROP COLUMN status_generation;
ALTER TABLE dbcontroller.resource DROP COLUMN status, DROP COLUMN status_generation;
ALTER TABLE dbcontroller.shadow DROP COLUMN finalizers;
ALTER TABLE dbcontroller.kind DROP COLUMN finalizers;
