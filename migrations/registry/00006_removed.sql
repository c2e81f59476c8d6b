-- +goose Up
-- The version that a removed deployment ran last, with its descriptor, which can be removed or described anew afterwards: the
-- deployment's database still has that version's resources when the deployment is applied again.
CREATE TABLE dbcontroller_registry.removed (
    service    text COLLATE "C" NOT NULL,
    region     text COLLATE "C" NOT NULL,
    version    text COLLATE "C" NOT NULL,
    descriptor bytea NOT NULL,
    CONSTRAINT removed_pkey PRIMARY KEY (service, region)
);

-- +goose Down
DROP TABLE dbcontroller_registry.removed;
