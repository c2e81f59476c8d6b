-- +goose Up
CREATE SCHEMA IF NOT EXISTS dbcontroller_registry;

-- Moves with every change; also the lock that puts changes in a row.
CREATE TABLE dbcontroller_registry.meta (
    singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT meta_is_one_row CHECK (singleton),
    revision  bigint NOT NULL DEFAULT 0
);
INSERT INTO dbcontroller_registry.meta DEFAULT VALUES;

CREATE TABLE dbcontroller_registry.region (
    name text COLLATE "C" PRIMARY KEY
);

-- Descriptors by version, as protobuf (dbcontroller.schema.v1.ServiceDescriptor).
CREATE TABLE dbcontroller_registry.service_version (
    service    text COLLATE "C" NOT NULL,
    version    text COLLATE "C" NOT NULL,
    descriptor bytea NOT NULL,
    CONSTRAINT service_version_pkey PRIMARY KEY (service, version)
);

CREATE TABLE dbcontroller_registry.deployment (
    service    text COLLATE "C" NOT NULL,
    region     text COLLATE "C" NOT NULL REFERENCES dbcontroller_registry.region,
    version    text COLLATE "C" NOT NULL,
    address    text NOT NULL DEFAULT '',
    generation bigint NOT NULL DEFAULT 0,
    disabled   boolean NOT NULL DEFAULT false,
    CONSTRAINT deployment_pkey PRIMARY KEY (service, region),
    CONSTRAINT deployment_version FOREIGN KEY (service, version) REFERENCES dbcontroller_registry.service_version
);

-- +goose Down
DROP SCHEMA dbcontroller_registry CASCADE;
