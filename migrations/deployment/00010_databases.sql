-- +goose Up
-- Another deployment is known by the identity of its database (meta.database_id there), which failovers and restored backups
-- keep. What an empty or a wrong database says in its name counts for nothing.
ALTER TABLE dbcontroller.deployment
    ADD COLUMN database_id uuid,                      -- of its database, as it was met; null: not met yet
    ADD COLUMN referred    boolean NOT NULL DEFAULT true, -- its resources have referred to resources here
    ADD COLUMN owned       boolean NOT NULL DEFAULT true, -- its resources have had owners here
    ADD COLUMN counted_in  uuid;                      -- the last epoch of this database whose recovery has counted it
-- Of those that are here it is not known.
ALTER TABLE dbcontroller.deployment ALTER COLUMN referred SET DEFAULT false, ALTER COLUMN owned SET DEFAULT false;

-- What operators have said of other deployments, beside that they are gone for ever.
CREATE TABLE dbcontroller.word (
    seq           bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT word_pkey PRIMARY KEY,
    deployment_id integer NOT NULL,
    what          text NOT NULL, -- DATABASE_ACCEPTED or COMPARISON_WAIVED
    reason        text NOT NULL,
    said_by       text NOT NULL,
    said_at       timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE dbcontroller.word;
ALTER TABLE dbcontroller.deployment DROP COLUMN database_id, DROP COLUMN referred, DROP COLUMN owned, DROP COLUMN counted_in;
