-- +goose Up
-- compatible with programs that know migration 20
-- The planner takes a table for nearly empty from the VACUUM and the ANALYZE that follow a large deletion until autovacuum looks at it again, and
-- rows that are written meanwhile fill pages that it has already. Two lists of a batch are then compared row by row: a cascade of 30,000
-- resources took minutes. Only the owner of a table may run ANALYZE.

-- +goose StatementBegin
-- Runs ANALYZE for the first table, behind a name, that has three times the rows of its statistics, and at least so many; returns its name, NULL
-- for none. One at a time, since each stays locked until the transaction ends. Rows that come and go do not count: work, for instance, is always
-- nearly empty. A table that is analysed or vacuumed at the moment is passed over, as it is by a second process that calls this.
CREATE FUNCTION dbcontroller.analyze_grown(at_least integer, behind text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    grown text;
BEGIN
    SELECT c.relname INTO grown FROM pg_class c
    WHERE c.relnamespace = 'dbcontroller'::regnamespace AND c.relkind = 'r' AND c.relname > behind
        AND pg_stat_get_live_tuples(c.oid) >= greatest(at_least, 100, 3 * c.reltuples)
    ORDER BY c.relname LIMIT 1;
    IF grown IS NOT NULL AND pg_try_advisory_xact_lock(110373738146832) AND NOT EXISTS (
        SELECT FROM pg_locks WHERE relation = format('dbcontroller.%I', grown)::regclass AND mode = 'ShareUpdateExclusiveLock' AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) THEN
        EXECUTE format('ANALYZE (SKIP_LOCKED) dbcontroller.%I', grown);
    END IF;
    RETURN grown;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION dbcontroller.analyze_grown FROM PUBLIC;

-- +goose Down
DROP FUNCTION dbcontroller.analyze_grown;
