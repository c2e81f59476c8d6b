-- +goose Up
-- compatible with programs that know migration 20
-- A statement about many rows of an attached table wrote a note a row, with four index entries each, which was most of what it cost. It notes
-- its rows in batches now, and the controller spreads them to notes of single rows before it reads these. Triggers write batches once attach
-- has run with a program that knows them.
CREATE TABLE dbcontroller.captured_batch (
    seq       bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT captured_batch_pkey PRIMARY KEY,
    kind_id   integer NOT NULL,
    rows      integer NOT NULL,            -- names in names
    names     text[] COLLATE "C" NOT NULL,
    statement bigint,                      -- as in dbcontroller.captured
    at        timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX captured_batch_statement ON dbcontroller.captured_batch (statement) WHERE statement IS NOT NULL;
CREATE INDEX captured_batch_kind ON dbcontroller.captured_batch (kind_id);

ALTER TABLE dbcontroller.member ADD COLUMN batches boolean NOT NULL DEFAULT false; -- the process knows batches

-- +goose StatementBegin
-- A process that does not know pins would answer that nothing refers while rows wait to be stored: it does not join while there are strict tables.
-- A process with the rights switched off does not join either: the tables would refuse every new reference. One that does not know batches would
-- never read the rows in them, and take the pins of their statements for old ones.
CREATE OR REPLACE FUNCTION dbcontroller.refuse_member() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(110373738146831); -- of joins
    IF NOT (NEW.pins AND NEW.delegates) AND EXISTS (SELECT FROM dbcontroller.attachment WHERE strict AND ready) THEN
        RAISE EXCEPTION 'tables here have strict references, and this process does not know them, or has delegations switched off'
            USING HINT = 'Run a version that knows them with --delegations, or declare the references as enforce: async and attach again first.';
    END IF;
    IF NOT NEW.batches AND (EXISTS (SELECT FROM dbcontroller.captured_batch)
        OR EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = 'dbcontroller'::regnamespace AND p.proname LIKE 'attached\_%' AND p.prosrc LIKE '%dbcontroller.captured\_batch%')) THEN
        RAISE EXCEPTION 'triggers of attached tables here note rows in batches, and this process does not know them'
            USING HINT = 'Run a newer version, or run attach of this version first, and wait until the controllers have read dbcontroller.captured_batch.';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = 'dbcontroller'::regnamespace AND p.proname LIKE 'attached\_%' AND p.prosrc LIKE '%dbcontroller.captured\_batch%') THEN
        RAISE EXCEPTION 'triggers of attached tables write to dbcontroller.captured_batch'
            USING HINT = 'Run attach of the version to which you go back, or detach, first.';
    END IF;
END $$;
CREATE OR REPLACE FUNCTION dbcontroller.refuse_member() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(110373738146831); -- of joins
    IF NOT (NEW.pins AND NEW.delegates) AND EXISTS (SELECT FROM dbcontroller.attachment WHERE strict AND ready) THEN
        RAISE EXCEPTION 'tables here have strict references, and this process does not know them, or has delegations switched off'
            USING HINT = 'Run a version that knows them with --delegations, or declare the references as enforce: async and attach again first.';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
INSERT INTO dbcontroller.captured (kind_id, name, statement, at)
SELECT b.kind_id, n.name, b.statement, b.at FROM dbcontroller.captured_batch b CROSS JOIN unnest(b.names) AS n (name);
ALTER TABLE dbcontroller.member DROP COLUMN batches;
DROP TABLE dbcontroller.captured_batch;
