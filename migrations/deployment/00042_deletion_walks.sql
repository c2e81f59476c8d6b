-- +goose Up
-- compatible with programs that know migration 20
-- The holders of one deleted resource that are acted upon page by page: how many there are still, counted when the walk over them begins. One row
-- for each walk, which replaces that of an earlier walk over the same holders, of whatever process; the end of the walk removes it.
CREATE TABLE dbcontroller.deletion_walk (
    target     uuid NOT NULL CONSTRAINT deletion_walk_pkey PRIMARY KEY, -- uid of the deleted resource
    deletion   uuid NOT NULL,                                          -- as in dbcontroller.deletion_progress
    cascades   bigint NOT NULL,                                        -- references to be acted upon, of holders to be removed
    unsets     bigint NOT NULL,                                        -- and to be unset
    passed     bigint NOT NULL,                                        -- references that the walk has acted upon
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE INDEX deletion_walk_of ON dbcontroller.deletion_walk (deletion);

-- +goose Down
DROP TABLE dbcontroller.deletion_walk;
