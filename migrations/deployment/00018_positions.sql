-- +goose Up
-- The newest position of the deletions at another deployment that its watch here has told, as a resume token. It is told again
-- when the watch is opened: a database that has not reached it is a copy of before (docs/protocol.md).
CREATE TABLE dbcontroller.position (
    deployment_id int  NOT NULL CONSTRAINT position_pkey PRIMARY KEY,
    token         text NOT NULL
) WITH (fillfactor = 50); -- it is replaced every few seconds, in place

-- +goose Down
DROP TABLE dbcontroller.position;
