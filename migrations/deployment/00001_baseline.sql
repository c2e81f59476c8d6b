-- +goose Up
-- The constraint store of one deployment. Inside, keys are bigint and names stand once.
--
-- The tables that can have millions of rows carry no foreign keys: one trigger a row would cost the set-based statements more than their own
-- work. The locks of package schema/shadow hold them together instead: a transaction that adds a row about a resource holds a lock on its shadow,
-- and one that removes a shadow holds FOR UPDATE.
CREATE SCHEMA IF NOT EXISTS dbcontroller;

-- One sequence for own resources and foreign targets: a reference's target_id tells which of the two it is.
CREATE SEQUENCE dbcontroller.object_id AS bigint;
-- Every change of every resource takes a new revision.
CREATE SEQUENCE dbcontroller.revision AS bigint;
CREATE SEQUENCE dbcontroller.cause_id AS bigint;
-- Questions for rights.
CREATE SEQUENCE dbcontroller.question AS bigint;
-- Every transaction that decides takes a number. They only grow: a database that gives out a number with which a process has committed
-- before is an earlier copy.
CREATE SEQUENCE dbcontroller.mark AS bigint;
SELECT nextval('dbcontroller.mark'); -- a sequence that gave out nothing reads as if it had given out its first number

-- Which deployment this database belongs to, and what it runs.
CREATE TABLE dbcontroller.meta (
    singleton       boolean PRIMARY KEY DEFAULT true CONSTRAINT meta_is_one_row CHECK (singleton),
    service         text NOT NULL,
    region          text NOT NULL,
    -- The identity of the database, which failovers and restored backups keep.
    database_id     uuid NOT NULL DEFAULT gen_random_uuid(),
    -- The first one makes resume tokens; each authenticates them: migrate rotate-keys keeps the one before.
    token_keys      bytea[] NOT NULL DEFAULT ARRAY[decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')],
    -- The version that runs, the digest of its descriptor, and a number that moves when either is switched: a write validated before fails
    -- at its commit. A version can be described anew under its name while nothing runs it.
    version         text NOT NULL DEFAULT '',
    digest          text NOT NULL DEFAULT '',
    generation      bigint NOT NULL DEFAULT 0,
    -- Rows of change of transactions up to this one may be compacted away; an older token is reset.
    compacted       xid8 NOT NULL DEFAULT '0',
    -- The last environment that the registry sent, so that a controller starts while the registry is away.
    environment     bytea,
    -- An epoch of the database ends with a failover, a restored backup, a copy: commits may be lost, and transaction ids and timelines begin
    -- anew. server and timeline are those noticed last: an epoch that is not noticed yet differs from them.
    epoch           uuid,                           -- as others are told
    server          text,                           -- as the server says
    timeline        text,
    awaiting        boolean NOT NULL DEFAULT false, -- it is not known yet who may refer to resources here
    -- The greatest number of an ABORTED decision that was forgotten: an attempt that began before it cannot commit, since the decision on it may
    -- be among the forgotten ones.
    forgotten       bigint NOT NULL DEFAULT 0,
    -- The start of the server that a process has noticed last, with the value of the sequence mark at that time.
    started_at      timestamptz,
    started_mark    bigint NOT NULL DEFAULT 0,
    positions_until timestamptz                     -- how long deployments whose position is due are waited for
);

-- Names, once.
CREATE TABLE dbcontroller.deployment (
    id              integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service         text COLLATE "C" NOT NULL,
    region          text COLLATE "C" NOT NULL,
    pointed_to      boolean NOT NULL DEFAULT false, -- resources here have referred to resources there: its deletions concern this deployment
    referred        boolean NOT NULL DEFAULT false, -- its resources have referred to resources here
    owned           boolean NOT NULL DEFAULT false, -- its resources have had owners here
    database_id     uuid,                           -- meta.database_id there, as it was met; null: not met yet
    epoch           uuid,                           -- meta.epoch there, as it was told; null: not told any
    uncompared      boolean NOT NULL DEFAULT false, -- its database began a new epoch, and has not compared its references to resources here since
    uncompared_kinds integer[],                     -- of resources here to which its database refers in that epoch; null: not known, any
    unconfirmed     boolean NOT NULL DEFAULT false, -- it may refer to resources here, and has not compared since the epoch here began
    unconfirmed_kinds integer[],                    -- of resources here to which it refers, as it has said in that epoch; null: not known, any
    counted_in      uuid,                           -- the last epoch of this database whose recovery has counted it
    position_due    boolean NOT NULL DEFAULT false, -- it has not shown since the start of the server how far it has seen this database
    -- What an operator has paused: in the row of this deployment, marking and removing as a whole, and handlers for all deployments; in the row of
    -- another one, what is done here for its deletions, and handlers for that one alone. The decisions are in dbcontroller.word.
    paused          boolean NOT NULL DEFAULT false,
    paused_handlers text[],
    CONSTRAINT deployment_name UNIQUE (service, region)
);
CREATE INDEX deployment_unconfirmed ON dbcontroller.deployment (id) WHERE unconfirmed OR uncompared;

CREATE TABLE dbcontroller.kind (
    id            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service       text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    finalizers    text[],    -- of the version that runs
    until_removed integer[], -- fields of the version that runs whose references a resource in DELETING keeps
    CONSTRAINT kind_name UNIQUE (service, kind)
);

CREATE TABLE dbcontroller.field (
    id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    path text COLLATE "C" NOT NULL,
    CONSTRAINT field_path UNIQUE (path)
);

-- The row that stands for a resource of this deployment.
CREATE TABLE dbcontroller.shadow (
    id             bigint PRIMARY KEY DEFAULT nextval('dbcontroller.object_id'),
    uid            uuid NOT NULL,
    kind_id        integer NOT NULL,
    state          smallint NOT NULL CONSTRAINT shadow_state CHECK (state IN (1, 2)), -- 1 ACTIVE, 2 DELETING
    shard          smallint NOT NULL,
    revision       bigint NOT NULL,
    generation     bigint NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    name           text COLLATE "C" NOT NULL,
    hidden         boolean NOT NULL DEFAULT false, -- seen as gone by readers: for good in DELETING, until its scheduled deletion ends in ACTIVE
    block_deletion boolean NOT NULL DEFAULT false, -- no delete takes it
    derivation     integer NOT NULL DEFAULT 0,     -- moves when the references are derived anew: a write that was compared with the earlier ones starts again
    frozen         boolean NOT NULL DEFAULT false, -- dbcontroller.frozen has or had a row of it: look there, behind the lock of this row
    finalizers     text[],                         -- that still have to be cleared; null: none; empty: it gets them when nothing blocks it
    CONSTRAINT shadow_name UNIQUE (kind_id, name), -- at most one live uid a name; also the order of lists
    CONSTRAINT shadow_uid UNIQUE (uid),            -- peers speak of uids
    -- The grammar of names, as package schema has it (id.go) and docs/protocol.md writes it. Names in other tables came through the same check, or
    -- were copied from here. Few names have a dot after a slash; only these are looked at for the ids . and ..
    CONSTRAINT shadow_name_grammar CHECK (
        octet_length(name) <= 512
        AND name ~ '^[a-z][A-Za-z0-9]*/(?:[A-Za-z0-9._~!$&''()*+,;=:@-]|%(?:[0189A-F][0-9A-F]|2[0235F]|3[CEF]|5[B-E]|60|7[BCDF]))+(?:/[a-z][A-Za-z0-9]*/(?:[A-Za-z0-9._~!$&''()*+,;=:@-]|%(?:[0189A-F][0-9A-F]|2[0235F]|3[CEF]|5[B-E]|60|7[BCDF]))+)*$'
        AND (strpos(name, '/.') = 0 OR name !~ '/\.\.?(?:/|$)'))
) WITH (fillfactor = 90); -- room for the new row version of an update on the same page
CREATE INDEX shadow_deleting ON dbcontroller.shadow (id) WHERE state = 2; -- for health and metrics

-- A delete that waits keeps new references away until then. In a table of its own: the lock of a busy shadow, which many share, may be long in
-- coming. Advisory: no decision depends on it.
CREATE TABLE dbcontroller.closing (
    target_id bigint NOT NULL,
    delete_id uuid NOT NULL, -- of the call that waits
    until     timestamptz NOT NULL,
    CONSTRAINT closing_pkey PRIMARY KEY (target_id, delete_id)
);

-- Atomic deletions that have frozen members here. After a new epoch of this database, or of the coordinator's, their decisions are asked for again.
CREATE TABLE dbcontroller.freeze (
    deletion      uuid PRIMARY KEY, -- the attempt that the coordinator decides
    deployment_id integer NOT NULL, -- the coordinator
    committed     boolean NOT NULL DEFAULT false,
    expires_at    timestamptz NOT NULL, -- from then on the coordinator is asked for its decision; of a committed deletion, others whether marks may come; infinity: it is scheduled
    deleted_at    timestamptz,      -- when the deletion was scheduled; null: it is not
    purge_at      timestamptz,      -- when a scheduled deletion is carried out, unless it is undeleted
    -- Of a scheduled deletion, where it is coordinated: the other deployments that have members, who deleted, the request, why it could not be carried out, and when it is tried again.
    participants  integer[],
    actor         text,
    request_id    uuid,
    reason        text,
    try_at        timestamptz,
    root          text NOT NULL     -- the name of the first resource that the deletion names
);
CREATE INDEX freeze_expires ON dbcontroller.freeze (expires_at);
CREATE INDEX freeze_purge ON dbcontroller.freeze (purge_at) WHERE purge_at IS NOT NULL;

-- The members: their references and owners do not change, and nothing begins to refer to them. A row leaves with the mark of its resource, or when the deletion
-- is aborted. The deployment and the uid are of the target or owner for which it is a member; null: the deletion names it.
CREATE TABLE dbcontroller.frozen (
    target_id         bigint NOT NULL,
    deletion          uuid NOT NULL,
    via_deployment_id integer,
    via_uid           uuid,
    CONSTRAINT frozen_pkey PRIMARY KEY (target_id, deletion)
);
CREATE INDEX frozen_deletion ON dbcontroller.frozen (deletion);

-- What users store; resources of attached tables have no row here.
CREATE TABLE dbcontroller.resource (
    id                bigint PRIMARY KEY,
    labels            jsonb,
    body              jsonb NOT NULL,
    owners            jsonb, -- as users see them; owner_reference is made from it, as references are made from bodies
    status            jsonb,
    status_generation bigint -- the generation of the resource that the status describes
) WITH (fillfactor = 90);

-- A resource of another deployment that something here refers to, and the rights of this deployment to refer to it without asking
-- (docs/protocol.md, Delegations). A right counts in the two epochs in which it was granted.
CREATE TABLE dbcontroller.foreign_target (
    id             bigint PRIMARY KEY DEFAULT nextval('dbcontroller.object_id'),
    uid            uuid NOT NULL,
    deployment_id  integer NOT NULL,
    kind_id        integer NOT NULL,
    name           text COLLATE "C" NOT NULL,
    turn           bigint NOT NULL DEFAULT nextval('dbcontroller.object_id'), -- is new whenever a right ends, so that no answer to an earlier question fits
    -- Of several targets of one name, rows of tables refer to that with the greatest: which was inserted, or to which a right was granted, last. (The others were removed,
    -- or a restore of their database has lost them.)
    latest         bigint NOT NULL DEFAULT nextval('dbcontroller.object_id'),
    acting_epoch   uuid,        -- of the target's database when it granted the right to act; null: there is none
    acting_own     uuid,        -- of this database when it asked
    acting_attempt uuid,        -- under which the right to act was asked for without a reference
    block_epoch    uuid,        -- of the target's database when it granted the right to block; null: there is none
    block_own      uuid,        -- of this database when it asked
    -- Of the blockade there that stands for all references written under the right to block: its proxy, whose holder uid is that of the target.
    -- It outlives the right until no reference is left under it. Null: there is none.
    block_attempt  uuid,
    kept_until     timestamptz, -- rights that were asked for are not returned before, though nothing refers yet
    -- A role of the database, or the identity of a caller, that asked for the right to block before a row or a body used it. The blockade of the proxy is not confirmed
    -- until then. Null: the right is used.
    asked_by       text,
    CONSTRAINT foreign_target_uid UNIQUE (uid, deployment_id) -- deletions come by deployment and uid
);
CREATE INDEX foreign_target_deployment ON dbcontroller.foreign_target (deployment_id, name); -- who is still pointed to
CREATE INDEX foreign_target_acting ON dbcontroller.foreign_target (deployment_id, name, kind_id) WHERE acting_epoch IS NOT NULL;
CREATE INDEX foreign_target_block ON dbcontroller.foreign_target (deployment_id, name, kind_id) WHERE block_epoch IS NOT NULL;
CREATE INDEX foreign_target_proxy ON dbcontroller.foreign_target (id) WHERE block_attempt IS NOT NULL;
CREATE INDEX foreign_target_unused ON dbcontroller.foreign_target (deployment_id, asked_by) WHERE asked_by IS NOT NULL; -- how many has one asked for?

-- Targets whose rights are about to end: a write does not begin to share their rows, so that the process that ends the right waits for the
-- present writes alone.
CREATE TABLE dbcontroller.ending (
    target_id bigint PRIMARY KEY, -- of foreign_target
    until     timestamptz NOT NULL
);

-- References of resources that are ACTIVE; those of a resource that is marked DELETING are dropped with the mark.
CREATE TABLE dbcontroller.reference (
    holder_id bigint NOT NULL,
    target_id bigint NOT NULL,                -- shadow.id or foreign_target.id
    attempt   uuid,                           -- null for a local target
    field_id  integer NOT NULL,
    behaviour smallint NOT NULL,
    dangling  boolean NOT NULL DEFAULT false, -- its target went without it: one of the two databases lost commits, and a person decides what becomes of it
    delegated boolean NOT NULL DEFAULT false, -- written under a right; a blocking one has no blockade of its own
    CONSTRAINT reference_pkey PRIMARY KEY (holder_id, field_id, target_id)
);
-- "Who refers to this target, and how": the holders of one behaviour lie together, in the order they are paged in.
CREATE INDEX reference_target ON dbcontroller.reference (target_id, behaviour, holder_id);
-- When the confirm of an attempt finds nothing at its targets, its references are compared and established again.
CREATE INDEX reference_attempt ON dbcontroller.reference (attempt) WHERE attempt IS NOT NULL;
CREATE INDEX reference_dangling ON dbcontroller.reference (holder_id) WHERE dangling;
CREATE INDEX reference_delegated ON dbcontroller.reference (target_id) WHERE delegated AND behaviour = 1;

-- Decisions on attempts. The primary key is where a late commit and a resolver meet: the first insert decides.
CREATE TABLE dbcontroller.attempt (
    id         uuid PRIMARY KEY,
    committed  boolean, -- null: a deletion that is scheduled, and decided later
    decided_at timestamptz NOT NULL DEFAULT now(),
    mark       bigint NOT NULL DEFAULT nextval('dbcontroller.mark')
);
CREATE INDEX attempt_age ON dbcontroller.attempt (decided_at); -- old decisions are removed

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
CREATE INDEX blockade_attempt ON dbcontroller.blockade (attempt); -- confirm, release
CREATE INDEX blockade_tentative ON dbcontroller.blockade (expires_at) WHERE expires_at IS NOT NULL; -- the sweep

-- Attempts of a deployment of which something was released or found gone: they establish nothing any more (I7).
CREATE TABLE dbcontroller.closed_attempt (
    attempt       uuid NOT NULL,
    deployment_id integer NOT NULL,
    closed_at     timestamptz NOT NULL DEFAULT now(), -- a row is removed 25 hours later; that of an undeleted deletion counts for a year, as old as a backup of its coordinator may be
    CONSTRAINT closed_attempt_pkey PRIMARY KEY (attempt, deployment_id)
);
CREATE INDEX closed_attempt_age ON dbcontroller.closed_attempt (closed_at); -- old rows are removed

-- A deployment holds unsetting or cascading references to this target, or may do so without asking.
CREATE TABLE dbcontroller.holder_entry (
    target_id     bigint NOT NULL,
    deployment_id integer NOT NULL,
    look          bigint, -- the number of the question whether it does, while that is open; null: there is none, or a confirm has come since
    CONSTRAINT holder_entry_pkey PRIMARY KEY (target_id, deployment_id)
);

-- The owners of ACTIVE resources; those of a resource that is marked DELETING are dropped with the mark.
CREATE TABLE dbcontroller.owner_reference (
    ownee_id      bigint NOT NULL,
    deployment_id integer NOT NULL,               -- the owner's
    kind_id       integer NOT NULL,
    name          text COLLATE "C" NOT NULL,
    uid           uuid NOT NULL,                  -- zero while it is not known
    flags         smallint NOT NULL,              -- 1 controller, 2 requires_owner_reference, 4 unset_on_delete
    checked       boolean NOT NULL DEFAULT false, -- the owner's deployment said once that it owns
    generation    bigint NOT NULL DEFAULT 0,      -- of the owner's deployment, when it told its version last
    created_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT owner_reference_pkey PRIMARY KEY (ownee_id, deployment_id, kind_id, name, uid)
);
CREATE INDEX owner_reference_owner ON dbcontroller.owner_reference (deployment_id, uid, ownee_id); -- the resources of an owner

-- A deployment has resources that this one owns.
CREATE TABLE dbcontroller.ownee_entry (
    owner_id      bigint NOT NULL,
    deployment_id integer NOT NULL,
    CONSTRAINT ownee_entry_pkey PRIMARY KEY (owner_id, deployment_id)
);

-- Deletions that took an owner without unset_on_delete from a resource that an owner with the flag still keeps: when that owner goes in the same
-- deletion, the resource goes as well (I17).
CREATE TABLE dbcontroller.owner_lost (
    ownee_id    bigint NOT NULL,
    deletion_id uuid NOT NULL,
    CONSTRAINT owner_lost_pkey PRIMARY KEY (ownee_id, deletion_id)
);

-- A deployment must be told of this deletion, and has not acknowledged it. Read as a feed by (xid, seq): package schema/shadow, Position.
CREATE TABLE dbcontroller.notice (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    target_id     bigint NOT NULL,
    deployment_id integer NOT NULL
);
CREATE INDEX notice_xid ON dbcontroller.notice (xid);
CREATE INDEX notice_target ON dbcontroller.notice (target_id);
CREATE INDEX notice_deployment ON dbcontroller.notice (deployment_id, seq);

-- Outstanding work: what this deployment still owes to others and to itself. Read as a feed by (xid, seq). Package schema/shadow/internal/db has the
-- actions, and the columns of each.
CREATE TABLE dbcontroller.work (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid           xid8 NOT NULL DEFAULT pg_current_xact_id(),
    action        smallint NOT NULL,
    shard         smallint NOT NULL,
    deployment_id integer NOT NULL, -- whom it is for
    attempt       uuid,             -- confirm, release
    earlier       uuid[],           -- of a release: attempts of the same write before this one, not released yet
    chain         uuid,             -- of a release: the write, which leaves one release at a deployment that does not answer, however often it is repeated
    established   integer,          -- of a confirm: the references that its attempt established at the other deployment
    holder_uid    uuid,             -- release of one blockade; null: of the whole attempt
    field_id      integer,
    target_uid    uuid,
    target_id     bigint,
    kind_id       integer,
    cursor        text,             -- where work on many resources goes on
    progress      bigint NOT NULL DEFAULT 0,
    reason        text,             -- why it could not be done the last time
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX work_xid ON dbcontroller.work (xid);
CREATE UNIQUE INDEX work_chain ON dbcontroller.work (chain, deployment_id) WHERE chain IS NOT NULL;

-- What happened to resources, for watches. The newest part of history; older rows are compacted away.
CREATE TABLE dbcontroller.change (
    seq               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid               xid8 NOT NULL DEFAULT pg_current_xact_id(),
    uid               uuid NOT NULL,
    revision          bigint NOT NULL,
    generation        bigint NOT NULL,
    kind_id           integer NOT NULL,
    state             smallint NOT NULL, -- 1 ACTIVE, 2 DELETING, 3 gone
    created_at        timestamptz NOT NULL,
    changed_at        timestamptz NOT NULL DEFAULT now(),
    name              text COLLATE "C" NOT NULL, -- as in shadow: a filter means the same in a watch as in a list
    labels            jsonb,
    body              jsonb,             -- null when gone
    owners            jsonb,
    block_deletion    boolean NOT NULL DEFAULT false,
    finalizers        text[],
    status            jsonb,
    status_generation bigint
);
CREATE INDEX change_xid ON dbcontroller.change (xid);

-- The outcomes of writes with a request id: the same id and content get the same answer. A refusal stands in the same unique place that a committing
-- transaction uses, so that a refused request never commits elsewhere (I29).
CREATE TABLE dbcontroller.request (
    id         uuid PRIMARY KEY,
    hash       bytea NOT NULL, -- of the request
    outcome    jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX request_age ON dbcontroller.request (created_at); -- old outcomes are removed

-- How the references of each kind were derived last, the shapes of its names in the version that runs, and those of earlier versions that it lacks:
-- resources that have such a name are kept.
CREATE TABLE dbcontroller.derivation (
    kind_id     integer PRIMARY KEY,
    fingerprint text NOT NULL,
    shapes      text[] NOT NULL DEFAULT '{}',
    dropped     text[] NOT NULL DEFAULT '{}'
);

-- The epochs of this database, in order.
CREATE TABLE dbcontroller.epoch (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         uuid NOT NULL,
    server     text NOT NULL,
    noticed_at timestamptz NOT NULL DEFAULT now()
);

-- The newest position of the deletions at another deployment that its watch here has told, as a resume token. It is told again when the watch is
-- opened: a database that has not reached it is an earlier copy (docs/protocol.md).
CREATE TABLE dbcontroller.position (
    deployment_id integer PRIMARY KEY,
    token         text NOT NULL
) WITH (fillfactor = 50); -- it is replaced every few seconds, in place

-- Deployments that an operator declared gone for ever. Nothing is established from or to them any more; work cleans up their blockades here, and
-- the references here to their resources.
CREATE TABLE dbcontroller.decommissioned (
    deployment_id integer PRIMARY KEY,
    blocking      smallint NOT NULL, -- how BLOCK references act: 2 unset, 3 cascade
    reason        text NOT NULL,
    said_by       text NOT NULL,
    said_at       timestamptz NOT NULL DEFAULT now()
);

-- The other decisions of operators about deployments.
CREATE TABLE dbcontroller.word (
    seq           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    deployment_id integer NOT NULL,
    what          text NOT NULL,
    reason        text NOT NULL,
    said_by       text NOT NULL,
    said_at       timestamptz NOT NULL DEFAULT now()
);

-- The processes of this deployment that share its work, each from its joining until it is given up. A handler's transaction locks the row of its
-- process (KEY SHARE, beside which it is renewed): a process that takes the shards over removes the row first, and so waits for running transactions.
CREATE TABLE dbcontroller.member (
    id         uuid PRIMARY KEY, -- the term: a process that joins again has another one
    name       text NOT NULL CONSTRAINT member_name UNIQUE,
    joined_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    delegates  boolean NOT NULL DEFAULT false -- it runs with delegations: this deployment takes rights while all processes do
);

-- Who works on a shard of the ring. One whose member is not there any more is free.
CREATE TABLE dbcontroller.lease (
    shard     smallint PRIMARY KEY,
    member_id uuid,
    since     timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO dbcontroller.lease (shard) SELECT generate_series(0, 63);

-- Why resources went in one transaction: the next link of their chain, and its root.
CREATE TABLE dbcontroller.cause (
    id                bigint PRIMARY KEY,
    how               smallint NOT NULL, -- 1 asked for, 2 cascade, 3 the last owner went
    -- The resource they went with, in whose deployment the removal of that is noted; null for the root.
    via_deployment_id integer,
    via_uid           uuid,
    via_name          text,
    -- The root: a user's delete, or an owner that went. The same in every deployment that it reaches.
    deletion_id       uuid NOT NULL,
    actor             text NOT NULL,        -- who asked for it, such as user/alice; empty: nobody did
    root              text NOT NULL,        -- full name of the resource that was deleted first
    root_uid          uuid NOT NULL,        -- zero where it was never known
    request_id        uuid,                 -- of the caller's request, if it had one
    trace_parent      text CONSTRAINT cause_trace_parent CHECK (octet_length(trace_parent) = 55), -- the span of that request, as the header traceparent
    at                timestamptz NOT NULL, -- by the clock of the root's deployment
    noted_at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX cause_deletion ON dbcontroller.cause (deletion_id); -- what a deletion has removed here
CREATE INDEX cause_request ON dbcontroller.cause (request_id) WHERE how = 1; -- what a request has asked for
CREATE INDEX cause_age ON dbcontroller.cause USING brin (noted_at); -- old causes are removed

-- Why a resource was removed: written in the transaction that decides so, kept for an auditor. One index is what a large cascade can afford: names
-- that go together lie together, which uids do not.
CREATE TABLE dbcontroller.removal (
    name       text COLLATE "C" NOT NULL,
    uid        uuid NOT NULL,
    kind_id    integer NOT NULL,
    cause_id   bigint NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT now(),
    -- The resource lived for less than an hour, by the time in its uid (UUID version 7): its record is kept for 7 days, so that a caller who creates and deletes
    -- without an end fills less of the disk.
    brief      boolean NOT NULL,
    CONSTRAINT removal_pkey PRIMARY KEY (name, uid)
);
CREATE INDEX removal_age ON dbcontroller.removal USING brin (decided_at); -- old removals are removed
CREATE INDEX removal_brief ON dbcontroller.removal (decided_at) WHERE brief; -- no brin: it would go on naming the blocks of forgotten ones

-- What each deletion has found and done in this deployment: one row for each, kept for a few days.
CREATE TABLE dbcontroller.deletion_progress (
    id         uuid PRIMARY KEY, -- the same in every deployment that the deletion reaches
    root       text NOT NULL,    -- full name of the resource that was deleted first
    found      bigint NOT NULL,  -- resources that were marked, or removed at once
    removed    bigint NOT NULL,
    unset      bigint NOT NULL,  -- references
    started_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE INDEX deletion_progress_running ON dbcontroller.deletion_progress (id) WHERE removed < found;
CREATE INDEX deletion_progress_age ON dbcontroller.deletion_progress USING brin (updated_at);

-- The holders of one deleted resource that are acted upon page by page: how many there are still, counted when the walk over them begins. One row
-- for each walk, which replaces that of an earlier walk over the same holders, of whatever process; the end of the walk removes it.
CREATE TABLE dbcontroller.deletion_walk (
    target     uuid PRIMARY KEY, -- uid of the deleted resource
    deletion   uuid NOT NULL,    -- as in deletion_progress
    cascades   bigint NOT NULL,  -- references to be acted upon, of holders to be removed
    unsets     bigint NOT NULL,  -- and to be unset
    passed     bigint NOT NULL,  -- references that the walk has acted upon
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE INDEX deletion_walk_of ON dbcontroller.deletion_walk (deletion);

-- Attached tables: rows of the deployment's own tables that are resources (docs/adoption.md). A row refers because it is there: nothing is stored of it, and the
-- table's index says which rows refer. Triggers take the rights to the targets, or note the values whose right is not there.
CREATE TABLE dbcontroller.attachment (
    kind_id     integer PRIMARY KEY,
    kind        text NOT NULL,                  -- its name when it was attached
    definition  jsonb NOT NULL,                 -- of schema.Definition: table, key, references
    checksum    text NOT NULL,                  -- of the definition; the comment of each trigger has it too
    functions   jsonb,                          -- md5 of the source of each trigger's function, as attach made it
    strict      boolean NOT NULL DEFAULT false, -- a statement that names a target fails with RD001 without the right to refer to it
    ready       boolean NOT NULL,               -- false: detached, and resources of its rows are still to be removed
    former      jsonb NOT NULL DEFAULT '[]',    -- references of former definitions: rows count under them until they count under the present ones
    walked      boolean NOT NULL DEFAULT false, -- each value of a reference has its right, or is in lacking
    partitions  text[] NOT NULL DEFAULT '{}',   -- when it was attached: each with the transaction by which it became one
    confirmed   boolean NOT NULL DEFAULT false, -- a person lets "missing" act upon any number of rows that were there before
    attached_at timestamptz NOT NULL DEFAULT now()
);

-- Deleted rows that are resources: their deletion is still to be carried out.
CREATE TABLE dbcontroller.deleted_row (
    seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind_id   integer NOT NULL,
    name      text COLLATE "C",               -- null: any row may be gone, after TRUNCATE
    gone      uuid,                           -- of the resource; null: it is looked whether the row is there
    actor     text,                           -- who deleted it
    xact      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    problem   text,                           -- why the deletion could not be carried out; null: not tried yet
    tries     integer NOT NULL DEFAULT 0,
    due       timestamptz NOT NULL DEFAULT '-infinity', -- not before
    at        timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX deleted_row_name ON dbcontroller.deleted_row (kind_id, name); -- is this row gone?
CREATE INDEX deleted_row_due ON dbcontroller.deleted_row (due, seq);
CREATE INDEX deleted_row_tried ON dbcontroller.deleted_row (tries, due) WHERE tries > 0 AND tries < 14; -- pauses that may be too long

-- Values of references that rows have without a right: it was not asked for yet, or the target does not exist. It is asked for, with growing pauses,
-- as long as a row has the value. Statements note values and wait for nobody, so one value may have several notes.
CREATE TABLE dbcontroller.lacking (
    seq     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind_id integer NOT NULL,                    -- of the rows
    path    text NOT NULL,
    texts   text NOT NULL,                       -- of the columns, with the region if one has it: a JSON array
    target  text NOT NULL,                       -- the full name; nothing can have it when it is too long or ill-formed
    before  boolean NOT NULL DEFAULT false,      -- found by a walk: rows have had it since before the table was attached
    rows    bigint NOT NULL DEFAULT 0,           -- that had it when it was asked for
    missing boolean NOT NULL DEFAULT false,      -- the target does not exist
    since   timestamptz,                         -- this is known, and no later row has named it; null: not missing
    lost    boolean NOT NULL DEFAULT false,      -- and a restore has lost it: the rows are reported, and nothing else
    problem text,                                -- why the right is not there; null: not asked yet
    tries   integer NOT NULL DEFAULT 0,
    due     timestamptz NOT NULL DEFAULT '-infinity', -- not before
    at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX lacking_due ON dbcontroller.lacking (due);
CREATE INDEX lacking_tried ON dbcontroller.lacking (tries, due) WHERE tries > 0 AND tries < 14; -- pauses that may be too long
CREATE INDEX lacking_value ON dbcontroller.lacking (kind_id, path, md5(texts)); -- texts may be too long for an index

-- Is written for the number of the command that writes it. A publication of all tables leaves it out, because it is not logged: its rows have no identity.
CREATE UNLOGGED TABLE dbcontroller.command_number (at timestamptz NOT NULL DEFAULT now());

-- Targets that an application wants to be able to refer to (dbcontroller.acquire). They are bounded for each of those who ask.
CREATE TABLE dbcontroller.right_request (
    target   text COLLATE "C" PRIMARY KEY,   -- the right, BLOCK or ACT, and the full name of the target
    asked_by text NOT NULL,                  -- a role of the database, or the identity of a caller
    asked_at timestamptz NOT NULL DEFAULT now(),
    asks     bigint NOT NULL DEFAULT nextval('dbcontroller.question'), -- the number of the last question
    answered boolean NOT NULL DEFAULT false,
    answers  bigint,                         -- the number of the question that problem and missing answer; null: none
    problem  text,                           -- why the right is not there; null: it is
    missing  boolean NOT NULL DEFAULT false  -- the target does not exist
);
-- Open requests are looked for 40 times a second while any table is strict, those of one deployment without a look at all others.
CREATE INDEX right_request_open_of ON dbcontroller.right_request (split_part(target, '/', 3), split_part(target, '/', 4), asked_at, target) WHERE NOT answered;

-- +goose StatementBegin
-- The id of a text, as schema.EscapeID has it.
CREATE FUNCTION dbcontroller.segment(part text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT CASE WHEN part COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+,;=:@-]*$' THEN part ELSE (
    SELECT string_agg(CASE WHEN chr(CASE WHEN b BETWEEN 1 AND 127 THEN b ELSE 1 END) COLLATE "C" ~ '[A-Za-z0-9._~!$&''()*+,;=:@-]' THEN chr(b)
        ELSE '%' || upper(lpad(to_hex(b), 2, '0')) END, '' ORDER BY i)
    FROM generate_series(0, octet_length(part) - 1) AS i, get_byte(convert_to(part, 'UTF8'), i) AS b
) END
$$;

-- One column of a key of several, as schema.Definition joins them. It is parsed in the session of the user, where a backslash in a plain literal
-- means another character with standard_conforming_strings = off.
CREATE FUNCTION dbcontroller.key_part(part text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
SELECT replace(replace(part, E'\\', E'\\\\'), ',', E'\\,')
$$;

-- Takes what removed resources of a name contained out of the changes and out of the outcomes of requests, before the end of their retention. The changes that
-- removed them (state 3, gone) stay: a watch that is resumed delivers these alone. An outcome stays an answer: a repeated request is not carried out again.
CREATE FUNCTION dbcontroller.purge(of text, OUT changes bigint, OUT requests bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM dbcontroller.change c
    WHERE c.name = of AND c.state <> 3 AND NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.name = of AND s.uid = c.uid);
    GET DIAGNOSTICS changes = ROW_COUNT;
    UPDATE dbcontroller.request q SET outcome = jsonb_set(q.outcome, '{saved}', (
        SELECT jsonb_agg(CASE WHEN saved.one->>'Name' <> of THEN saved.one
            ELSE saved.one - ARRAY['Labels', 'Owners', 'Status'] || jsonb_build_object('Body', encode('{}', 'base64')) END ORDER BY saved.n)
        FROM jsonb_array_elements(q.outcome->'saved') WITH ORDINALITY AS saved (one, n)
    ))
    WHERE jsonb_path_exists(q.outcome, '$.saved[*] ? (@.Name == $of && @.Body != $empty)', jsonb_build_object('of', of, 'empty', encode('{}', 'base64')))
        AND NOT EXISTS (
            SELECT FROM jsonb_array_elements(q.outcome->'saved') AS saved (one) JOIN dbcontroller.shadow s ON s.name = of AND s.uid::text = saved.one->>'UID' WHERE saved.one->>'Name' = of
        );
    GET DIAGNOSTICS requests = ROW_COUNT;
END $$;

-- Forgets old removals, and nothing else: a process may write removals, and not strike them out. The removal of a resource that is still in DELETING, and its cause, are needed until it is removed: other deployments are told the cause,
-- also those that were away for longer than removals are kept.
CREATE FUNCTION dbcontroller.forget_removals(age interval, at_most integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    forgotten bigint;
    briefly   bigint;
    causes    bigint[]; -- of brief ones
    since     timestamptz;
    until     timestamptz;
BEGIN
    -- As dates: intervals compare a month as 30 days.
    IF age IS NULL OR now() - age > now() - interval '7 days' THEN
        RAISE EXCEPTION 'removals are kept for at least 7 days';
    END IF;
    DELETE FROM dbcontroller.removal WHERE (name, uid) IN (
        SELECT r.name, r.uid FROM dbcontroller.removal r
        WHERE r.decided_at < now() - age AND NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.uid = r.uid) LIMIT at_most
    );
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    -- After what refers to them.
    DELETE FROM dbcontroller.cause WHERE id IN (
        SELECT id FROM dbcontroller.cause WHERE noted_at < now() - age - interval '1 day' AND NOT id = ANY (ARRAY (
            SELECT r.cause_id FROM dbcontroller.shadow s JOIN dbcontroller.removal r ON r.name = s.name AND r.uid = s.uid WHERE s.state = 2
        )) LIMIT at_most
    );
    WITH gone AS (
        DELETE FROM dbcontroller.removal WHERE (name, uid) IN (
            SELECT r.name, r.uid FROM dbcontroller.removal r
            WHERE r.brief AND r.decided_at < now() - interval '7 days' AND NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.uid = r.uid) LIMIT at_most
        ) RETURNING cause_id, decided_at
    )
    SELECT count(*), array_agg(DISTINCT cause_id), min(decided_at), max(decided_at) INTO briefly, causes, since, until FROM gone;
    -- A cause has the time of its removals: those that are left keep it.
    DELETE FROM dbcontroller.cause WHERE id = ANY (causes) AND NOT id = ANY (ARRAY (
        SELECT r.cause_id FROM dbcontroller.removal r WHERE r.decided_at BETWEEN since AND until AND r.cause_id = ANY (causes)
    ));
    RETURN greatest(forgotten, briefly);
END $$;

-- Runs ANALYZE for the first table, behind a name, that has three times the rows of its statistics, and at least so many; returns its name, NULL
-- for none. One at a time, since each stays locked until the transaction ends. Rows that come and go do not count: work, for instance, is always
-- nearly empty. A table that is analysed or vacuumed at the moment is passed over, as it is by a second process that calls this.
CREATE FUNCTION dbcontroller.analyze_grown(at_least integer, behind text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    grown text;
BEGIN
    SELECT c.relname INTO grown FROM pg_class c
    WHERE c.relnamespace = 'dbcontroller'::regnamespace AND c.relkind = 'r' AND c.relname > behind
        AND pg_stat_get_live_tuples(c.oid) >= greatest(at_least, 100, 3 * c.reltuples)
    ORDER BY c.relname LIMIT 1;
    IF grown IS NOT NULL AND pg_try_advisory_xact_lock(110373738146832) AND NOT EXISTS (
        SELECT FROM pg_locks WHERE relation = format('dbcontroller.%I', grown)::regclass AND mode = 'ShareUpdateExclusiveLock' AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) THEN
        EXECUTE format('ANALYZE (SKIP_LOCKED) dbcontroller.%I', grown);
    END IF;
    RETURN grown;
END $$;

-- Refuses the deletion of resources, by id, that others block: from this database and, by the blockades, from other deployments. every counts acting
-- references as well, for a key that changes. The blockade of a right has no holder of its own.
CREATE FUNCTION dbcontroller.refuse_gone(ids bigint[], every boolean, relation regclass) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    total  bigint;
    holder text;
    target text;
BEGIN
    IF NOT EXISTS (SELECT FROM dbcontroller.blockade b WHERE b.target_id = ANY (ids) AND (every OR b.behaviour = 1))
        AND NOT EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = ANY (ids) AND (every OR r.behaviour = 1))
        AND NOT (every AND EXISTS (SELECT FROM dbcontroller.holder_entry e WHERE e.target_id = ANY (ids))) THEN
        RETURN;
    END IF;
    WITH blockers AS (
        SELECT b.target_id, '//' || d.service || '/' || d.region || CASE WHEN b.holder_uid = s.uid THEN ' (rows written under its right)' ELSE '/' || b.holder_name END AS holder
        FROM dbcontroller.blockade b JOIN dbcontroller.deployment d ON d.id = b.deployment_id JOIN dbcontroller.shadow s ON s.id = b.target_id
        WHERE b.target_id = ANY (ids) AND (every OR b.behaviour = 1)
        UNION ALL
        SELECT r.target_id, h.name FROM dbcontroller.reference r JOIN dbcontroller.shadow h ON h.id = r.holder_id
        WHERE r.target_id = ANY (ids) AND (every OR r.behaviour = 1)
        UNION ALL
        SELECT e.target_id, '//' || d.service || '/' || d.region || ' (may have rows that refer to it)' FROM dbcontroller.holder_entry e JOIN dbcontroller.deployment d ON d.id = e.deployment_id
        WHERE every AND e.target_id = ANY (ids)
    ), first AS (
        SELECT * FROM blockers ORDER BY target_id, holder LIMIT 3
    )
    SELECT (SELECT count(*) FROM blockers), (SELECT string_agg(first.holder, ', ') FROM first),
        (SELECT '//' || m.service || '/' || m.region || '/' || s.name FROM dbcontroller.shadow s, dbcontroller.meta m WHERE m.singleton AND s.id = (SELECT min(first.target_id) FROM first))
    INTO total, holder, target;
    RAISE EXCEPTION 'update or delete on table "%" violates references of other resources to %', relation, target
        USING ERRCODE = '23503', DETAIL = CASE WHEN total = 1 THEN format('1 reference, from %s.', holder) ELSE format('%s references, the first from %s.', total, holder) END,
            HINT = format('db-controller plan %s', target), TABLE = relation::text;
END $$;

-- Notes deleted rows that are resources: locks their shadows first, refuses the statement for those that others block, and keeps new references
-- away by the note until the deletion is carried out. Above READ COMMITTED a trigger does not see what was committed after the snapshot of
-- its transaction: a newer shadow of a deleted key fails the transaction with 40001, because an INSERT meets it, whatever the snapshot is. A newer
-- reference to an older shadow does so too: its establishment updates the shadow. A key that is no name of a resource has no shadow, and is not
-- probed: the constraint on names would refuse it.
CREATE FUNCTION dbcontroller.rows_deleted(kind integer, names text[], moved boolean, relation regclass) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    ids bigint[];
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        WITH probed AS (
            INSERT INTO dbcontroller.shadow (uid, kind_id, state, shard, revision, generation, name)
            SELECT gen_random_uuid(), kind, 1, 0, 0, 0, n FROM unnest(names) AS n
            WHERE octet_length(n) <= 512 AND n COLLATE "C" !~ '/[.]{0,2}$'
                AND NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.kind_id = kind AND s.name = n)
            ON CONFLICT ON CONSTRAINT shadow_name DO NOTHING RETURNING id
        )
        SELECT array_agg(id) INTO ids FROM probed;
        DELETE FROM dbcontroller.shadow WHERE id = ANY (ids);
    END IF;
    SELECT array_agg(locked.id) INTO ids FROM (
        SELECT s.id FROM dbcontroller.shadow s WHERE s.kind_id = kind AND s.name = ANY (names) AND NOT s.hidden ORDER BY s.id FOR UPDATE
    ) AS locked;
    IF ids IS NOT NULL THEN
        PERFORM dbcontroller.refuse_gone(ids, moved, relation);
        INSERT INTO dbcontroller.deleted_row (kind_id, name, gone, actor)
        SELECT s.kind_id, s.name, s.uid, session_user FROM dbcontroller.shadow s WHERE s.id = ANY (ids);
    END IF;
END $$;

-- Keys are used again: waits until each deployment that may have rows that refer to the resource that had the key before has acknowledged its deletion. Such rows have
-- no uid: they would refer to the new one, and the deletion would reach rows that were written to the new one. It waits for dbcontroller.reuse_wait, by default a
-- second, without a lock, and fails with 55006; at once in the transaction of the deletion, and above READ COMMITTED.
CREATE FUNCTION dbcontroller.rows_added(kind integer, names text[], relation regclass) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    until timestamptz := clock_timestamp() + dbcontroller.timeout_of('dbcontroller.reuse_wait', interval '1 s');
    old   record;
    own   boolean;
BEGIN
    LOOP
        SELECT s.name, s.uid, h.deployment_id INTO old FROM unnest(names) AS n (name)
        CROSS JOIN LATERAL (SELECT t.id, t.name, t.uid, t.state FROM dbcontroller.shadow t WHERE t.kind_id = kind AND t.name = n.name OFFSET 0) AS s
        CROSS JOIN LATERAL (
            SELECT c.deployment_id FROM dbcontroller.notice c WHERE c.target_id = s.id
            UNION ALL
            SELECT e.deployment_id FROM dbcontroller.holder_entry e WHERE e.target_id = s.id
                AND EXISTS (SELECT FROM dbcontroller.deleted_row r WHERE r.kind_id = kind AND r.name = s.name AND r.gone = s.uid)
        ) AS h LIMIT 1;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        own := EXISTS (SELECT FROM dbcontroller.deleted_row r WHERE r.kind_id = kind AND r.name = old.name AND r.xact = pg_current_xact_id());
        IF own OR current_setting('transaction_isolation') <> 'read committed' OR clock_timestamp() > until THEN
            RAISE EXCEPTION 'a key of table "%" is used again while the deletion of % is not acknowledged by %', relation,
                    (SELECT '//' || m.service || '/' || m.region || '/' || old.name FROM dbcontroller.meta m WHERE m.singleton),
                    (SELECT '//' || d.service || '/' || d.region FROM dbcontroller.deployment d WHERE d.id = old.deployment_id)
                USING ERRCODE = '55006', TABLE = relation::text, HINT = CASE WHEN own
                    THEN 'Rows there may refer to the row that this transaction has deleted. Change the row by an UPDATE, or commit its deletion first.'
                    ELSE 'Rows there may still refer to the row that was deleted. Repeat the transaction; where it is away, see db-controller status.' END;
        END IF;
        PERFORM pg_sleep(0.005);
    END LOOP;
END $$;

-- Fails as a native key with MATCH FULL does.
CREATE FUNCTION dbcontroller.refuse_mixed(relation regclass, columns text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'insert or update on table "%" violates the reference of the columns %', relation, columns
        USING ERRCODE = '23503', TABLE = relation::text, DETAIL = 'MATCH FULL does not allow mixing of null and nonnull key values.';
END $$;

-- Rows do not name some targets any more: leaves a look at each right to block them. The arguments are parallel arrays; a null region is that of this
-- deployment.
CREATE FUNCTION dbcontroller.look_at_rights(service text, kind text, regions text[], names text[]) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
    SELECT 13, (f.id % 64)::smallint, f.deployment_id, f.id FROM unnest(regions, names) AS i (region, name)
    JOIN dbcontroller.deployment d ON d.service = look_at_rights.service AND d.region = COALESCE(i.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton))
    JOIN dbcontroller.kind k ON k.service = look_at_rights.service AND k.kind = look_at_rights.kind
    CROSS JOIN LATERAL (SELECT t.id, t.deployment_id FROM dbcontroller.foreign_target t
        WHERE t.deployment_id = d.id AND t.name = i.name AND t.kind_id = k.id AND t.block_attempt IS NOT NULL OFFSET 0) AS f;
END $$;

-- Rows of a table are gone, and no trigger has named them: leaves a look at each right to block a resource of the kind of their targets.
CREATE FUNCTION dbcontroller.look_at_rights_to(service text, kind text) RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT 13, (f.id % 64)::smallint, f.deployment_id, f.id FROM dbcontroller.foreign_target f JOIN dbcontroller.kind k ON k.id = f.kind_id
WHERE k.service = look_at_rights_to.service AND k.kind = look_at_rights_to.kind AND f.block_attempt IS NOT NULL
$$;

-- TRUNCATE is refused while anybody refers, as with native keys; else one row says that any row may be gone.
CREATE FUNCTION dbcontroller.table_truncated(kind integer, relation regclass) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM dbcontroller.refuse_gone(array_agg(s.id), true, relation) FROM dbcontroller.shadow s WHERE s.kind_id = kind AND NOT s.hidden;
    INSERT INTO dbcontroller.deleted_row (kind_id) VALUES (kind);
END $$;

-- Rows of attached tables are deleted and changed as the owner of this function, a role that has rights on these tables alone (migrate up --roles): triggers of such a table, and of
-- children of its native keys, run the code of whoever could create them. Within a function that has the rights of its owner, nobody can become another role; what
-- could act after it is refused. A trigger can alter a function of its own role, and not replace its body, which needs CREATE on the schema: the body checks that it runs as the
-- owner still. The statement has keys as $1, an array for each column, and values as $2.
CREATE FUNCTION dbcontroller.change_rows(statement text, keys text[], vals text[]) RETURNS SETOF text[] LANGUAGE plpgsql SECURITY DEFINER SET row_security = off AS $$
DECLARE
    before text[];
BEGIN
    IF current_user OPERATOR(pg_catalog.<>) (SELECT pg_catalog.pg_get_userbyid(p.proowner) FROM pg_catalog.pg_proc p
            WHERE p.oid OPERATOR(pg_catalog.=) 'dbcontroller.change_rows(text, text[], text[])'::pg_catalog.regprocedure::pg_catalog.oid) THEN
        RAISE EXCEPTION 'dbcontroller.change_rows was altered, and does not run as its owner' USING HINT = 'Run db-controller migrate up --roles.';
    END IF;
    before := dbcontroller.session_state(pg_catalog.current_setting('search_path'));
    RETURN QUERY EXECUTE statement USING keys, vals;
    PERFORM dbcontroller.refuse_changed_session(before, pg_catalog.current_setting('search_path'));
END $$;

-- Runs the deferred triggers that change_rows has left, which would run at the commit with the rights of the session. When the last ones have written nothing, they have left no others.
CREATE FUNCTION dbcontroller.fire_deferred() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    before text[];
    number bigint;
BEGIN
    IF current_user OPERATOR(pg_catalog.<>) (SELECT pg_catalog.pg_get_userbyid(p.proowner) FROM pg_catalog.pg_proc p
            WHERE p.oid OPERATOR(pg_catalog.=) 'dbcontroller.fire_deferred()'::pg_catalog.regprocedure::pg_catalog.oid) THEN
        RAISE EXCEPTION 'dbcontroller.fire_deferred was altered, and does not run as its owner' USING HINT = 'Run db-controller migrate up --roles.';
    END IF;
    IF NOT dbcontroller.may_defer() THEN
        RETURN;
    END IF;
    before := dbcontroller.session_state(pg_catalog.current_setting('search_path'));
    FOR try IN 1..10 LOOP
        number := dbcontroller.number_of_command();
        SET CONSTRAINTS ALL IMMEDIATE;
        PERFORM dbcontroller.refuse_changed_session(before, pg_catalog.current_setting('search_path'));
        IF dbcontroller.number_of_command() OPERATOR(pg_catalog.=) (number OPERATOR(pg_catalog.+) 1) THEN
            PERFORM dbcontroller.forget_commands();
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'deferred triggers of attached tables, or of tables that refer to them, queue others without an end';
END $$;

-- Is true when a trigger may wait for the commit: also one of PostgreSQL itself, which computes the expressions of an exclusion constraint again.
CREATE FUNCTION dbcontroller.may_defer() RETURNS boolean LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM pg_trigger t WHERE t.tgdeferrable)
$$;

-- The number of this command among those of its transaction that write. Each transaction deletes its rows.
CREATE FUNCTION dbcontroller.number_of_command() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
INSERT INTO dbcontroller.command_number DEFAULT VALUES RETURNING cmin::text::bigint
$$;
CREATE FUNCTION dbcontroller.forget_commands() RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DELETE FROM dbcontroller.command_number
$$;

-- What outlives a statement: settings, what was prepared for later by SQL, and functions of the role that changes rows, which others could call, with their rights.
CREATE FUNCTION dbcontroller.session_state(path text) RETURNS text[] LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
SELECT array_agg(x.name ORDER BY x.name COLLATE "C") FROM (
    SELECT 'the setting search_path, ' || path AS name
    UNION ALL SELECT 'the setting ' || s.name || ', ' || s.setting FROM pg_settings s
        WHERE (s.name NOT LIKE '%.%' OR s.name LIKE 'plpgsql.%' OR s.name LIKE 'dbcontroller.%') AND s.name <> 'search_path'
    UNION ALL SELECT 'the setting dbcontroller.acquire_timeout, ' || COALESCE(current_setting('dbcontroller.acquire_timeout', true), '')
    UNION ALL SELECT 'the function ' || p.pronamespace || '.' || p.proname || ' ' || concat_ws(' ', p.oid, p.prosecdef, p.proconfig, p.proacl)
        FROM pg_shdepend d JOIN pg_proc p ON p.oid = d.objid
        WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user) AND d.classid = 'pg_proc'::regclass AND d.deptype = 'o'
            AND d.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
    UNION ALL SELECT 'the prepared statement ' || p.name FROM pg_prepared_statements p WHERE p.from_sql
    UNION ALL SELECT 'the cursor ' || c.name FROM pg_cursors c WHERE c.is_holdable
) AS x
$$;

CREATE FUNCTION dbcontroller.refuse_changed_session(before text[], path text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    later text[] := dbcontroller.session_state(path);
    one   text;
BEGIN
    IF later = before THEN
        RETURN;
    END IF;
    FOR one IN SELECT p.name FROM pg_prepared_statements p WHERE p.from_sql AND 'the prepared statement ' || p.name <> ALL (before) LOOP
        EXECUTE format('DEALLOCATE %I', one); -- a rollback does not
    END LOOP;
    RAISE EXCEPTION 'a trigger changed the session of the controller: %', (SELECT min(x) FROM (
        (SELECT unnest(later) EXCEPT SELECT unnest(before)) UNION (SELECT unnest(before) EXCEPT SELECT unnest(later))) AS d (x))
        USING HINT = 'Give the function of the trigger a SET clause, which ends with it.';
END $$;

-- Is true while a target that is gone has no later one of the same name. A statement that sees a row sees the right that it was written under.
CREATE FUNCTION dbcontroller.is_gone(target bigint) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT EXISTS (SELECT FROM dbcontroller.foreign_target f WHERE f.id = target AND f.acting_epoch IS NULL
    AND NOT EXISTS (SELECT FROM dbcontroller.foreign_target g WHERE g.deployment_id = f.deployment_id AND g.name = f.name AND g.kind_id = f.kind_id AND g.latest > f.latest))
$$;

-- Is true while a target has no right, and no later note than the one that was asked for. A statement that sees a row sees both.
CREATE FUNCTION dbcontroller.is_missing(service text, region text, kind text, name text, note bigint) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
SELECT NOT EXISTS (
    SELECT FROM dbcontroller.foreign_target f JOIN dbcontroller.deployment d ON d.id = f.deployment_id JOIN dbcontroller.kind n ON n.id = f.kind_id
    WHERE d.service = $1 AND d.region = $2 AND n.service = d.service AND n.kind = $3 AND f.name = $4 AND (f.acting_epoch IS NOT NULL OR f.block_epoch IS NOT NULL)
) AND NOT EXISTS (
    SELECT FROM dbcontroller.lacking o JOIN dbcontroller.lacking l ON l.seq = $5 WHERE o.kind_id = l.kind_id AND o.path = l.path AND md5(o.texts) = md5(l.texts) AND o.seq <> l.seq
)
$$;

-- The table that is attached, under any name: PostgreSQL follows renames in the function that reads a row of it. Null: it was dropped.
CREATE FUNCTION dbcontroller.attached_relation(kind integer) RETURNS regclass LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT t.typrelid::regclass FROM pg_proc p JOIN pg_type t ON t.oid = p.proargtypes[0] WHERE p.oid = to_regproc(format('dbcontroller.attached_%s_row', kind))
$$;

-- A trigger reads a row by the places of its columns: fails when a partition has them in another order than its table.
CREATE FUNCTION dbcontroller.columns_in_order(relation regclass) RETURNS text[] LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
$$;
CREATE FUNCTION dbcontroller.refuse_other_columns(partition regclass, relation regclass) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF dbcontroller.columns_in_order(partition) <> dbcontroller.columns_in_order(relation) THEN
        RAISE EXCEPTION 'the partition "%" has its columns in another order than the attached table "%"', partition, relation
            USING ERRCODE = '55000', TABLE = partition::text, HINT = 'Make the partition anew by CREATE TABLE … PARTITION OF.';
    END IF;
END $$;

-- The DEFAULT of a column, as text; null: there is none.
CREATE FUNCTION dbcontroller.default_of(relation regclass, name text) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE a.attrelid = relation AND a.attname = name AND a.attgenerated = ''
$$;

-- The columns of the view of an attached table, with their present names in the table. For each column a view has the table and the attribute that it comes from, which the
-- protocol tells clients; in SQL only the text of its rule has them.
CREATE FUNCTION dbcontroller.attached_columns(kind integer) RETURNS TABLE (declared text, attribute smallint, present text) LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT v.attname::text, t.attnum, t.attname::text
FROM pg_rewrite w
CROSS JOIN LATERAL regexp_matches(w.ev_action::text, ':resno (\d+) :resname (?:[^ \\]|\\.)+ :ressortgroupref \d+ :resorigtbl (\d+) :resorigcol (\d+)', 'g') AS m
JOIN pg_attribute v ON v.attrelid = w.ev_class AND v.attnum = m[1]::smallint
JOIN pg_attribute t ON t.attrelid = m[2]::oid AND t.attnum = m[3]::smallint
WHERE w.ev_class = to_regclass(format('dbcontroller.attached_%s', kind))
$$;

-- How an attached table differs from the one that was attached, so that its triggers fail statements, or do not see all of them.
CREATE FUNCTION dbcontroller.table_drift(kind_id integer) RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
WITH d AS (
    SELECT a.definition -> 'key' AS key, COALESCE(a.definition -> 'references', '[]') AS refs, COALESCE((a.definition ->> 'partitioned')::boolean, false) AS partitioned, a.partitions,
        a.definition -> 'table' ->> 'Schema' AS schema, a.definition -> 'table' ->> 'Name' AS name, dbcontroller.attached_relation(a.kind_id) AS relation, to_regclass(format('dbcontroller.attached_%s', a.kind_id)) AS view
    FROM dbcontroller.attachment a WHERE a.kind_id = $1
)
SELECT 'the table, or a column that was attached, was dropped with CASCADE: detach, or attach again' FROM d WHERE d.relation IS NULL OR d.view IS NULL
UNION
SELECT format('%s.%s is another table than the attached one, which is called %s.%s now: attach again for the new table, or give the attached one its name back', d.schema, d.name, n.nspname, c.relname)
FROM d JOIN pg_class c ON c.oid = d.relation JOIN pg_namespace n ON n.oid = c.relnamespace WHERE to_regclass(format('%I.%I', d.schema, d.name)) <> d.relation
UNION
SELECT format('%s is another column than the attached one, which is called %s now: attach again for the new column, or give the attached one its name back', c.declared, c.present)
FROM d CROSS JOIN dbcontroller.attached_columns($1) AS c JOIN pg_attribute a ON a.attrelid = d.relation AND a.attname = c.declared AND NOT a.attisdropped WHERE c.declared <> c.present
UNION
SELECT format('the column %s has no value %s any more', r #>> '{when,column}', r #>> '{when,value}')
FROM d CROSS JOIN jsonb_array_elements(d.refs) AS r JOIN pg_attribute a ON a.attrelid = d.view AND a.attname = r #>> '{when,column}'
JOIN pg_type t ON t.oid = a.atttypid AND t.typtype = 'e'
WHERE NOT EXISTS (SELECT FROM pg_enum e WHERE e.enumtypid = t.oid AND e.enumlabel = r #>> '{when,value}')
UNION
SELECT 'no unique index has exactly the columns of the key' FROM d WHERE d.relation IS NOT NULL AND d.view IS NOT NULL AND NOT EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = d.relation AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
        AND ARRAY(SELECT k FROM unnest(i.indkey[0:i.indnkeyatts - 1]) AS k ORDER BY k) = ARRAY(
            SELECT c.attribute FROM dbcontroller.attached_columns($1) AS c WHERE c.declared IN (SELECT k ->> 'name' FROM jsonb_array_elements(d.key) AS k) ORDER BY c.attribute))
UNION
SELECT format('the column %s has another DEFAULT: attach again, so that UNSET sets it', c.present)
FROM d CROSS JOIN jsonb_array_elements(d.refs) AS r JOIN dbcontroller.attached_columns($1) AS c ON COALESCE(r -> 'unset', r -> 'columns') ? c.declared
WHERE (r ->> 'to_default')::boolean AND dbcontroller.default_of(d.relation, c.present) IS DISTINCT FROM dbcontroller.default_of(d.view, c.declared)
UNION
SELECT format('the column %s is NOT NULL, and UNSET sets it to NULL', c.present)
FROM d CROSS JOIN jsonb_array_elements(d.refs) AS r JOIN dbcontroller.attached_columns($1) AS c ON COALESCE(r -> 'unset', r -> 'columns') ? c.declared
JOIN pg_attribute a ON a.attrelid = d.relation AND a.attnum = c.attribute AND a.attnotnull
WHERE (r ->> 'behaviour')::integer IN (2 /* UNSET */, 4 /* ASYNC_UNSET */) AND NOT COALESCE((r ->> 'to_default')::boolean, false) OR r ->> 'missing' = 'unset'
UNION
SELECT format('no index finds the rows that refer by %s: each deletion of a target reads the table', k.names)
FROM d CROSS JOIN jsonb_array_elements(d.refs) AS r
CROSS JOIN LATERAL (
    SELECT array_agg(c.attribute) AS columns, string_agg(quote_ident(c.present), ', ' ORDER BY c.attribute) AS names, array_agg(format('(%I IS NOT NULL)', c.present)) AS predicates
    FROM dbcontroller.attached_columns($1) AS c WHERE r -> 'columns' ? c.declared
) AS k
WHERE d.relation IS NOT NULL AND d.view IS NOT NULL AND NOT EXISTS (
    SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam AND m.amname IN ('btree', 'hash')
    WHERE i.indrelid = d.relation AND i.indisvalid AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) = ANY (k.predicates))
        AND k.columns <@ ARRAY(
            SELECT a.attnum FROM generate_series(0, LEAST(i.indnkeyatts, cardinality(k.columns) + (r ? 'when')::int) - 1) AS n
            JOIN pg_attribute a ON a.attrelid = d.relation AND a.attnum = i.indkey[n]
            WHERE i.indcollation[n] IN (0, a.attcollation, 'pg_catalog."C"'::regcollation)))
UNION
SELECT 'the table is UNLOGGED: a crash of the server empties it, and no trigger sees that' FROM d JOIN pg_class c ON c.oid = d.relation WHERE c.relpersistence <> 'p'
UNION
SELECT 'the table has rules, which rewrite statements before triggers see them' FROM d JOIN pg_rewrite w ON w.ev_class = d.relation
UNION
SELECT 'the table has become a partition, or has one, or a child: statements at the parent do not fire its triggers'
FROM d JOIN pg_inherits i ON d.relation = i.inhrelid OR d.relation = i.inhparent AND NOT d.partitioned
UNION
SELECT 'the table is not partitioned any more: attach again' FROM d JOIN pg_class c ON c.oid = d.relation WHERE d.partitioned AND c.relkind <> 'p'
UNION
SELECT format('the partition %s has no triggers: statements that name it are not seen before you attach again', t.relid)
FROM d CROSS JOIN LATERAL pg_partition_tree(d.relation) AS t
WHERE d.partitioned AND t.relid <> d.relation AND NOT EXISTS (
    SELECT FROM pg_trigger g WHERE g.tgrelid = t.relid AND g.tgfoid = to_regproc(format('dbcontroller.attached_%s_insert', $1)) AND g.tgenabled IN ('O', 'A'))
UNION
SELECT format('the partition %s has become one since: attach again, so that its rows are read', i.inhrelid::regclass)
FROM d CROSS JOIN LATERAL pg_partition_tree(d.relation) AS t JOIN pg_inherits i ON i.inhrelid = t.relid
WHERE d.partitioned AND NOT i.inhrelid || ':' || i.xmin = ANY (d.partitions)
$$;

-- The timeline and the database of a session; a copy of the database has another one. IMMUTABLE, because neither changes while a session can write,
-- and PostgreSQL keeps plans for one session: each of them has the value as a constant.
CREATE FUNCTION dbcontroller.here() RETURNS text LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8) || '.' || d.oid FROM pg_database d WHERE d.datname = current_database()
$$;

-- The numbers of a deployment and of a kind, which never change. attach makes them before a plan has them as constants. A null region is that
-- of this deployment.
CREATE FUNCTION dbcontroller.number_of_deployment(service text, region text) RETURNS integer LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT d.id FROM dbcontroller.deployment d WHERE d.service = $1 AND d.region = COALESCE($2, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton))
$$;

CREATE FUNCTION dbcontroller.number_of_kind(service text, kind text) RETURNS integer LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT k.id FROM dbcontroller.kind k WHERE k.service = $1 AND k.kind = $2
$$;

-- The way of most statements: it locks the rights to names of one kind and region, and reports whether all of them are there; null: there are no
-- names. If not, the statement asks take_rights, which decides. A statement about one row names one target. PostgreSQL looks
-- at the conditions on the row again under its lock, so a right that ended before the lock is not taken. One of an epoch that was lost in
-- the meantime may be: whoever compares references after a failover ends such rights under the same lock.
CREATE FUNCTION dbcontroller.take(service text, kind text, region text, names text[], block boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    taken bigint;
BEGIN
    IF names IS NULL THEN
        RETURN NULL;
    ELSIF cardinality(names) > 1 THEN
        RETURN dbcontroller.take_known(service, kind, region, ARRAY(SELECT DISTINCT n FROM unnest(names) AS n), block);
    END IF;
    -- Whoever ends a right commits its row in ending, and then waits for the lock.
    IF block THEN
        PERFORM FROM dbcontroller.foreign_target f
        WHERE f.block_epoch IS NOT NULL AND f.name = names[1]
            AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take.service AND k.kind = take.kind)
            AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take.service
                AND d.region = COALESCE(take.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
            AND f.block_epoch = COALESCE((SELECT d.epoch FROM dbcontroller.deployment d WHERE d.id = f.deployment_id), f.block_epoch)
            AND f.block_own = (SELECT m.epoch FROM dbcontroller.meta m WHERE m.singleton AND m.timeline || '.' || split_part(m.server, '.', 2) = dbcontroller.here())
            AND (SELECT x.deployment_id FROM dbcontroller.decommissioned x WHERE x.deployment_id = f.deployment_id) IS NULL
            AND (SELECT e.target_id FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min') IS NULL
        FOR KEY SHARE OF f;
    ELSE
        PERFORM FROM dbcontroller.foreign_target f
        WHERE f.acting_epoch IS NOT NULL AND f.name = names[1]
            AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take.service AND k.kind = take.kind)
            AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take.service
                AND d.region = COALESCE(take.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
            AND f.acting_epoch = COALESCE((SELECT d.epoch FROM dbcontroller.deployment d WHERE d.id = f.deployment_id), f.acting_epoch)
            AND f.acting_own = (SELECT m.epoch FROM dbcontroller.meta m WHERE m.singleton AND m.timeline || '.' || split_part(m.server, '.', 2) = dbcontroller.here())
            AND (SELECT x.deployment_id FROM dbcontroller.decommissioned x WHERE x.deployment_id = f.deployment_id) IS NULL
            AND (SELECT e.target_id FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min') IS NULL
        FOR KEY SHARE OF f;
    END IF;
    GET DIAGNOSTICS taken = ROW_COUNT;
    RETURN taken = 1;
END $$;

-- The way that most statements take: it locks the rights to distinct names of one kind and region, and reports whether all of them are there.
-- If not, the statement asks take_rights, which decides. The settings are those of the trigger's function, and of take_rights.
CREATE FUNCTION dbcontroller.take_known(service text, kind text, region text, names text[], block boolean) RETURNS boolean LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    locked bigint[];
    named  bigint;  -- the number of different names
    home   integer; -- the deployment of the targets
BEGIN
    -- Whoever ends a right commits its row in ending, and then waits for these locks.
    IF block THEN
        SELECT array_agg(l.id), count(DISTINCT l.name), min(l.deployment_id) INTO locked, named, home FROM (
            SELECT f.id, f.name, f.deployment_id FROM dbcontroller.foreign_target f WHERE f.block_epoch IS NOT NULL AND f.name = ANY (names)
                AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take_known.service AND k.kind = take_known.kind)
                AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take_known.service
                    AND d.region = COALESCE(take_known.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
                AND NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
            ORDER BY f.id FOR KEY SHARE OF f
        ) AS l;
    ELSE
        SELECT array_agg(l.id), count(DISTINCT l.name), min(l.deployment_id) INTO locked, named, home FROM (
            SELECT f.id, f.name, f.deployment_id FROM dbcontroller.foreign_target f WHERE f.acting_epoch IS NOT NULL AND f.name = ANY (names)
                AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = take_known.service AND k.kind = take_known.kind)
                AND f.deployment_id = (SELECT d.id FROM dbcontroller.deployment d WHERE d.service = take_known.service
                    AND d.region = COALESCE(take_known.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)))
                AND NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
            ORDER BY f.id FOR KEY SHARE OF f
        ) AS l;
    END IF;
    IF locked IS NULL OR cardinality(locked) <> cardinality(names) OR named <> cardinality(names) THEN
        RETURN false;
    END IF;
    -- After the locks, in a statement of its own: a right that ended before the lock is not seen. One that was about to end is not locked.
    RETURN cardinality(names) = (
        SELECT count(*) FROM dbcontroller.foreign_target f
        WHERE f.id = ANY (locked) AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = home)
            AND CASE WHEN block THEN f.block_epoch ELSE f.acting_epoch END
                = COALESCE((SELECT d.epoch FROM dbcontroller.deployment d WHERE d.id = home), CASE WHEN block THEN f.block_epoch ELSE f.acting_epoch END)
            AND CASE WHEN block THEN f.block_own ELSE f.acting_own END = (
                SELECT m.epoch FROM dbcontroller.meta m WHERE m.singleton AND m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
                    AND split_part(m.server, '.', 2) = (SELECT o.oid FROM pg_database o WHERE o.datname = current_database())::text));
END $$;

-- Locks the rights to names of one kind and region that are there until the end of the transaction, without waiting, and notes the values of the others: they are
-- asked for after the commit. names and texts are parallel arrays of distinct values; a null region is that of this deployment. Above READ COMMITTED a right may
-- have ended after the snapshot, so each value is noted.
CREATE FUNCTION dbcontroller.refer(holders integer, path text, service text, kind text, region text, names text[], texts text[], block boolean) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    home   integer; -- the deployment of the targets
    locked bigint[];
    held   text[];
BEGIN
    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        SELECT d.id INTO home FROM dbcontroller.deployment d
        WHERE d.service = refer.service AND d.region = COALESCE(refer.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton));
        -- Whoever ends a right commits its row in ending, and then waits for these locks.
        IF block THEN
            SELECT array_agg(l.id) INTO locked FROM (
                SELECT f.id FROM dbcontroller.foreign_target f WHERE f.block_epoch IS NOT NULL AND f.name = ANY (names) AND f.deployment_id = home
                    AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = refer.service AND k.kind = refer.kind)
                    AND NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
                ORDER BY f.id FOR KEY SHARE OF f SKIP LOCKED
            ) AS l;
        ELSE
            SELECT array_agg(l.id) INTO locked FROM (
                SELECT f.id FROM dbcontroller.foreign_target f WHERE f.acting_epoch IS NOT NULL AND f.name = ANY (names) AND f.deployment_id = home
                    AND f.kind_id = (SELECT k.id FROM dbcontroller.kind k WHERE k.service = refer.service AND k.kind = refer.kind)
                    AND NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
                ORDER BY f.id FOR KEY SHARE OF f SKIP LOCKED
            ) AS l;
        END IF;
        -- After the locks, in a statement of its own: a right that ended before the lock is not seen.
        IF locked IS NOT NULL THEN
            SELECT array_agg(h.name) INTO held FROM (
                SELECT f.name FROM dbcontroller.foreign_target f
                WHERE f.id = ANY (locked) AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = home)
                    AND CASE WHEN block THEN f.block_epoch ELSE f.acting_epoch END
                        = COALESCE((SELECT d.epoch FROM dbcontroller.deployment d WHERE d.id = home), CASE WHEN block THEN f.block_epoch ELSE f.acting_epoch END)
                    AND CASE WHEN block THEN f.block_own ELSE f.acting_own END = (
                        SELECT m.epoch FROM dbcontroller.meta m WHERE m.singleton AND m.timeline || '.' || split_part(m.server, '.', 2) = dbcontroller.here())
                GROUP BY f.name HAVING count(*) = 1
            ) AS h;
        END IF;
        IF cardinality(held) = cardinality(names) THEN
            RETURN;
        END IF;
    END IF;
    INSERT INTO dbcontroller.lacking (kind_id, path, texts, target)
    SELECT holders, refer.path, i.texts, '//' || refer.service || '/' || COALESCE(refer.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)) || '/' || i.name
    FROM unnest(refer.names, refer.texts) AS i (name, texts) WHERE NOT EXISTS (SELECT FROM unnest(held) AS h (name) WHERE h.name = i.name);
