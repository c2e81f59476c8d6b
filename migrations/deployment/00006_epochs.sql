-- +goose Up
-- An epoch of the database ends with a failover, a restored backup, a copy: commits may be lost, and transaction ids and
-- timelines begin anew. Which one it was when it was last noticed; what is not noticed yet is compared with it.
ALTER TABLE dbcontroller.meta
    ADD COLUMN epoch    uuid,                          -- as others are told
    ADD COLUMN server   text,                          -- as the server says
    ADD COLUMN timeline text,
    ADD COLUMN awaiting boolean NOT NULL DEFAULT false; -- it is not known yet who may refer to resources here

CREATE TABLE dbcontroller.epoch (
    seq        bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT epoch_pkey PRIMARY KEY,
    id         uuid NOT NULL,
    server     text NOT NULL,
    noticed_at timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE dbcontroller.deployment
    ADD COLUMN epoch       uuid,                            -- of its database, as it was told; null: not told any
    ADD COLUMN unconfirmed boolean NOT NULL DEFAULT false, -- it may refer to resources here, and has not compared that since
    ADD COLUMN uncompared  boolean NOT NULL DEFAULT false; -- its database began a new epoch, and it has not compared since
CREATE INDEX deployment_unconfirmed ON dbcontroller.deployment (id) WHERE unconfirmed OR uncompared;

-- Its target went without the reference: one of the two databases lost commits. A person decides what becomes of it.
ALTER TABLE dbcontroller.reference ADD COLUMN dangling boolean NOT NULL DEFAULT false;
CREATE INDEX reference_dangling ON dbcontroller.reference (holder_id) WHERE dangling;

-- 10 tell that a new epoch began, 11 compare the references to a deployment with what it has, 12 compare the blockades
-- of its holders with what they refer to.


-- +goose Down
DELETE FROM dbcontroller.work WHERE action IN (10, 11, 12);
ALTER TABLE dbcontroller.reference DROP COLUMN dangling;
ALTER TABLE dbcontroller.deployment DROP COLUMN epoch, DROP COLUMN unconfirmed, DROP COLUMN uncompared;
DROP TABLE dbcontroller.epoch;
ALTER TABLE dbcontroller.meta DROP COLUMN epoch, DROP COLUMN server, DROP COLUMN timeline, DROP COLUMN awaiting;
