-- +goose Up
-- In which server's database an operator has applied a deployment last, as the server says of itself. After a failover or a
-- restore the list may lack deployments, and it counts as whole when all that it has were applied again.
ALTER TABLE dbcontroller_registry.deployment ADD COLUMN applied_in text;
UPDATE dbcontroller_registry.deployment SET applied_in = (
    SELECT m.database_id::text || '.' || (SELECT oid FROM pg_database WHERE datname = current_database()) || '.' ||
        (SELECT system_identifier FROM pg_control_system()) || '.' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
    FROM dbcontroller_registry.meta m
);

-- +goose Down
ALTER TABLE dbcontroller_registry.deployment DROP COLUMN applied_in;
