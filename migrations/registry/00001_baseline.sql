-- +goose Up
-- EnvRegistry: the regions, the versions of services, the deployments, and the rights that are declared for them.
CREATE SCHEMA IF NOT EXISTS dbcontroller_registry;

CREATE TABLE dbcontroller_registry.meta (
    singleton   boolean PRIMARY KEY DEFAULT true CONSTRAINT meta_is_one_row CHECK (singleton),
    -- Moves with every change; its row is also the lock that puts changes in order.
    revision    bigint NOT NULL DEFAULT 0,
    database_id uuid NOT NULL DEFAULT gen_random_uuid(),
    -- The first one makes the tokens of watches and the ids of parts of the history; each authenticates them: migrate rotate-keys keeps the one before.
    token_keys  bytea[] NOT NULL DEFAULT ARRAY[decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')],
    -- Rows of change of transactions up to this one may have been removed.
    compacted   xid8 NOT NULL DEFAULT '0',
    -- An epoch begins when the server is another one than before: a standby was promoted, a backup restored. Tokens are of an epoch.
    epoch       uuid, -- null before the first one
    server      text, -- as the server says
    timeline    text,
    history     text NOT NULL DEFAULT '', -- the present part of the history; empty before the first
    files       bytea -- the digest of the files that a server has applied by itself last
);
INSERT INTO dbcontroller_registry.meta DEFAULT VALUES;

-- The parts of the registry's history, in order: each server that starts begins one. Its id came with each revision that was read in it. A copy of an
-- earlier database that goes on by itself has other parts: a deployment that has read a revision of a part that the copy lacks, or that had ended before
-- that revision, reveals that commits are lost.
CREATE TABLE dbcontroller_registry.history (
    seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id     text NOT NULL CONSTRAINT history_id UNIQUE,
    began  bigint NOT NULL,                -- after this revision
    forked boolean NOT NULL DEFAULT false  -- commits of it are known to be lost
);

CREATE TABLE dbcontroller_registry.region (
    name text COLLATE "C" PRIMARY KEY
);

-- Descriptors by version, as protobuf (dbcontroller.schema.v1.ServiceDescriptor).
CREATE TABLE dbcontroller_registry.service_version (
    service    text COLLATE "C" NOT NULL,
    version    text COLLATE "C" NOT NULL,
    descriptor bytea NOT NULL,
    CONSTRAINT service_version_pkey PRIMARY KEY (service, version)
);

CREATE TABLE dbcontroller_registry.deployment (
    service    text COLLATE "C" NOT NULL,
    region     text COLLATE "C" NOT NULL REFERENCES dbcontroller_registry.region,
    version    text COLLATE "C" NOT NULL,
    address    text NOT NULL DEFAULT '',
    generation bigint NOT NULL DEFAULT 0,
    disabled   boolean NOT NULL DEFAULT false,
    database   uuid, -- the identity of its database; null: not met yet
    -- In which server's database an operator has applied it last, as the server says of itself. After a failover or a restore the list may lack
    -- deployments, and it counts as whole when all that it has were applied again.
    applied_in text,
    heard_in   text NOT NULL DEFAULT '', -- the part of the history in which it told last what it has seen
    CONSTRAINT deployment_pkey PRIMARY KEY (service, region),
    CONSTRAINT deployment_version FOREIGN KEY (service, version) REFERENCES dbcontroller_registry.service_version
);

-- The version that a removed deployment ran last, with its descriptor, which can be removed or described anew afterwards: the deployment's database still
-- has that version's resources when the deployment is applied again.
CREATE TABLE dbcontroller_registry.removed (
    service    text COLLATE "C" NOT NULL,
    region     text COLLATE "C" NOT NULL,
    version    text COLLATE "C" NOT NULL,
    descriptor bytea NOT NULL,
    database   uuid,
    CONSTRAINT removed_pkey PRIMARY KEY (service, region)
);

-- Deployments that an operator declared gone for ever: their names are not used again, since others still know them.
CREATE TABLE dbcontroller_registry.decommissioned (
    service text COLLATE "C" NOT NULL,
    region  text COLLATE "C" NOT NULL,
    reason  text NOT NULL,
    said_by text NOT NULL,
    said_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT decommissioned_pkey PRIMARY KEY (service, region)
);

-- The rights by resource, as protobuf (dbcontroller.registry.v1.Rights); no row: none were declared.
CREATE TABLE dbcontroller_registry.rights (
    singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT rights_is_one_row CHECK (singleton),
    rights    bytea NOT NULL
);

-- For watches of the environment, one row for each changed row of it: a region has no service, a described version has no region, a change of the rights
-- has neither.
CREATE TABLE dbcontroller_registry.change (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
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
    descriptor bytea,
    rights     bytea,
    database   uuid
);
CREATE INDEX change_xid ON dbcontroller_registry.change (xid); -- new rows for a watch

-- Who changed the environment, when, and what changed: a row for each change that an operator made.
CREATE TABLE dbcontroller_registry.revision (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    revision   bigint NOT NULL, -- of the environment after it
    changed_at timestamptz NOT NULL DEFAULT now(),
    actor      text NOT NULL,
    proof      text NOT NULL,
    request_id uuid NOT NULL,
    method     text NOT NULL,
    reason     text NOT NULL,
    changes    text[] NOT NULL
);

-- +goose Down
DROP SCHEMA dbcontroller_registry CASCADE;
