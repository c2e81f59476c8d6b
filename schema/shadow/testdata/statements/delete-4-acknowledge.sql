-- round trip 1
begin isolation level read committed;
SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn(), COALESCE((CASE WHEN m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) AND split_part(m.server, '.', 2) = (SELECT oid FROM pg_database WHERE datname = current_database())::text THEN m.epoch END)::text, ''), m.token_keys, m.compacted::text, format('%s:%s:%s', COALESCE((extract(epoch FROM m.started_at) * 1000000)::bigint, 0), m.started_mark, COALESCE(pg_sequence_last_value('dbcontroller.mark'::regclass), 0)) FROM dbcontroller.meta AS m;
SELECT d.epoch IS NULL OR d.epoch <= $2, nextval('dbcontroller.mark'), CASE WHEN m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) AND split_part(m.server, '.', 2) = (SELECT oid FROM pg_database WHERE datname = current_database())::text THEN m.epoch END
FROM dbcontroller.deployment d, dbcontroller.meta m WHERE d.id = $1 FOR SHARE OF d;

-- round trip 2
WITH page AS (
    SELECT n.seq FROM dbcontroller.notice n JOIN dbcontroller.shadow s ON s.id = n.target_id
    WHERE n.deployment_id = @deployment AND n.seq > @after AND pg_visible_in_snapshot(n.xid, @position::text::pg_snapshot)
        AND NOT s.uid = ANY (COALESCE(@except::uuid[], '{}'))
    ORDER BY n.seq LIMIT @at_most
), done AS (
    DELETE FROM dbcontroller.notice WHERE seq = ANY (ARRAY (SELECT seq FROM page)) RETURNING target_id
), look AS (

INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT DISTINCT 3, s.shard, @self::int, s.id FROM dbcontroller.shadow s WHERE s.id = ANY (ARRAY (SELECT DISTINCT target_id FROM done))
)
SELECT count(*), COALESCE(max(seq), 0) FROM page;
SELECT pg_current_xact_id_if_assigned()::text, (CASE WHEN m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) AND split_part(m.server, '.', 2) = (SELECT oid FROM pg_database WHERE datname = current_database())::text THEN m.epoch END)::text FROM dbcontroller.meta m WHERE current_setting('synchronous_commit') <> 'off';
commit;

