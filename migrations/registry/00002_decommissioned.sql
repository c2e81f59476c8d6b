-- +goose Up
-- Deployments that an operator declared gone for ever: their names are not used again, since others still know them.
CREATE TABLE dbcontroller_registry.decommissioned (
    service text COLLATE "C" NOT NULL,
    region  text COLLATE "C" NOT NULL,
    reason  text NOT NULL,
    said_by text NOT NULL,
    said_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT decommissioned_pkey PRIMARY KEY (service, region)
);

-- +goose Down
DROP TABLE dbcontroller_registry.decommissioned;
