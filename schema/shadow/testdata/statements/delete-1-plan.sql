-- round trip 1
begin isolation level read committed;
SET LOCAL lock_timeout = '300ms';
SELECT s.id, s.uid, s.kind_id, s.name, s.state, s.shard, s.revision, s.block_deletion, s.hidden, s.frozen FROM dbcontroller.shadow s JOIN unnest($1::int[], $2::text[]) AS i (kind_id, name) ON s.kind_id = i.kind_id AND s.name = i.name ORDER BY s.id FOR UPDATE OF s;
SELECT s.id, s.uid, s.kind_id, s.name, s.block_deletion, k.finalizers,
    ARRAY (SELECT deployment_id FROM dbcontroller.holder_entry e WHERE e.target_id = s.id ORDER BY 1),
    ARRAY (SELECT deployment_id FROM dbcontroller.ownee_entry e WHERE e.owner_id = s.id ORDER BY 1), s.state = 1
FROM dbcontroller.shadow s JOIN dbcontroller.kind k ON k.id = s.kind_id WHERE s.state = 1 AND (s.kind_id, s.name) IN (SELECT * FROM unnest($1::int[], $2::text[]));
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
rollback;

-- round trip 3
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);
WITH r AS MATERIALIZED (
    SELECT r.holder_id FROM (
    SELECT DISTINCT * FROM unnest($1::int[], $2::uuid[]) AS i (deployment_id, uid)
) AS asked JOIN dbcontroller.foreign_target f USING (deployment_id, uid) CROSS JOIN LATERAL (
    SELECT holder_id FROM dbcontroller.reference WHERE target_id BETWEEN f.id AND f.id AND behaviour IN (3, 5)
    ORDER BY target_id, behaviour, holder_id LIMIT $3
) AS r LIMIT $3
), h AS MATERIALIZED (
    SELECT DISTINCT holder_id AS id FROM r
)
SELECT (SELECT count(*) FROM h), (SELECT count(*) FROM h) < $3 AND (SELECT count(*) FROM r) = $3
OR EXISTS (
    SELECT FROM unnest($1::int[], $2::uuid[]) AS i (deployment_id, uid)
    CROSS JOIN LATERAL (SELECT FROM dbcontroller.owner_reference o WHERE o.deployment_id = i.deployment_id AND o.uid BETWEEN i.uid AND i.uid LIMIT 1) AS o
) OR EXISTS (
    SELECT FROM h CROSS JOIN LATERAL (SELECT * FROM dbcontroller.shadow WHERE id = h.id OFFSET 0) AS s
    WHERE (s.state <> 1 OR s.block_deletion OR EXISTS (SELECT FROM dbcontroller.holder_entry e WHERE e.target_id BETWEEN s.id AND s.id)
    OR EXISTS (SELECT FROM dbcontroller.ownee_entry e WHERE e.owner_id BETWEEN s.id AND s.id))
        OR EXISTS (SELECT FROM dbcontroller.reference WHERE target_id BETWEEN h.id AND h.id AND behaviour IN (1, 3, 5))
        OR EXISTS (SELECT FROM dbcontroller.owner_reference WHERE deployment_id = $4 AND uid BETWEEN s.uid AND s.uid)
        OR EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id BETWEEN h.id AND h.id)
);
SELECT f.id, deployment_id, uid FROM (
    SELECT DISTINCT * FROM unnest($1::int[], $2::uuid[]) AS i (deployment_id, uid)
) AS asked JOIN dbcontroller.foreign_target f USING (deployment_id, uid);
SELECT h.id, h.uid FROM (
    SELECT DISTINCT * FROM unnest($1::int[], $2::uuid[]) AS i (deployment_id, uid)
) AS asked JOIN dbcontroller.foreign_target f USING (deployment_id, uid) CROSS JOIN LATERAL (
    SELECT holder_id FROM dbcontroller.reference WHERE target_id BETWEEN f.id AND f.id AND behaviour IN (3, 5)
    ORDER BY target_id, behaviour, holder_id LIMIT $3
) AS r
CROSS JOIN LATERAL (SELECT id, uid FROM dbcontroller.shadow WHERE id = r.holder_id OFFSET 0) AS h LIMIT $3;

