-- +goose Up
-- What came of writes that carried a request id: the same id and content get the same answer. Refusals stand in the
-- same unique place that a committing transaction uses, so that a refused request never commits elsewhere (I29).
CREATE TABLE dbcontroller.request (
    id         uuid PRIMARY KEY,
    hash       bytea NOT NULL, -- of what was asked for
    outcome    jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX request_age ON dbcontroller.request (created_at); -- what is old is removed

-- +goose Down
DROP TABLE dbcontroller.request;
