-- +goose Up
-- compatible with programs that know migration 20
-- Handlers that an operator has paused: in the row of this deployment for all deployments, in the row of another one for that one alone.
-- Null: none. The decisions are in dbcontroller.word. Processes that do not know this column go on.
ALTER TABLE dbcontroller.deployment ADD COLUMN paused_handlers text[];

-- +goose Down
ALTER TABLE dbcontroller.deployment DROP COLUMN paused_handlers;
