-- +goose Up
-- compatible with programs that know migration 20
-- Open wishes are looked for 40 times a second while any table is strict, beside the answered ones of the last 5 minutes.
CREATE INDEX wish_open ON dbcontroller.wish (asked_at) WHERE NOT answered;

-- +goose Down
DROP INDEX dbcontroller.wish_open;
