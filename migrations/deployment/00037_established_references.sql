-- +goose Up
-- compatible with programs that know migration 20
-- Of a confirm: the references that its attempt established at the other deployment. Null: not known, of processes without this column.
ALTER TABLE dbcontroller.work ADD COLUMN established integer;

-- +goose Down
ALTER TABLE dbcontroller.work DROP COLUMN established;
