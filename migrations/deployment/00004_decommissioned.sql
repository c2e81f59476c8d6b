-- +goose Up
-- Deployments that an operator declared gone for ever. Nothing is established from or to them any more; what they had
-- here and what pointed to them is worked off by work of action 9.
CREATE TABLE dbcontroller.decommissioned (
    deployment_id integer PRIMARY KEY,
    blocking      smallint NOT NULL, -- how references act that blocked: 2 unset, 3 cascade
    reason        text NOT NULL,
    said_by       text NOT NULL,
    said_at       timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE dbcontroller.decommissioned;
DELETE FROM dbcontroller.work WHERE action = 9;
