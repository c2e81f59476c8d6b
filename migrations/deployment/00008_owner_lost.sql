-- +goose Up
-- Deletions that took an owner without unset_on_delete from a resource that one with the flag still keeps: when that one goes in the
-- same deletion, the resource goes as well (I17).
CREATE TABLE dbcontroller.owner_lost (
    ownee_id    bigint NOT NULL,
    deletion_id uuid NOT NULL,
    CONSTRAINT owner_lost_pkey PRIMARY KEY (ownee_id, deletion_id)
);

-- +goose Down
DROP TABLE dbcontroller.owner_lost;
