-- +goose Up
-- Why a resource was removed: written in the transaction that decides so, kept for an auditor.

-- Which deployment's attempt is over: nobody closes another's. 0: of before this was noted.
ALTER TABLE dbcontroller.closed_attempt ADD COLUMN deployment_id integer NOT NULL DEFAULT 0;
ALTER TABLE dbcontroller.closed_attempt DROP CONSTRAINT closed_attempt_pkey, ADD CONSTRAINT closed_attempt_pkey PRIMARY KEY (attempt, deployment_id);

CREATE SEQUENCE dbcontroller.cause_id AS bigint;
-- Why resources went in one transaction: the next link of their chain, and its root.
CREATE TABLE dbcontroller.cause (
    id                bigint NOT NULL CONSTRAINT cause_pkey PRIMARY KEY,
    how               smallint NOT NULL, -- 1 asked for, 2 cascade, 3 the last owner went
    -- What they went with, in whose deployment the removal of that is noted; null for the root.
    via_deployment_id integer,
    via_uid           uuid,
    via_name          text,
    -- What was at the root: somebody's delete, or an owner that went. The same in every deployment that it reaches.
    deletion_id       uuid NOT NULL,
    actor             text NOT NULL,        -- who asked for it, such as user/alice; empty: nobody did
    root              text NOT NULL,        -- full name of what was deleted first
    root_uid          uuid NOT NULL,        -- zero where it was never known
    request_id        uuid,                 -- of the caller's request, if it had one
    at                timestamptz NOT NULL, -- by the clock of the root's deployment
    noted_at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX cause_age ON dbcontroller.cause USING brin (noted_at); -- what is old is removed

-- One index is what a large cascade can afford: names that go together lie together, which uids do not.
CREATE TABLE dbcontroller.removal (
    name       text COLLATE "C" NOT NULL,
    uid        uuid NOT NULL,
    kind_id    integer NOT NULL,
    cause_id   bigint NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT removal_pkey PRIMARY KEY (name, uid)
);
CREATE INDEX removal_age ON dbcontroller.removal USING brin (decided_at); -- what is old is removed

-- Forgets what is old, and nothing else: whoever serves may write down removals, and not strike them out.
-- +goose StatementBegin
CREATE FUNCTION dbcontroller.forget_removals(age interval, at_most integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    forgotten bigint;
BEGIN
    -- As dates: intervals compare a month as 30 days.
    IF age IS NULL OR now() - age > now() - interval '7 days' THEN
        RAISE EXCEPTION 'removals are kept for at least 7 days';
    END IF;
    DELETE FROM dbcontroller.removal WHERE (name, uid) IN (
        SELECT name, uid FROM dbcontroller.removal WHERE decided_at < now() - age LIMIT at_most
    );
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    -- After what refers to them.
    DELETE FROM dbcontroller.cause WHERE id IN (
        SELECT id FROM dbcontroller.cause WHERE noted_at < now() - age - interval '1 day' LIMIT at_most
    );
    RETURN forgotten;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION dbcontroller.forget_removals FROM PUBLIC;

-- +goose Down
DROP FUNCTION dbcontroller.forget_removals;
DELETE FROM dbcontroller.closed_attempt c
WHERE EXISTS (SELECT FROM dbcontroller.closed_attempt o WHERE o.attempt = c.attempt AND o.deployment_id < c.deployment_id);
ALTER TABLE dbcontroller.closed_attempt DROP CONSTRAINT closed_attempt_pkey, ADD CONSTRAINT closed_attempt_pkey PRIMARY KEY (attempt);
ALTER TABLE dbcontroller.closed_attempt DROP COLUMN deployment_id;
DROP TABLE dbcontroller.removal;
DROP TABLE dbcontroller.cause;
DROP SEQUENCE dbcontroller.cause_id;
