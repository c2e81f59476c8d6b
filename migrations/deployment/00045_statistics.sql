-- +goose Up
-- compatible with programs that know migration 20
-- The planner takes a table for nearly empty from the VACUUM and the ANALYZE that follow a large deletion until autovacuum looks at it again, and
-- rows that are written meanwhile fill pages that it has already. Two lists of a batch are then compared row by row: a cascade of 30,000
-- resources took minutes. Only the owner of a table may run ANALYZE.

-- +goose StatementBegin
-- Runs ANALYZE for the tables that have grown to more than three times their rows by their statistics, and by at least so many rows; returns their
-- names. Of a table that is analysed or vacuumed at the moment the statistics are about to be right.
CREATE FUNCTION dbcontroller.analyze_grown(at_least integer) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    grown text[];
    name text;
BEGIN
    SELECT array_agg(c.relname ORDER BY c.relname) INTO grown FROM pg_class c
    WHERE c.relnamespace = 'dbcontroller'::regnamespace AND c.relkind = 'r'
        AND pg_stat_get_mod_since_analyze(c.oid) >= greatest(at_least, 100, 2 * c.reltuples);
    FOREACH name IN ARRAY COALESCE(grown, '{}') LOOP
        EXECUTE format('ANALYZE (SKIP_LOCKED) dbcontroller.%I', name);
    END LOOP;
    RETURN grown;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION dbcontroller.analyze_grown FROM PUBLIC;

-- +goose Down
DROP FUNCTION dbcontroller.analyze_grown;
