-- +goose Up
-- What the watches of the environment read. With the server's system identifier and timeline, database_id is the epoch
-- of their tokens, which token_key authenticates; the rows of transactions up to compacted may have been removed.
ALTER TABLE dbcontroller_registry.meta
    ADD COLUMN database_id uuid NOT NULL DEFAULT gen_random_uuid(),
    ADD COLUMN token_key   bytea NOT NULL DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'),
    ADD COLUMN compacted   xid8 NOT NULL DEFAULT '0';

-- One row for each changed row of the environment: a region has no service, a described version has no region.
CREATE TABLE dbcontroller_registry.change (
    seq        bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT change_pkey PRIMARY KEY,
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    changed_at timestamptz NOT NULL DEFAULT now(),
    revision   bigint NOT NULL,
    gone       boolean NOT NULL,
    region     text COLLATE "C",
    service    text COLLATE "C",
    version    text COLLATE "C",
    address    text,
    generation bigint,
    disabled   boolean,
    descriptor bytea
);
-- Finds what is new to a watch.
CREATE INDEX change_xid ON dbcontroller_registry.change (xid);

-- +goose Down
DROP TABLE dbcontroller_registry.change;
ALTER TABLE dbcontroller_registry.meta DROP COLUMN database_id, DROP COLUMN token_key, DROP COLUMN compacted;