END $$;

-- Locks the rights to refer to targets until the end of the transaction. It asks for the rights that are lacking, and waits for them; where
-- statements cannot wait, it fails with RD001. The arguments are parallel arrays; a null region is that of this deployment. A session of the application has PostgreSQL's defaults, by which these functions
-- would be planned and compiled anew for each statement, or by a plan for few rows that compares each row of a large statement with each other.
CREATE FUNCTION dbcontroller.take_rights(relation regclass, services text[], kinds text[], regions text[], names text[], blocks boolean[])
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    locked  bigint[];
    places  bigint[];
    counted bigint[];
    lacking text[];
    until   timestamptz;
BEGIN
    IF names IS NULL THEN
        RETURN;
    END IF;
    SELECT array_agg(i.service), array_agg(i.kind), array_agg(i.region), array_agg(i.name), array_agg(i.block) INTO services, kinds, regions, names, blocks FROM (
        SELECT DISTINCT i.service, i.kind, COALESCE(i.region, (SELECT m.region FROM dbcontroller.meta m WHERE m.singleton)) AS region, i.name, i.block
        FROM unnest(services, kinds, regions, names, blocks) AS i (service, kind, region, name, block)
    ) AS i;
    LOOP
        -- Whoever ends a right commits its row in ending, and then waits for these locks.
        SELECT array_agg(l.id), array_agg(l.place) INTO locked, places FROM (
            SELECT f.id, i.place FROM unnest(services, kinds, regions, names, blocks) WITH ORDINALITY AS i (service, kind, region, name, block, place)
            JOIN dbcontroller.deployment d ON d.service = i.service AND d.region = i.region
            JOIN dbcontroller.kind k ON k.service = i.service AND k.kind = i.kind
            CROSS JOIN LATERAL (
                SELECT a.id FROM dbcontroller.foreign_target a
                WHERE NOT i.block AND a.acting_epoch IS NOT NULL AND a.deployment_id = d.id AND a.name = i.name AND a.kind_id = k.id
                UNION ALL
                SELECT b.id FROM dbcontroller.foreign_target b
                WHERE i.block AND b.block_epoch IS NOT NULL AND b.deployment_id = d.id AND b.name = i.name AND b.kind_id = k.id
                OFFSET 0
            ) AS t
            JOIN dbcontroller.foreign_target f ON f.id = t.id
            WHERE NOT EXISTS (SELECT FROM dbcontroller.ending e WHERE e.target_id = f.id AND e.until > now() AND e.until < now() + interval '1 min')
            ORDER BY f.id FOR KEY SHARE OF f
        ) AS l;
        -- After the locks, in a statement of its own: a right that ended before the lock is not seen. One that was about to end is not locked.
        WITH held AS MATERIALIZED (
            SELECT f.id, l.place FROM unnest(locked, places) AS l (id, place)
            JOIN dbcontroller.foreign_target f ON f.id = l.id
            JOIN dbcontroller.deployment d ON d.id = f.deployment_id
            JOIN dbcontroller.meta m ON m.singleton AND m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
                AND split_part(m.server, '.', 2) = (SELECT o.oid FROM pg_database o WHERE o.datname = current_database())::text
            WHERE NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id) AND CASE WHEN blocks[l.place]
                THEN f.block_epoch = COALESCE(d.epoch, f.block_epoch) AND f.block_own = m.epoch
                ELSE f.acting_epoch = COALESCE(d.epoch, f.acting_epoch) AND f.acting_own = m.epoch END
        )
        SELECT array_agg(one.place) INTO counted FROM (SELECT held.place FROM held GROUP BY held.place HAVING count(*) = 1) AS one;
        IF cardinality(counted) = cardinality(names) THEN
            RETURN;
        END IF;
        SELECT array_agg(CASE WHEN i.block THEN 'BLOCK' ELSE 'ACT' END || ' //' || i.service || '/' || i.region || '/' || i.name ORDER BY i.service, i.region, i.name, i.block) INTO lacking
        FROM unnest(services, kinds, regions, names, blocks) WITH ORDINALITY AS i (service, kind, region, name, block, place)
        WHERE i.place NOT IN (SELECT c FROM unnest(counted) AS c);
        until := COALESCE(until, clock_timestamp() + dbcontroller.acquire_timeout(cardinality(lacking)));
        EXIT WHEN NOT dbcontroller.await_rights(relation, lacking, until);
    END LOOP;
    RAISE EXCEPTION 'table "%" refers to resources without the right to do so: % lacking', relation,
            CASE WHEN cardinality(lacking) = 1 THEN '1 right is' ELSE cardinality(lacking) || ' rights are' END
        USING ERRCODE = 'RD001', DETAIL = array_to_string(lacking[1:1000], E'\n'), TABLE = relation::text,
            HINT = CASE WHEN cardinality(lacking) > 1000
                THEN 'Roll back, and write rows with at most 1000 new targets in one transaction: rights that wait to be used are returned after 15 seconds.'
                ELSE 'Roll back, call dbcontroller.acquire and dbcontroller.acquired with the lines of DETAIL, and repeat the transaction. Or let statements wait: see db-controller attach.' END;
