-- round trip 1
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);
SELECT EXISTS (SELECT FROM dbcontroller.deployment WHERE service = $1 AND region = $2 AND paused);
SELECT id, uid, kind_id, name FROM dbcontroller.foreign_target WHERE deployment_id = $1 AND uid = ANY ($2);
SELECT EXISTS (SELECT FROM dbcontroller.foreign_target f WHERE f.deployment_id = $1 AND f.uid = ANY ($2) AND (f.acting_epoch IS NOT NULL OR f.block_attempt IS NOT NULL));
SELECT f.id, r.holder_id FROM dbcontroller.foreign_target f CROSS JOIN LATERAL (
    SELECT holder_id FROM dbcontroller.reference WHERE target_id = f.id AND behaviour IN (2, 3, 4, 5) LIMIT $3
) AS r WHERE f.deployment_id = $1 AND f.uid = ANY ($2) LIMIT $4;

-- round trip 2
begin isolation level read committed;
SET LOCAL lock_timeout = '1s';
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);
SELECT id, uid, kind_id, name, state, shard, block_deletion, hidden, frozen FROM dbcontroller.shadow WHERE id = ANY ($1) ORDER BY id FOR UPDATE;
SELECT target_id, holder_id, field_id, behaviour FROM dbcontroller.reference
WHERE holder_id = ANY ($1) AND target_id = ANY ($2) AND behaviour IN (2, 3, 4, 5);
SELECT t FROM (SELECT unnest($1::bigint[])) AS x (t)
CROSS JOIN LATERAL (SELECT FROM dbcontroller.reference WHERE target_id BETWEEN t AND t ORDER BY target_id LIMIT 1) AS r;
SELECT t, EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t),
    EXISTS (SELECT FROM dbcontroller.holder_entry WHERE target_id = t),
    EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE owner_id = t)
FROM (SELECT unnest($1::bigint[])) AS x (t)
WHERE EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t)
    OR EXISTS (SELECT FROM dbcontroller.holder_entry WHERE target_id = t)
    OR EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE owner_id = t);
SELECT id, COALESCE(finalizers, '{}'), COALESCE(until_removed, '{}') FROM dbcontroller.kind WHERE finalizers IS NOT NULL OR until_removed IS NOT NULL;
SELECT nextval('dbcontroller.mark'), CASE WHEN m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) AND split_part(m.server, '.', 2) = (SELECT oid FROM pg_database WHERE datname = current_database())::text THEN m.epoch END, NOT m.awaiting AND NOT EXISTS (SELECT FROM dbcontroller.deployment d WHERE (d.unconfirmed OR d.uncompared OR d.position_due AND (SELECT positions_until > clock_timestamp() FROM dbcontroller.meta)) AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id)),
    EXISTS (SELECT FROM dbcontroller.deployment d WHERE d.id = $1 AND d.paused), m.version, m.generation, m.digest
FROM dbcontroller.meta m;

-- round trip 3
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);
WITH going AS (
    DELETE FROM dbcontroller.shadow WHERE id = ANY (@ids) RETURNING id, uid, kind_id, name, shard, generation, created_at, hidden
), 
causes AS (
    SELECT nextval('dbcontroller.cause_id') AS id, c.*
    FROM unnest(@hows::smallint[], @via_deployments::int[], @via_uids::uuid[], @via_names::text[], @deletions::uuid[], @actors::text[], @roots::text[],
        @root_uids::uuid[], @requests::uuid[], @times::timestamptz[], @traces::text[])
        WITH ORDINALITY AS c (how, via_deployment_id, via_uid, via_name, deletion_id, actor, root, root_uid, request_id, at, trace_parent, n)
), noted_causes AS (
    INSERT INTO dbcontroller.cause (id, how, via_deployment_id, via_uid, via_name, deletion_id, actor, root, root_uid, request_id, at, trace_parent)
    SELECT id, how, via_deployment_id, via_uid, via_name, deletion_id, actor, root, root_uid, request_id, at, trace_parent FROM causes
), noted AS (
    INSERT INTO dbcontroller.removal (name, uid, kind_id, cause_id, brief)
    SELECT going.name, going.uid, going.kind_id, causes.id, going.uid BETWEEN @brief_from AND @brief_until
    FROM going JOIN unnest(@noted::bigint[], @reasons::int[]) AS i (id, n) USING (id) JOIN causes USING (n)
), bodies AS (
    DELETE FROM dbcontroller.resource WHERE id = ANY (@ids)
), entries AS (
    DELETE FROM dbcontroller.holder_entry WHERE target_id = ANY (@ids)
), 
owned AS (
    DELETE FROM dbcontroller.owner_reference WHERE ownee_id = ANY (@ids)
), owned_once AS (
    DELETE FROM dbcontroller.owner_lost WHERE ownee_id = ANY (@ids)
), refs AS (
    DELETE FROM dbcontroller.reference r WHERE r.holder_id = ANY (@ids) RETURNING holder_id, target_id, field_id, behaviour, attempt, delegated
), released AS (
    INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, holder_uid, field_id, target_uid)
    SELECT 2, going.shard, f.deployment_id, refs.attempt, going.uid, refs.field_id, f.uid
    FROM refs JOIN going ON going.id = refs.holder_id JOIN dbcontroller.foreign_target f ON f.id = refs.target_id
    WHERE refs.behaviour = 1 AND NOT refs.delegated RETURNING 1
), rights AS (

INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT DISTINCT 13, (f.id % 64)::smallint, f.deployment_id, f.id FROM refs JOIN dbcontroller.foreign_target f ON f.id = refs.target_id WHERE refs.behaviour = 1 AND refs.delegated RETURNING 1
), looked AS (

INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT DISTINCT 3, s.shard, @self::int, s.id FROM refs JOIN dbcontroller.shadow s ON s.id = refs.target_id WHERE refs.behaviour = 1 AND NOT s.id = ANY (@ids) RETURNING 1
), changed AS (
INSERT INTO dbcontroller.change (uid, revision, generation, kind_id, state, created_at, name)
SELECT uid, nextval('dbcontroller.revision'), generation, kind_id, 3, created_at, name FROM going WHERE NOT hidden
)
SELECT EXISTS (SELECT FROM released) OR EXISTS (SELECT FROM rights) OR EXISTS (SELECT FROM looked), false;
SELECT pg_current_xact_id_if_assigned()::text, (CASE WHEN m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) AND split_part(m.server, '.', 2) = (SELECT oid FROM pg_database WHERE datname = current_database())::text THEN m.epoch END)::text FROM dbcontroller.meta m WHERE current_setting('synchronous_commit') <> 'off';
commit;

