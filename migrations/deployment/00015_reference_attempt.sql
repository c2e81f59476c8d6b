-- +goose Up
-- The references of an attempt: when its confirm finds nothing at their targets, they are compared and established again.
CREATE INDEX reference_attempt ON dbcontroller.reference (attempt) WHERE attempt IS NOT NULL;

-- +goose Down
DROP INDEX dbcontroller.reference_attempt;
