-- +goose Up
-- compatible with programs that know migration 20
-- Captured rows are looked through for pauses that are too long for their number of tries. From 14 tries on the pause is an hour, and
-- captured_due finds what is due later.
CREATE INDEX captured_late ON dbcontroller.captured (tries, due) WHERE tries < 14;

-- +goose Down
DROP INDEX dbcontroller.captured_late;
