-- round trip 1
begin isolation level read committed;
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);
SELECT pg_advisory_xact_lock_shared($1);
SELECT i.n, s.id, s.uid, s.state, s.frozen, EXISTS (SELECT FROM dbcontroller.closing c WHERE c.target_id = s.id AND c.until > now() AND c.until <= now() + interval '10 min')
FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS i (kind_id, name, n)
JOIN dbcontroller.shadow s ON s.kind_id = i.kind_id AND s.name = i.name
ORDER BY s.id
FOR SHARE OF s;
SELECT now(), nextval('dbcontroller.mark'), CASE WHEN m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) AND split_part(m.server, '.', 2) = (SELECT oid FROM pg_database WHERE datname = current_database())::text THEN m.epoch END, m.version, m.generation, m.digest FROM dbcontroller.meta m;
SELECT i.n - 1, EXISTS (SELECT FROM dbcontroller.closed_attempt c WHERE c.attempt = i.attempt AND c.deployment_id IN (0, i.deployment_id)),
    EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = i.deployment_id), d.database_id
FROM unnest($1::uuid[], $2::int[]) WITH ORDINALITY AS i (attempt, deployment_id, n)
JOIN dbcontroller.deployment d ON d.id = i.deployment_id;

-- round trip 2
INSERT INTO dbcontroller.blockade (target_id, holder_uid, attempt, field_id, deployment_id, holder_kind_id, behaviour, expires_at, holder_name)
SELECT i.target_id, i.holder_uid, i.attempt, i.field_id, i.deployment_id, i.kind_id, i.behaviour, now() + @ttl, i.name
FROM unnest(@targets::bigint[], @holders::uuid[], @attempts::uuid[], @fields::int[], @deployments::int[], @kinds::int[], @behaviours::smallint[], @names::text[])
    AS i (target_id, holder_uid, attempt, field_id, deployment_id, kind_id, behaviour, name)
ON CONFLICT DO NOTHING;
commit;

-- round trip 3
begin isolation level read committed;
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);
SELECT pg_advisory_xact_lock_shared($1);
SELECT m.version, m.generation, m.digest, now(), ARRAY(SELECT deployment_id FROM dbcontroller.decommissioned), nextval('dbcontroller.mark'), CASE WHEN m.timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) AND split_part(m.server, '.', 2) = (SELECT oid FROM pg_database WHERE datname = current_database())::text THEN m.epoch END,
    EXISTS (
        SELECT FROM dbcontroller.deployment d JOIN unnest($1::int[], $2::uuid[]) AS i (id, epoch) ON i.id = d.id WHERE d.epoch > i.epoch
    )
FROM dbcontroller.meta m;
SELECT s.kind_id, s.name FROM unnest($1::int[], $2::text[]) AS i (kind_id, name) JOIN dbcontroller.shadow s ON s.kind_id = i.kind_id AND s.name = i.name;
SELECT nextval('dbcontroller.revision'), CASE WHEN n <= $2 THEN nextval('dbcontroller.object_id') ELSE 0 END
FROM generate_series(1, $1) AS n;

-- round trip 4
WITH i AS (
    SELECT * FROM unnest(@ids::bigint[], @uids::uuid[], @kinds::int[], @names::text[], @shards::smallint[], @revisions::bigint[], @labels::text[], @bodies::text[], @owners::text[])
        AS i (id, uid, kind_id, name, shard, revision, labels, body, owners)
), s AS (
    INSERT INTO dbcontroller.shadow (id, uid, kind_id, state, shard, revision, generation, name)
    SELECT id, uid, kind_id, 1, shard, revision, 1, name FROM i
    RETURNING id
), r AS (
    INSERT INTO dbcontroller.resource (id, labels, body, owners) SELECT id, labels::jsonb, body::jsonb, owners::jsonb FROM i
)
INSERT INTO dbcontroller.change (uid, revision, generation, kind_id, state, created_at, name, labels, body, owners, block_deletion, finalizers, status, status_generation)
SELECT uid, revision, generation, kind_id, 1, created_at, name, labels, body, owners, block_deletion, finalizers, status, status_generation FROM (
    SELECT i.uid, i.revision, 1 AS generation, i.kind_id, now() AS created_at, i.name,
        i.labels::jsonb AS labels, i.body::jsonb AS body, i.owners::jsonb AS owners, false AS block_deletion,
        NULL::text[] AS finalizers, NULL::jsonb AS status, NULL::bigint AS status_generation
    FROM s JOIN i USING (id)
) AS created;
INSERT INTO dbcontroller.attempt (id, committed) SELECT i, true FROM unnest($1::uuid[]) AS i ORDER BY i;
SELECT 1 / (forgotten <= $1)::int FROM dbcontroller.meta;
INSERT INTO dbcontroller.foreign_target (uid, deployment_id, kind_id, name)
SELECT DISTINCT * FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[]) AS i (uid, deployment_id, kind_id, name)
WHERE NOT EXISTS (
    SELECT FROM dbcontroller.foreign_target f WHERE f.uid = i.uid AND f.deployment_id = i.deployment_id AND f.kind_id = i.kind_id
)
ON CONFLICT ON CONSTRAINT foreign_target_uid DO UPDATE SET kind_id = EXCLUDED.kind_id -- a version renamed the kind
WHERE foreign_target.kind_id <> EXCLUDED.kind_id;
WITH f AS (
    SELECT id, uid, deployment_id FROM dbcontroller.foreign_target
    WHERE uid = ANY (@uids::uuid[]) FOR KEY SHARE
)
INSERT INTO dbcontroller.reference (holder_id, target_id, attempt, field_id, behaviour)
SELECT i.holder_id, f.id, i.attempt, i.field_id, i.behaviour
FROM unnest(@holders::bigint[], @uids::uuid[], @deployments::int[], @fields::int[], @behaviours::smallint[], @attempts::uuid[])
    AS i (holder_id, uid, deployment_id, field_id, behaviour, attempt)
LEFT JOIN f ON f.uid = i.uid AND f.deployment_id = i.deployment_id;
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, established)
SELECT 1, i.shard, i.deployment_id, i.attempt, i.established
FROM unnest($1::smallint[], $2::int[], $3::uuid[], $4::int[]) AS i (shard, deployment_id, attempt, established);
commit;

