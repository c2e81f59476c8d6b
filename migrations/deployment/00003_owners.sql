-- +goose Up
ALTER TABLE dbcontroller.shadow
    ADD COLUMN hidden boolean NOT NULL DEFAULT false,         -- DELETING, and seen as gone by readers, for good
    ADD COLUMN block_deletion boolean NOT NULL DEFAULT false, -- no delete takes it
    -- Moves when the references are derived anew: a write that was compared with the earlier ones starts again.
    ADD COLUMN derivation integer NOT NULL DEFAULT 0;

-- As users see them; dbcontroller.owner_reference is made from it, as references are made from bodies.
ALTER TABLE dbcontroller.resource ADD COLUMN owners jsonb;
ALTER TABLE dbcontroller.change
    ADD COLUMN owners jsonb,
    ADD COLUMN block_deletion boolean NOT NULL DEFAULT false,
    ALTER COLUMN name TYPE text COLLATE "C"; -- as in shadow: a filter means the same in a watch as in a list

-- Something here once referred to a resource there, so its deletions concern this deployment for good.
ALTER TABLE dbcontroller.deployment ADD COLUMN pointed_to boolean NOT NULL DEFAULT false;
UPDATE dbcontroller.deployment d SET pointed_to = true
WHERE EXISTS (SELECT FROM dbcontroller.foreign_target f WHERE f.deployment_id = d.id);

-- The owners of ACTIVE resources; those of one that is marked DELETING are dropped with the mark.
CREATE TABLE dbcontroller.owner_reference (
    ownee_id      bigint NOT NULL,
    deployment_id integer NOT NULL, -- the owner's
    kind_id       integer NOT NULL,
    name          text COLLATE "C" NOT NULL,
    uid           uuid NOT NULL,    -- zero while it is not known
    flags         smallint NOT NULL, -- 1 controller, 2 requires_owner_reference, 4 unset_on_delete
    checked       boolean NOT NULL DEFAULT false, -- the owner's deployment said once that it owns
    generation    bigint NOT NULL DEFAULT 0,      -- of the owner's deployment, when it told its version last
    created_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT owner_reference_pkey PRIMARY KEY (ownee_id, deployment_id, kind_id, name, uid)
);
CREATE INDEX owner_reference_owner ON dbcontroller.owner_reference (deployment_id, uid, ownee_id); -- who is owned by it

-- A deployment has resources that this one owns.
CREATE TABLE dbcontroller.ownee_entry (
    owner_id      bigint NOT NULL,
    deployment_id integer NOT NULL,
    CONSTRAINT ownee_entry_pkey PRIMARY KEY (owner_id, deployment_id)
);

-- 4 check owners (target_id: the ownee), 5 drop owners (target_id: the owner), 6 let go (holder_uid: the owner,
-- target_uid: the ownee), 7 upgrade owners, 8 derive (kind_id: the whole kind, from cursor on; target_id: one resource).
ALTER TABLE dbcontroller.work
    ADD COLUMN kind_id integer,
    ADD COLUMN cursor text,
    ADD COLUMN progress bigint NOT NULL DEFAULT 0,
    ADD COLUMN reason text; -- why it could not be done the last time

-- What the references of each kind were derived by.
CREATE TABLE dbcontroller.derivation (
    kind_id     integer PRIMARY KEY,
    fingerprint text NOT NULL
);

-- +goose Down
DROP TABLE dbcontroller.derivation, dbcontroller.ownee_entry, dbcontroller.owner_reference;
ALTER TABLE dbcontroller.work DROP COLUMN kind_id, DROP COLUMN cursor, DROP COLUMN progress, DROP COLUMN reason;
ALTER TABLE dbcontroller.deployment DROP COLUMN pointed_to;
ALTER TABLE dbcontroller.change DROP COLUMN owners, DROP COLUMN block_deletion;
ALTER TABLE dbcontroller.resource DROP COLUMN owners;
ALTER TABLE dbcontroller.shadow DROP COLUMN hidden, DROP COLUMN block_deletion, DROP COLUMN derivation;