END $$;

-- A setting of a session, in milliseconds or with a unit, as PostgreSQL's own time-outs.
CREATE FUNCTION dbcontroller.timeout_of(name text, without interval) RETURNS interval LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    setting text := current_setting(name, true);
BEGIN
    IF setting IS NULL OR setting = '' THEN
        RETURN without;
    END IF;
    RETURN CASE WHEN setting ~ '^\d+$' THEN setting || ' ms' ELSE setting END::interval;
EXCEPTION WHEN invalid_datetime_format OR datetime_field_overflow THEN
    RAISE EXCEPTION '% is "%": a number of milliseconds, or with a unit, such as 3s', name, setting USING ERRCODE = '22023';
END $$;

-- How long a statement waits for so many rights: the setting dbcontroller.acquire_timeout; 0: it does not wait. Without it 3 seconds, and a millisecond for
-- each right.
CREATE FUNCTION dbcontroller.acquire_timeout(rights integer) RETURNS interval LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
SELECT dbcontroller.timeout_of('dbcontroller.acquire_timeout', interval '3 s' + rights * interval '1 ms')
$$;

-- Asks for rights in a session of its own, which commits the question, and waits until they are there. It returns false when statements here do not wait;
-- it fails with 23503 when a resource does not exist, and with RD002 when a right is not to be had in time. Each look has a snapshot of its own at READ
-- COMMITTED; above it, the right is not seen even when it is there, so that the transaction has to be repeated.
CREATE FUNCTION dbcontroller.await_rights(relation regclass, targets text[], until timestamptz) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    began  timestamptz := clock_timestamp();
    dblink text := dbcontroller.loopback(); -- its schema
    asks   bigint[];                        -- the number of each question
    open   bigint;
    found  record;
