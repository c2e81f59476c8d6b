-- +goose Up
-- compatible with programs that know migration 20
-- Rights can be asked for by a call as well, whose caller's identity may be longer than the name of a role. And a question that nobody answered
-- because no process was there begins anew when it is asked again: with the age of the first one it was forgotten, or answered as too late.
ALTER TABLE dbcontroller.wish ALTER COLUMN asked_by TYPE text;
-- +goose StatementBegin
CREATE FUNCTION dbcontroller.acquire_as(targets text[], caller text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
    SELECT count(*), count(*) FILTER (WHERE w.asked_by = caller) INTO waiting, own FROM (SELECT asked_by FROM dbcontroller.wish LIMIT 100000) AS w;
    IF waiting = 100000 OR own >= 60000 THEN
        RAISE EXCEPTION '% rights were asked for in the last minutes, % of them by %', waiting, own, caller USING ERRCODE = 'RD002',
            HINT = 'Write rows with fewer new targets; what was asked for is forgotten after five minutes.';
    END IF;
    -- A process answers each question within a few seconds.
    INSERT INTO dbcontroller.wish AS w (target, asked_by) SELECT DISTINCT t, caller FROM unnest(targets) AS t WHERE t IS NOT NULL ORDER BY t
    ON CONFLICT (target) DO UPDATE SET asks = nextval('dbcontroller.statement'), answered = false,
        asked_at = CASE WHEN w.answered OR w.asked_at < now() - interval '20 s' THEN now() ELSE w.asked_at END;
END $$;

CREATE OR REPLACE FUNCTION dbcontroller.acquire(targets text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM dbcontroller.acquire_as(targets, session_user::text);
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION dbcontroller.acquire_as FROM PUBLIC;

-- +goose Down
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
    ON CONFLICT (target) DO UPDATE SET asks = nextval('dbcontroller.statement'), answered = false, asked_at = CASE WHEN w.answered THEN now() ELSE w.asked_at END;
END $$;
-- +goose StatementEnd
DROP FUNCTION dbcontroller.acquire_as;
ALTER TABLE dbcontroller.wish ALTER COLUMN asked_by TYPE name USING left(asked_by, 63)::name;
