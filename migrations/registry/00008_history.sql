-- +goose Up
-- compatible with programs that know migration 7
-- The parts of the registry's history, in order: each server that starts begins one. Its id came with each revision that was read
-- in it. A copy of an earlier database that goes on by itself has other parts: whoever has a revision of a part that the copy lacks,
-- or had ended before that revision, reveals that commits are lost. forked: this is known.
CREATE TABLE dbcontroller_registry.history (
    seq    bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT history_pkey PRIMARY KEY,
    id     text NOT NULL CONSTRAINT history_id UNIQUE,
    began  bigint NOT NULL, -- after this revision
    forked boolean NOT NULL DEFAULT false
);
-- The present part; empty before the first.
ALTER TABLE dbcontroller_registry.meta ADD COLUMN history text NOT NULL DEFAULT '';

-- heard_in: the part in which the deployment told last what it has seen. database: the identity of its database.
ALTER TABLE dbcontroller_registry.deployment ADD COLUMN heard_in text NOT NULL DEFAULT '', ADD COLUMN database uuid;
ALTER TABLE dbcontroller_registry.removed ADD COLUMN database uuid;
ALTER TABLE dbcontroller_registry.change ADD COLUMN database uuid;

-- +goose Down
ALTER TABLE dbcontroller_registry.change DROP COLUMN database;
ALTER TABLE dbcontroller_registry.removed DROP COLUMN database;
ALTER TABLE dbcontroller_registry.deployment DROP COLUMN heard_in, DROP COLUMN database;
ALTER TABLE dbcontroller_registry.meta DROP COLUMN history;
DROP TABLE dbcontroller_registry.history;