BEGIN
    IF dblink IS NULL OR dbcontroller.acquire_timeout(0) = '0' THEN
        RETURN false;
    END IF;
    WHILE asks IS NULL LOOP
        BEGIN
            asks := dbcontroller.ask_outside(targets, session_user);
        EXCEPTION WHEN OTHERS THEN
            -- A connection, or a lock, that is not to be had may be a moment later.
            IF SQLSTATE NOT LIKE '08%' AND SQLSTATE NOT IN ('53300', '55P03', '57P03') OR clock_timestamp() > until - interval '0.1 s' THEN
                RAISE EXCEPTION 'table "%" refers to resources without the right to do so, and it could not be asked for: %', relation, SQLERRM
                    USING ERRCODE = 'RD002', DETAIL = array_to_string(targets[1:10], E'\n') || CASE WHEN cardinality(targets) > 10 THEN format(E'\n%s more', cardinality(targets) - 10) ELSE '' END, TABLE = relation::text, HINT = 'db-controller attach checks how statements ask for rights.';
            END IF;
            PERFORM pg_sleep(0.02 + random() * 0.05);
        END;
    END LOOP;
    LOOP
        IF current_setting('transaction_isolation') = 'read committed' THEN
            open := dbcontroller.unanswered(targets, asks);
        ELSE
            EXECUTE format('SELECT t.open FROM %I.dblink(%L, $1) AS t (open bigint)', dblink, 'dbcontroller_loopback') INTO open
                USING format('SELECT dbcontroller.unanswered(%L, %L)', targets, asks);
        END IF;
        EXIT WHEN open = 0;
        IF clock_timestamp() > until + random() * interval '0.1 s' THEN -- two that wait for one another do not give up together
            RAISE EXCEPTION 'table "%" refers to resources without the right to do so: % not given in %', relation,
                    CASE WHEN open = 1 THEN '1 right was' ELSE open || ' rights were' END, date_trunc('milliseconds', clock_timestamp() - began)
                USING ERRCODE = 'RD002', DETAIL = array_to_string(targets[1:10], E'\n') || CASE WHEN cardinality(targets) > 10 THEN format(E'\n%s more', cardinality(targets) - 10) ELSE '' END, TABLE = relation::text,
                    HINT = 'Repeat the transaction; the deployment of the targets may be away: see db-controller status.';
        END IF;
        PERFORM pg_sleep(least(0.005 + open * 0.0001, 0.2)); -- a look at many costs time as well
    END LOOP;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'could not serialize access: rights of table "%" were acquired after the snapshot of the transaction', relation
            USING ERRCODE = '40001', TABLE = relation::text, HINT = 'Repeat the transaction.';
    END IF;
    SELECT w.* INTO found FROM dbcontroller.right_request w WHERE w.target = ANY (targets) AND w.problem IS NOT NULL ORDER BY w.missing DESC, w.target LIMIT 1;
    IF found.problem IS NOT NULL THEN
        RAISE EXCEPTION 'insert or update on table "%" violates a reference: %', relation, found.problem
            USING ERRCODE = CASE WHEN found.missing THEN '23503' ELSE 'RD002' END, DETAIL = found.target, TABLE = relation::text;
    END IF;
    RETURN true;
