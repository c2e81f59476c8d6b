-- round trip 1
begin isolation level read committed;
SET LOCAL lock_timeout = '300ms';
SELECT s.id, s.uid, s.kind_id, s.name, s.state, s.shard, s.revision, s.block_deletion, s.hidden, s.frozen FROM dbcontroller.shadow s JOIN unnest($1::int[], $2::text[]) AS i (kind_id, name) ON s.kind_id = i.kind_id AND s.name = i.name ORDER BY s.id FOR UPDATE OF s;
SELECT t FROM (SELECT s.id FROM dbcontroller.shadow s JOIN unnest($1::int[], $2::text[]) AS i (kind_id, name) ON s.kind_id = i.kind_id AND s.name = i.name) AS x (t)
CROSS JOIN LATERAL (SELECT FROM dbcontroller.reference WHERE target_id BETWEEN t AND t ORDER BY target_id LIMIT 1) AS r;
SELECT t, EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t),
    EXISTS (SELECT FROM dbcontroller.holder_entry WHERE target_id = t),
    EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE owner_id = t)
FROM (SELECT s.id FROM dbcontroller.shadow s JOIN unnest($1::int[], $2::text[]) AS i (kind_id, name) ON s.kind_id = i.kind_id AND s.name = i.name) AS x (t)
WHERE EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t)
    OR EXISTS (SELECT FROM dbcontroller.holder_entry WHERE target_id = t)
    OR EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE owner_id = t);
SELECT id, COALESCE(finalizers, '{}'), COALESCE(until_removed, '{}') FROM dbcontroller.kind WHERE finalizers IS NOT NULL OR until_removed IS NOT NULL;
SELECT nextval('dbcontroller.mark'), CASE WHEN m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) AND split_part(m.server, '.', 2) = (SELECT oid FROM pg_database WHERE datname = current_database())::text THEN m.epoch END, NOT m.awaiting AND NOT EXISTS (SELECT FROM dbcontroller.deployment d WHERE (d.unconfirmed OR d.uncompared OR d.position_due AND (SELECT positions_until > clock_timestamp() FROM dbcontroller.meta)) AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id)),
    EXISTS (SELECT FROM dbcontroller.deployment d WHERE d.id = $1 AND d.paused), m.version, m.generation, m.digest
FROM dbcontroller.meta m;

-- round trip 2
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);
WITH going AS (
    UPDATE dbcontroller.shadow
    SET state = 2, revision = nextval('dbcontroller.revision'), updated_at = now(),
        hidden = COALESCE(kind_id = ANY (@hiding::int[]), false) AND NOT COALESCE(id = ANY (@visible::bigint[]), false),
        finalizers = CASE WHEN id = ANY (@held::bigint[]) THEN '{}' ELSE (SELECT string_to_array(f.names, ' ') FROM unnest(@held_kinds::int[], @finalizers::text[]) AS f (kind_id, names) WHERE f.kind_id = shadow.kind_id) END
    WHERE id = ANY (@ids) AND state = 1
    RETURNING id, uid, kind_id, name, shard, revision, generation, created_at, hidden, block_deletion, finalizers
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
), notices AS (
    INSERT INTO dbcontroller.notice (target_id, deployment_id)
    SELECT e.target_id, e.deployment_id FROM dbcontroller.holder_entry e JOIN going ON going.id = e.target_id
    UNION SELECT b.target_id, b.deployment_id FROM dbcontroller.blockade b JOIN going ON going.id = b.target_id AND going.uid = b.holder_uid
    UNION SELECT id, @self::int FROM going WHERE id = ANY (@notify)
    RETURNING 1
), disowned AS (
    INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
    SELECT 5, going.shard, e.deployment_id, going.id FROM dbcontroller.ownee_entry e JOIN going ON going.id = e.owner_id
    RETURNING 1
), 
owned AS (
    DELETE FROM dbcontroller.owner_reference WHERE ownee_id = ANY (@ids)
), owned_once AS (
    DELETE FROM dbcontroller.owner_lost WHERE ownee_id = ANY (@ids)
), refs AS (
    DELETE FROM dbcontroller.reference r WHERE r.holder_id = ANY (@ids)
        AND (cardinality(@kept_kinds::int[]) = 0 OR r.target_id = r.holder_id OR NOT EXISTS (
            SELECT FROM dbcontroller.shadow h JOIN unnest(@kept_kinds::int[], @kept_fields::int[]) AS k (kind_id, field_id) USING (kind_id)
            WHERE h.id = r.holder_id AND r.behaviour = 1 AND r.field_id = k.field_id)) RETURNING holder_id, target_id, field_id, behaviour, attempt, delegated
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
INSERT INTO dbcontroller.change (uid, revision, generation, kind_id, state, created_at, name, labels, body, owners, block_deletion, finalizers, status, status_generation)
SELECT uid, revision, generation, kind_id, 2, created_at, name, labels, body, owners, block_deletion, finalizers, status, status_generation FROM going JOIN dbcontroller.resource r USING (id) WHERE NOT hidden
UNION ALL
SELECT uid, revision, generation, kind_id, 3, created_at, name, NULL, NULL, NULL, false, NULL, NULL, NULL FROM going
WHERE hidden AND NOT COALESCE(id = ANY (@gone::bigint[]), false)
)
SELECT EXISTS (SELECT FROM released) OR EXISTS (SELECT FROM rights) OR EXISTS (SELECT FROM looked) OR EXISTS (SELECT FROM disowned), EXISTS (SELECT FROM notices);
SELECT s.uid, s.kind_id, s.name, s.state, s.revision, s.generation, s.created_at, s.updated_at, r.labels, r.body, r.owners, s.block_deletion,
    s.finalizers, r.status, COALESCE(r.status_generation, 0), CASE WHEN s.hidden THEN (
        SELECT ARRAY[min(f.deleted_at), min(f.purge_at)] FROM dbcontroller.frozen m JOIN dbcontroller.freeze f USING (deletion) WHERE m.target_id = s.id AND f.purge_at IS NOT NULL
    ) END
FROM dbcontroller.shadow s LEFT JOIN dbcontroller.resource r USING (id)
WHERE s.kind_id = $1 AND s.name = $2 AND (s.state = 1 OR NOT s.hidden);
SELECT pg_current_xact_id_if_assigned()::text, (CASE WHEN m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) AND split_part(m.server, '.', 2) = (SELECT oid FROM pg_database WHERE datname = current_database())::text THEN m.epoch END)::text FROM dbcontroller.meta m WHERE current_setting('synchronous_commit') <> 'off';
commit;

