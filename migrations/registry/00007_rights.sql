-- +goose Up
-- The rights by resource, as protobuf (dbcontroller.registry.v1.Rights); no row: none were declared.
CREATE TABLE dbcontroller_registry.rights (
    singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT rights_is_one_row CHECK (singleton),
    rights    bytea NOT NULL
);
-- A change of the rights has neither region nor service.
ALTER TABLE dbcontroller_registry.change ADD COLUMN rights bytea;

-- +goose Down
ALTER TABLE dbcontroller_registry.change DROP COLUMN rights;
DROP TABLE dbcontroller_registry.rights;
