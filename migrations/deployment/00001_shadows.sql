-- +goose Up
-- The constraint store of one deployment. Inside, keys are bigint and names stand once.
--
-- The tables that can have millions of rows carry no foreign keys: one trigger a row would cost the set-based
-- statements more than their own work. The locks of package schema/shadow hold them together instead: whoever adds a
-- row about a resource holds a lock on its shadow, and whoever removes a shadow holds FOR UPDATE.
CREATE SCHEMA IF NOT EXISTS dbcontroller;

-- Which deployment this database belongs to, and what it runs.
CREATE TABLE dbcontroller.meta (
    singleton   boolean PRIMARY KEY DEFAULT true CONSTRAINT meta_is_one_row CHECK (singleton),
    service     text NOT NULL,
    region      text NOT NULL,
    -- With the server's system identifier and timeline, the epoch of positions and tokens.
    database_id uuid NOT NULL DEFAULT gen_random_uuid(),
    -- Authenticates resume tokens.
    token_key   bytea NOT NULL DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'),
    -- The version that runs, and a number that moves when it is switched: a write validated before fails at its commit.
    version     text NOT NULL DEFAULT '',
    generation  bigint NOT NULL DEFAULT 0,
    -- Change rows of transactions up to this one may be compacted away; an older token is reset.
    compacted   xid8 NOT NULL DEFAULT '0',
    -- The last environment that the registry sent, so that a controller starts while the registry is away.
    environment bytea
);

-- Names, once.
CREATE TABLE dbcontroller.deployment (
    id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service text COLLATE "C" NOT NULL,
    region  text COLLATE "C" NOT NULL,
    CONSTRAINT deployment_name UNIQUE (service, region)
);
CREATE TABLE dbcontroller.kind (
    id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service text COLLATE "C" NOT NULL,
    kind    text COLLATE "C" NOT NULL,
    CONSTRAINT kind_name UNIQUE (service, kind)
);
CREATE TABLE dbcontroller.field (
    id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    path text COLLATE "C" NOT NULL,
    CONSTRAINT field_path UNIQUE (path)
);

-- One sequence for own resources and foreign targets: a reference's target_id tells which of the two it is.
CREATE SEQUENCE dbcontroller.object_id AS bigint;
-- Every change of every resource takes a new revision.
CREATE SEQUENCE dbcontroller.revision AS bigint;

-- The row that stands for a resource of this deployment.
CREATE TABLE dbcontroller.shadow (
    id            bigint PRIMARY KEY DEFAULT nextval('dbcontroller.object_id'),
    uid           uuid NOT NULL,
    kind_id       integer NOT NULL,
    state         smallint NOT NULL CONSTRAINT shadow_state CHECK (state IN (1, 2)), -- 1 ACTIVE, 2 DELETING
    shard         smallint NOT NULL,
    revision      bigint NOT NULL,
    generation    bigint NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    name          text COLLATE "C" NOT NULL,
    CONSTRAINT shadow_name UNIQUE (kind_id, name), -- at most one live uid a name; also the order of lists
    CONSTRAINT shadow_uid UNIQUE (uid)             -- peers speak of uids
) WITH (fillfactor = 90); -- room for the new row version of an update on the same page

CREATE INDEX shadow_deleting ON dbcontroller.shadow (id) WHERE state = 2; -- what is still going, for health and metrics

-- A waiting delete keeps new references away until then. In a table of its own: the lock of a busy shadow, which many
-- share, may be long in coming. Advisory: no decision depends on it.
CREATE TABLE dbcontroller.closing (
    target_id bigint NOT NULL,
    delete_id uuid NOT NULL, -- of the call that waits
    until     timestamptz NOT NULL,
    CONSTRAINT closing_pkey PRIMARY KEY (target_id, delete_id)
);

-- What users store; resources of services with tables of their own have no row here.
CREATE TABLE dbcontroller.resource (
    id     bigint PRIMARY KEY,
    labels jsonb,
    body   jsonb NOT NULL
) WITH (fillfactor = 90);

-- A resource of another deployment that something here refers to.
CREATE TABLE dbcontroller.foreign_target (
    id            bigint PRIMARY KEY DEFAULT nextval('dbcontroller.object_id'),
    uid           uuid NOT NULL,
    deployment_id integer NOT NULL,
    kind_id       integer NOT NULL,
    name          text COLLATE "C" NOT NULL,
    CONSTRAINT foreign_target_uid UNIQUE (uid, deployment_id) -- deletions come by deployment and uid
);

