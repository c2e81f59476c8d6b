-- +goose Up
-- An epoch begins when the server is another one than before: a standby was promoted, a backup restored. Tokens are of an epoch.
ALTER TABLE dbcontroller_registry.meta
    ADD COLUMN epoch    uuid, -- null before the first one
    ADD COLUMN server   text, -- as the server says
    ADD COLUMN timeline text;

-- +goose Down
ALTER TABLE dbcontroller_registry.meta DROP COLUMN epoch, DROP COLUMN server, DROP COLUMN timeline;
