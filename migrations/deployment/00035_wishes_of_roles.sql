-- +goose Up
-- compatible with programs that know migration 20
-- Wishes are bounded in length and for each role of the database, and those of one deployment are found without a look at all others: a
-- program that filled the table cost a second of processor time for each look, 40 times a second, and the memory of very long names.
ALTER TABLE dbcontroller.wish ADD COLUMN asked_by name NOT NULL DEFAULT session_user;
DROP INDEX dbcontroller.wish_open;
CREATE INDEX wish_open_of ON dbcontroller.wish (split_part(target, '/', 3), split_part(target, '/', 4), asked_at, target) WHERE NOT answered;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.acquire(targets text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    waiting bigint;
    own     bigint;
BEGIN
    IF cardinality(targets) > 1000 THEN
        RAISE EXCEPTION '% names at once: at most 1000', cardinality(targets) USING ERRCODE = '54000';
    END IF;
    IF EXISTS (SELECT FROM unnest(targets) AS t WHERE octet_length(t) > 1024) THEN
        RAISE EXCEPTION 'a right to be asked for has more than 1024 bytes' USING ERRCODE = '54000', HINT = 'Pass the lines of DETAIL of RD001.';
    END IF;
    SELECT count(*), count(*) FILTER (WHERE w.asked_by = session_user) INTO waiting, own FROM (SELECT asked_by FROM dbcontroller.wish LIMIT 100000) AS w;
    IF waiting = 100000 OR own >= 60000 THEN
        RAISE EXCEPTION '% rights were asked for in the last minutes, % of them by %', waiting, own, session_user USING ERRCODE = 'RD002',
            HINT = 'Write rows with fewer new targets; what was asked for is forgotten after five minutes.';
    END IF;
    INSERT INTO dbcontroller.wish AS w (target) SELECT DISTINCT t FROM unnest(targets) AS t WHERE t IS NOT NULL ORDER BY t
    ON CONFLICT (target) DO UPDATE SET asked_at = now(), answered = false, problem = NULL, missing = false WHERE w.answered OR w.asked_at < now() - interval '1 s';
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION dbcontroller.acquire(targets text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(targets) > 1000 THEN
        RAISE EXCEPTION '% names at once: at most 1000', cardinality(targets) USING ERRCODE = '54000';
    END IF;
    IF (SELECT count(*) FROM (SELECT FROM dbcontroller.wish LIMIT 100000) AS w) = 100000 THEN
        RAISE EXCEPTION '100000 rights were asked for in the last minutes' USING ERRCODE = 'RD002',
            HINT = 'Write rows with fewer new targets; what was asked for is forgotten after five minutes.';
    END IF;
    INSERT INTO dbcontroller.wish AS w (target) SELECT DISTINCT t FROM unnest(targets) AS t WHERE t IS NOT NULL ORDER BY t
    ON CONFLICT (target) DO UPDATE SET asked_at = now(), answered = false, problem = NULL, missing = false WHERE w.answered OR w.asked_at < now() - interval '1 s';
END $$;
-- +goose StatementEnd
DROP INDEX dbcontroller.wish_open_of;
CREATE INDEX wish_open ON dbcontroller.wish (asked_at) WHERE NOT answered;
ALTER TABLE dbcontroller.wish DROP COLUMN asked_by;