END $$;

-- Asks for rights, as the lines of DETAIL name them, for a caller. It takes effect with the commit. Questions are counted: a program that asks without
-- end fills no disk. A question that nobody answered begins anew when it is asked again.
CREATE FUNCTION dbcontroller.acquire_as(targets text[], caller text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    waiting bigint;
    own     bigint;
BEGIN
    IF cardinality(targets) > 1000 THEN
        RAISE EXCEPTION '% names at once: at most 1000', cardinality(targets) USING ERRCODE = '54000';
    END IF;
    IF EXISTS (SELECT FROM unnest(targets) AS t WHERE octet_length(t) > 1024) THEN
        RAISE EXCEPTION 'a right to be asked for has more than 1024 bytes' USING ERRCODE = '54000', HINT = 'Pass the lines of DETAIL of RD001.';
    END IF;
    SELECT count(*), count(*) FILTER (WHERE w.asked_by = caller) INTO waiting, own FROM (SELECT asked_by FROM dbcontroller.right_request LIMIT 100000) AS w;
    IF waiting = 100000 OR own >= 60000 THEN
        RAISE EXCEPTION '% rights were asked for in the last minutes, % of them by %', waiting, own, caller USING ERRCODE = 'RD002',
            HINT = 'Write rows with fewer new targets; what was asked for is forgotten after five minutes.';
    END IF;
    -- A process answers each question within a few seconds.
    INSERT INTO dbcontroller.right_request AS w (target, asked_by) SELECT DISTINCT t, caller FROM unnest(targets) AS t WHERE t IS NOT NULL ORDER BY t
    ON CONFLICT (target) DO UPDATE SET asks = nextval('dbcontroller.question'), answered = false,
        asked_by = CASE WHEN w.answered THEN EXCLUDED.asked_by ELSE w.asked_by END, -- a refusal of one caller is none of another
        asked_at = CASE WHEN w.answered OR w.asked_at < now() - interval '20 s' THEN now() ELSE w.asked_at END;
    PERFORM pg_notify('dbcontroller_wake', 'ask 8'); -- RightsFeed
END $$;

-- The schema of dblink, over whose server dbcontroller_loopback statements ask for rights; null: they do not. attach sets it up.
CREATE FUNCTION dbcontroller.loopback() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'dblink' AND EXISTS (SELECT FROM pg_foreign_server s WHERE s.srvname = 'dbcontroller_loopback')
$$;

-- Asks in a session of its own, which commits, and returns the number of each question.
CREATE FUNCTION dbcontroller.ask_outside(targets text[], caller text) RETURNS bigint[] LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    asked text;
BEGIN
    EXECUTE format('SELECT t.asked FROM %I.dblink(%L, $1) AS t (asked text)', dbcontroller.loopback(), 'dbcontroller_loopback') INTO asked
        USING format('SELECT dbcontroller.ask(%L, %L)', targets, caller);
    IF split_part(asked, ' ', 1) <> dbcontroller.here() THEN
        RAISE EXCEPTION 'statements here ask another database for rights: this one is a copy' USING ERRCODE = 'RD002';
    END IF;
    RETURN split_part(asked, ' ', 2);
END $$;

-- Asks, for a caller, by the session that a statement has of its own (await_rights): where that is, and the number of each question.
CREATE FUNCTION dbcontroller.ask(targets text[], caller text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    FOR n IN 1 .. cardinality(targets) BY 1000 LOOP
        PERFORM dbcontroller.acquire_as(targets[n : n + 999], caller);
    END LOOP;
    RETURN dbcontroller.here() || ' ' || ARRAY(SELECT (SELECT w.asks FROM dbcontroller.right_request w WHERE w.target = i.t) FROM unnest(targets) WITH ORDINALITY AS i (t, n) ORDER BY i.n)::text;
END $$;

-- The number of questions that are not answered. An answer to an earlier question may be older than the target.
CREATE FUNCTION dbcontroller.unanswered(targets text[], asks bigint[]) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT count(*) FROM unnest(targets, asks) AS i (target, asks)
WHERE NOT EXISTS (SELECT FROM dbcontroller.right_request w WHERE w.target = i.target AND (w.answered OR w.answers >= i.asks))
$$;

-- Asks for the role of the session.
CREATE FUNCTION dbcontroller.acquire(targets text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM dbcontroller.acquire_as(targets, session_user::text);
END $$;

-- Waits until the rights are there. It fails with 23503 when a resource does not exist, and with RD002 when a right is not to be had now.
CREATE FUNCTION dbcontroller.acquired(targets text[], patience interval DEFAULT interval '10 s') RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until timestamptz := clock_timestamp() + patience;
    asked bigint[]; -- the number of the question of each target, of this caller or a later one
    open  bigint;
    found record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'dbcontroller.acquired has to run at READ COMMITTED' USING ERRCODE = '25001';
    END IF;
    asked := ARRAY(SELECT (SELECT w.asks FROM dbcontroller.right_request w WHERE w.target = i.t) FROM unnest(targets) WITH ORDINALITY AS i (t, n) ORDER BY i.n);
    LOOP
        open := dbcontroller.unanswered(targets, asked);
        EXIT WHEN open = 0 OR clock_timestamp() > until;
        PERFORM pg_sleep(0.01);
    END LOOP;
    IF open > 0 THEN
        RAISE EXCEPTION 'the rights to refer to % resources were not acquired in %', open, patience USING ERRCODE = 'RD002';
    END IF;
    SELECT w.* INTO found FROM dbcontroller.right_request w WHERE w.target = ANY (targets) AND w.problem IS NOT NULL ORDER BY w.missing DESC, w.target LIMIT 1;
    IF found.problem IS NOT NULL THEN
        RAISE EXCEPTION '%', found.problem USING ERRCODE = CASE WHEN found.missing THEN '23503' ELSE 'RD002' END, DETAIL = found.target;
    END IF;
END $$;

-- A decision does not change, whoever may update the table.
CREATE FUNCTION dbcontroller.refuse_decided() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'the attempt % is decided', OLD.id USING ERRCODE = '42501';
END $$;
CREATE TRIGGER decided BEFORE UPDATE ON dbcontroller.attempt FOR EACH ROW WHEN (OLD.committed IS NOT NULL AND NEW.committed IS DISTINCT FROM OLD.committed) EXECUTE FUNCTION dbcontroller.refuse_decided();
-- +goose StatementEnd

-- Functions that are called with the rights of their owner, or from triggers.
REVOKE ALL ON FUNCTION dbcontroller.forget_removals, dbcontroller.purge, dbcontroller.analyze_grown, dbcontroller.refuse_gone, dbcontroller.rows_deleted, dbcontroller.table_truncated, dbcontroller.look_at_rights, dbcontroller.look_at_rights_to,
    dbcontroller.here, dbcontroller.number_of_deployment, dbcontroller.number_of_kind, dbcontroller.take, dbcontroller.take_known, dbcontroller.refer, dbcontroller.take_rights,
    dbcontroller.rows_added, dbcontroller.timeout_of, dbcontroller.acquire_timeout, dbcontroller.await_rights, dbcontroller.loopback, dbcontroller.ask_outside, dbcontroller.ask, dbcontroller.unanswered,
    dbcontroller.acquire_as, dbcontroller.acquire, dbcontroller.acquired, dbcontroller.change_rows, dbcontroller.fire_deferred, dbcontroller.may_defer, dbcontroller.number_of_command, dbcontroller.forget_commands,
    dbcontroller.session_state, dbcontroller.refuse_changed_session, dbcontroller.is_gone, dbcontroller.is_missing FROM PUBLIC;

-- +goose Down
DROP SCHEMA dbcontroller CASCADE;
