-- +goose Up
-- The processes of this deployment that share its work, each from its joining until it is given up. A handler's
-- transaction locks the row of its process (KEY SHARE, beside which it is renewed): who takes the shards over removes the
-- row first, and waits for what is under way.
CREATE TABLE dbcontroller.member (
    id         uuid NOT NULL CONSTRAINT member_pkey PRIMARY KEY, -- the term: whoever joins again has another one
    name       text NOT NULL CONSTRAINT member_name UNIQUE,
    joined_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);

-- Who works on a shard of the ring. One whose member is not there any more is free.
CREATE TABLE dbcontroller.lease (
    shard     smallint NOT NULL CONSTRAINT lease_pkey PRIMARY KEY,
    member_id uuid,
    since     timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO dbcontroller.lease (shard) SELECT generate_series(0, 63);

-- +goose Down
DROP TABLE dbcontroller.lease;
DROP TABLE dbcontroller.member;