CREATE INDEX foreign_target_deployment ON dbcontroller.foreign_target (deployment_id); -- who is still pointed to

-- References of resources that are ACTIVE; those of one that is marked DELETING are dropped with the mark.
CREATE TABLE dbcontroller.reference (
    holder_id bigint NOT NULL,
    target_id bigint NOT NULL, -- shadow.id or foreign_target.id
    attempt   uuid,            -- null for a local target
    field_id  integer NOT NULL,
    behaviour smallint NOT NULL,
    CONSTRAINT reference_pkey PRIMARY KEY (holder_id, field_id, target_id)
);
-- "Who refers to this target, and how": the holders of one behaviour lie together, in the order they are paged in.
CREATE INDEX reference_target ON dbcontroller.reference (target_id, behaviour, holder_id);

-- Decisions on attempts. The primary key is where a late commit and a resolver meet: who inserts first decides.
CREATE TABLE dbcontroller.attempt (
    id         uuid PRIMARY KEY,
    committed  boolean NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX attempt_age ON dbcontroller.attempt (decided_at); -- what is old is removed

-- A holder elsewhere refers, or may be about to refer, to a resource here.
CREATE TABLE dbcontroller.blockade (
    target_id      bigint NOT NULL,
    holder_uid     uuid NOT NULL,
    attempt        uuid NOT NULL,
    field_id       integer NOT NULL,
    deployment_id  integer NOT NULL, -- the holder's
    holder_kind_id integer NOT NULL,
    behaviour      smallint NOT NULL,
    expires_at     timestamptz,      -- tentative until then; null: confirmed, which only BLOCK can be
    holder_name    text NOT NULL,
    CONSTRAINT blockade_pkey PRIMARY KEY (target_id, holder_uid, field_id, attempt),
    CONSTRAINT blockade_confirmed CHECK (expires_at IS NOT NULL OR behaviour = 1)
);
CREATE INDEX blockade_attempt ON dbcontroller.blockade (attempt);                                -- confirm, release
CREATE INDEX blockade_tentative ON dbcontroller.blockade (expires_at) WHERE expires_at IS NOT NULL; -- the sweep

-- Attempts of which something was released or found gone: they establish nothing any more (I7).
CREATE TABLE dbcontroller.closed_attempt (
    attempt   uuid PRIMARY KEY,
    closed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX closed_attempt_age ON dbcontroller.closed_attempt (closed_at);

-- A deployment holds unsetting or cascading references to this target.
CREATE TABLE dbcontroller.holder_entry (
    target_id     bigint NOT NULL,
    deployment_id integer NOT NULL,
    CONSTRAINT holder_entry_pkey PRIMARY KEY (target_id, deployment_id)
);

-- A deployment must be told of this deletion, and has not acknowledged it. Read as a feed by (xid, seq): package
-- schema/shadow, Position.
CREATE TABLE dbcontroller.notice (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    target_id     bigint NOT NULL,
    deployment_id integer NOT NULL
);
CREATE INDEX notice_xid ON dbcontroller.notice (xid);
CREATE INDEX notice_target ON dbcontroller.notice (target_id);
CREATE INDEX notice_deployment ON dbcontroller.notice (deployment_id, seq);

-- Outstanding work: what this deployment still owes to others and to itself. Read as a feed by (xid, seq).
CREATE TABLE dbcontroller.work (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    action        smallint NOT NULL, -- 1 confirm, 2 release, 3 finalise
    shard         smallint NOT NULL,
    deployment_id integer NOT NULL,  -- who it is for
    attempt       uuid,              -- confirm, release
    holder_uid    uuid,              -- release of one blockade; null: of the whole attempt
    field_id      integer,
    target_uid    uuid,
    target_id     bigint,            -- finalise
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX work_xid ON dbcontroller.work (xid);

-- What happened to resources, for watches. The newest part of history; older rows are compacted away.
CREATE TABLE dbcontroller.change (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    uid        uuid NOT NULL,
    revision   bigint NOT NULL,
    generation bigint NOT NULL,
    kind_id    integer NOT NULL,
    state      smallint NOT NULL, -- 1 ACTIVE, 2 DELETING, 3 gone
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    name       text NOT NULL,
    labels     jsonb,
    body       jsonb              -- null when gone
);
CREATE INDEX change_xid ON dbcontroller.change (xid);

-- +goose Down
DROP SCHEMA dbcontroller CASCADE;
