-- +goose Up
-- compatible with programs that know migration 20
-- Releases before finalizers remove resources, mark them and switch versions without them. In a deployment that has had a version with
-- finalizers such statements fail unless the transaction declares that its program knows finalizers; the program of an old process takes
-- SQLSTATE 55000 for a database that is not available. The triggers of users' tables (pg_trigger_depth) remove rows of tables, which have none.
ALTER TABLE dbcontroller.meta ADD COLUMN finalizers boolean NOT NULL DEFAULT false;
UPDATE dbcontroller.meta SET finalizers = EXISTS (SELECT FROM dbcontroller.kind WHERE kind.finalizers IS NOT NULL)
    OR EXISTS (SELECT FROM dbcontroller.shadow WHERE shadow.finalizers IS NOT NULL);
-- +goose StatementBegin
CREATE FUNCTION dbcontroller.refuse_former_program() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM dbcontroller.meta WHERE finalizers) THEN
        RAISE EXCEPTION 'this deployment has finalizers, and the release of this process does not know them'
            USING ERRCODE = '55000', HINT = 'Replace the process by one of a later release.';
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER finalizers_known BEFORE DELETE OR UPDATE OF state ON dbcontroller.shadow FOR EACH STATEMENT
    WHEN (current_setting('dbcontroller.knows', true) IS DISTINCT FROM 'finalizers' AND pg_trigger_depth() = 0)
    EXECUTE FUNCTION dbcontroller.refuse_former_program();
CREATE TRIGGER finalizers_known BEFORE UPDATE OF version, digest ON dbcontroller.meta FOR EACH STATEMENT
    WHEN (current_setting('dbcontroller.knows', true) IS DISTINCT FROM 'finalizers')
    EXECUTE FUNCTION dbcontroller.refuse_former_program();

-- +goose Down
DROP TRIGGER finalizers_known ON dbcontroller.meta;
DROP TRIGGER finalizers_known ON dbcontroller.shadow;
DROP FUNCTION dbcontroller.refuse_former_program();
ALTER TABLE dbcontroller.meta DROP COLUMN finalizers;
