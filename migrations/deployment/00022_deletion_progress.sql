-- +goose Up
-- compatible with programs that know migration 20
-- What each deletion has found and done in this deployment: one row for each, a few days long.
CREATE TABLE dbcontroller.deletion_progress (
    id         uuid NOT NULL CONSTRAINT deletion_progress_pkey PRIMARY KEY, -- the same in every deployment that the deletion reaches
    root       text NOT NULL,                                              -- full name of the resource that was deleted first
    found      bigint NOT NULL,                                            -- resources that were marked, or removed at once
    removed    bigint NOT NULL,
    unset      bigint NOT NULL,                                            -- references
    started_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE INDEX deletion_progress_running ON dbcontroller.deletion_progress (id) WHERE removed < found;
CREATE INDEX deletion_progress_age ON dbcontroller.deletion_progress USING brin (updated_at);

-- +goose Down
DROP TABLE dbcontroller.deletion_progress;
