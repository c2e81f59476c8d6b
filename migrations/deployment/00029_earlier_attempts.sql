-- +goose Up
-- compatible with programs that know migration 20
-- One release stands for the attempts of a repeated write: the newest one, and the earlier ones that are not released yet.
ALTER TABLE dbcontroller.work ADD COLUMN earlier uuid[];

-- +goose Down
ALTER TABLE dbcontroller.work DROP COLUMN earlier;
