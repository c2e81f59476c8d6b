-- +goose Up
-- compatible with programs that know migration 20
-- What an operator has paused: in the row of this deployment, marking and removing as a whole; in the row of another one, what is done here
-- for its deletions. The decisions are in dbcontroller.word. Processes that do not know this column
-- go on.
ALTER TABLE dbcontroller.deployment ADD COLUMN paused boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE dbcontroller.deployment DROP COLUMN paused;
