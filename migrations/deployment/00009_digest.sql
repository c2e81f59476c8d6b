-- +goose Up
-- What the version that runs says, after its name: a version can be described anew under its name while nothing runs it.
-- Empty, or of another version, when a program switched that knew of none.
ALTER TABLE dbcontroller.meta ADD COLUMN digest text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE dbcontroller.meta DROP COLUMN digest;
