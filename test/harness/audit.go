package harness

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// The auditor reads the tables with statements of its own, so that it shares no mistakes with the store.
const (
	auditLocalSQL = `
SELECT h.name, f.path, r.target_id FROM dbcontroller.reference r
JOIN dbcontroller.shadow h ON h.id = r.holder_id JOIN dbcontroller.field f ON f.id = r.field_id
WHERE r.behaviour <> 6 AND NOT EXISTS (SELECT FROM dbcontroller.shadow t WHERE t.id = r.target_id)
    AND NOT EXISTS (SELECT FROM dbcontroller.foreign_target t WHERE t.id = r.target_id)`

	auditForeignSQL = `
SELECT h.uid, h.name, h.state, f.path, r.attempt, r.behaviour, t.uid, d.service || '/' || d.region, r.delegated AND r.behaviour = 1, t.block_attempt
FROM dbcontroller.reference r
JOIN dbcontroller.shadow h ON h.id = r.holder_id JOIN dbcontroller.field f ON f.id = r.field_id
JOIN dbcontroller.foreign_target t ON t.id = r.target_id JOIN dbcontroller.deployment d ON d.id = t.deployment_id
WHERE NOT r.dangling` // a dangling mark reports a lost target: a user decides about its holder

	// Rights to block, each with the blockade of a proxy.
	auditRightsSQL = `
SELECT t.uid, t.block_attempt, d.service || '/' || d.region
FROM dbcontroller.foreign_target t JOIN dbcontroller.deployment d ON d.id = t.deployment_id
WHERE t.block_attempt IS NOT NULL AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id)`

	// The existing ones of some resources, and whether each has a holder entry of the deployment.
	auditTargetsSQL = `
SELECT s.uid, EXISTS (SELECT FROM dbcontroller.holder_entry e JOIN dbcontroller.deployment d ON d.id = e.deployment_id
    WHERE e.target_id = s.id AND d.service || '/' || d.region = $2)
FROM unnest($1::uuid[]) AS i (uid) JOIN dbcontroller.shadow s USING (uid)`

	auditBlockadesSQL = `
SELECT t.uid, b.holder_uid, f.path, b.attempt, d.service || '/' || d.region, b.expires_at IS NOT NULL
FROM dbcontroller.blockade b JOIN dbcontroller.shadow t ON t.id = b.target_id
JOIN dbcontroller.field f ON f.id = b.field_id JOIN dbcontroller.deployment d ON d.id = b.deployment_id`

	auditOrphansSQL = `
SELECT 'reference', count(*) FROM dbcontroller.reference r WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow s JOIN dbcontroller.kind k ON k.id = s.kind_id
    WHERE s.id = r.holder_id AND (s.state = 1 OR r.behaviour = 1 AND r.field_id = ANY (k.until_removed)))
UNION ALL SELECT 'resource', count(*) FROM dbcontroller.resource r WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.id = r.id)
UNION ALL SELECT 'blockade', count(*) FROM dbcontroller.blockade b WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.id = b.target_id)
UNION ALL SELECT 'holder_entry', count(*) FROM dbcontroller.holder_entry b WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.id = b.target_id)
UNION ALL SELECT 'owner_reference', count(*) FROM dbcontroller.owner_reference o WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.id = o.ownee_id AND s.state = 1)
UNION ALL SELECT 'owner_lost', count(*) FROM dbcontroller.owner_lost o WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.id = o.ownee_id AND s.state = 1)
UNION ALL SELECT 'ownee_entry', count(*) FROM dbcontroller.ownee_entry e WHERE NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.id = e.owner_id)
UNION ALL SELECT 'notice', count(*) FROM dbcontroller.notice
UNION ALL SELECT 'frozen', count(*) FROM dbcontroller.frozen m LEFT JOIN dbcontroller.freeze f USING (deletion) WHERE f.purge_at IS NULL OR f.committed
UNION ALL SELECT 'hidden', count(*) FROM dbcontroller.shadow s WHERE s.state = 1 AND s.hidden <> EXISTS (
    SELECT FROM dbcontroller.frozen m JOIN dbcontroller.freeze f USING (deletion) WHERE m.target_id = s.id AND f.purge_at IS NOT NULL)`

	// Finalizers belong to resources in DELETING that readers see; none is written as null, and empty ones
	// are of a resource that is blocked.
	auditFinalizersSQL = `
SELECT name FROM dbcontroller.shadow WHERE finalizers IS NOT NULL AND (state <> 2 OR hidden OR cardinality(finalizers) = 0 AND NOT block_deletion
    AND NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = shadow.id) AND NOT EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = shadow.id AND behaviour = 1))`

	// Resources whose number of owners differs from their number of rows of owner_reference.
	auditOwnersSeenSQL = `
SELECT s.name FROM dbcontroller.shadow s JOIN dbcontroller.resource r USING (id)
WHERE s.state = 1 AND COALESCE(jsonb_array_length(r.owners), 0) <> (SELECT count(*) FROM dbcontroller.owner_reference o WHERE o.ownee_id = s.id)`

	auditOwnersSQL = `
SELECT s.name, o.name, o.uid, d.service || '/' || d.region
FROM dbcontroller.owner_reference o JOIN dbcontroller.shadow s ON s.id = o.ownee_id JOIN dbcontroller.deployment d ON d.id = o.deployment_id
WHERE o.checked`

	auditOwnersThereSQL = `
SELECT s.uid, EXISTS (SELECT FROM dbcontroller.ownee_entry e JOIN dbcontroller.deployment d ON d.id = e.deployment_id
    WHERE e.owner_id = s.id AND d.service || '/' || d.region = $2)
FROM unnest($1::uuid[]) AS i (uid) JOIN dbcontroller.shadow s USING (uid) WHERE s.state = 1`
)

type blockadeID struct {
	target, holder, attempt uuid.UUID
	path, deployment        string
}

func (b blockadeID) String() string {
	return fmt.Sprintf("(%s of %s at %s to %s, attempt %s)", b.path, b.holder, b.deployment, b.target, b.attempt)
}

// auditRights takes the proxies of rights to block, which have blockades.
func auditRights(t require.TestingT, id schema.DeploymentID, pool *pgxpool.Pool,
	pools map[schema.DeploymentID]*pgxpool.Pool, held map[blockadeID]bool,
) {
	rows, err := pool.Query(context.Background(), auditRightsSQL)
	require.NoError(t, err)
	var uid, attempt uuid.UUID
	var at string
	_, err = pgx.ForEachRow(rows, []any{&uid, &attempt, &at}, func() error {
		there, err := schema.ParseDeploymentID(at)
		if pools[there] != nil {
			held[blockadeID{
				target: uid, holder: uid, attempt: attempt, path: "@delegation", deployment: id.String(),
			}] = true
		}
		return err
	})
	require.NoError(t, err)
}

// Audit fails unless the invariants at rest hold over all deployments: I1 (no reference of an active resource
// points to nothing), I8 (blocking references and confirmed blockades match one to one, entries cover the
// acting ones, nothing is tentative but proxies of rights), and no row belongs to nothing.
func (b *Box) Audit() {
	b.t.Helper()
	problems := AuditDatabases(b.t, b.Pools)
	require.Empty(b.t, problems)
}

// AuditDatabases audits databases and returns the violations that it found.
func AuditDatabases(t require.TestingT, pools map[schema.DeploymentID]*pgxpool.Pool) (problems []string) {
	ctx := context.Background()
	held := map[blockadeID]bool{}
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for id, pool := range pools {
		rows, err := pool.Query(ctx, auditLocalSQL)
		require.NoError(t, err)
		var name, path string
		var target int64
		_, err = pgx.ForEachRow(rows, []any{&name, &path, &target}, func() error {
			report("I1: %s: %s of %s refers to %d, which is not there", id, path, name, target)
			return nil
		})
		require.NoError(t, err)
		auditForeign(t, id, pool, pools, held, report)
		auditRights(t, id, pool, pools, held)
		auditOwners(t, id, pool, pools, report)
		auditRemovals(t, id, pool, pools, report)
		rows, err = pool.Query(ctx, auditFinalizersSQL)
		require.NoError(t, err)
		_, err = pgx.ForEachRow(rows, []any{&name}, func() error {
			report("I33: %s: %s has finalizers that nobody will remove", id, name)
			return nil
		})
		require.NoError(t, err)
	}
	for id, pool := range pools {
		rows, err := pool.Query(ctx, auditBlockadesSQL)
		require.NoError(t, err)
		var name string
		var k blockadeID
		var tentative bool
		_, err = pgx.ForEachRow(rows, []any{&k.target, &k.holder, &k.path, &k.attempt, &k.deployment, &tentative},
			func() error {
				// the proxy of a right is confirmed some time after its first use
				if tentative && (k.path != "@delegation" || !held[k]) {
					report("I8: %s: tentative blockade %v", id, k)
				} else if !held[k] {
					report("I8: %s: blockade %v of no reference", id, k)
				}
				delete(held, k)
				return nil
			})
		require.NoError(t, err)
		rows, err = pool.Query(ctx, auditOrphansSQL)
		require.NoError(t, err)
		var n int
		_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error {
			if n > 0 {
				report("%s: %d rows of %s belong to nothing", id, n, name)
			}
			return nil
		})
		require.NoError(t, err)
	}
	for k := range held {
		report("I8: blocking reference %v has no blockade", k)
	}
	return problems
}

// auditOwners checks I16 and I17 at rest: each checked owner exists, and has an ownee entry of this
// deployment.
func auditOwners(t require.TestingT, id schema.DeploymentID, pool *pgxpool.Pool,
	pools map[schema.DeploymentID]*pgxpool.Pool, report func(string, ...any),
) {
	ctx := context.Background()
	rows, err := pool.Query(ctx, auditOwnersSeenSQL)
	require.NoError(t, err)
	var ownee string
	_, err = pgx.ForEachRow(rows, []any{&ownee}, func() error {
		report("%s: the owners of %s are not those that users see", id, ownee)
		return nil
	})
	require.NoError(t, err)
	type row struct {
		Ownee, Owner string
		UID          uuid.UUID
		At           string
	}
	rows, err = pool.Query(ctx, auditOwnersSQL)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	by := map[string][]uuid.UUID{}
	for _, r := range found {
		by[r.At] = append(by[r.At], r.UID)
	}
	entered := auditThere(t, auditOwnersThereSQL, by, id, pools)
	for _, r := range found {
		if entered[r.At] == nil {
			continue
		}
		if known, there := entered[r.At][r.UID]; !there {
			report("I17: %s: %s is owned by %s at %s, which is not there", id, r.Ownee, r.Owner, r.At)
		} else if !known {
			report("I17: %s: %s is owned by %s at %s, which does not know that it has ownees here", id, r.Ownee,
				r.Owner, r.At)
		}
	}
}

// auditThere looks up resources in their deployments' databases. An existing resource has a value in the
// result: whether it has an entry of the audited deployment. A deployment without a database here has no map.
func auditThere(t require.TestingT, sql string, by map[string][]uuid.UUID, audited schema.DeploymentID,
	pools map[schema.DeploymentID]*pgxpool.Pool,
) map[string]map[uuid.UUID]bool {
	known := map[string]map[uuid.UUID]bool{}
	for at, uids := range by {
		there, err := schema.ParseDeploymentID(at)
		require.NoError(t, err)
		if pools[there] == nil {
			continue
		}
		known[at] = map[uuid.UUID]bool{}
		rows, err := pools[there].Query(context.Background(), sql, uids, audited.String())
		require.NoError(t, err)
		var uid uuid.UUID
		var entered bool
		_, err = pgx.ForEachRow(rows, []any{&uid, &entered}, func() error { known[at][uid] = entered; return nil })
		require.NoError(t, err)
	}
	return known
}

func auditForeign(t require.TestingT, id schema.DeploymentID, pool *pgxpool.Pool,
	pools map[schema.DeploymentID]*pgxpool.Pool, held map[blockadeID]bool, report func(string, ...any),
) {
	type row struct {
		Holder    uuid.UUID
		Name      string
		State     int
		Path      string
		Attempt   uuid.UUID
		Behaviour schema.Behaviour
		Target    uuid.UUID
		At        string
		Delegated bool
		Proxy     *uuid.UUID
	}
	rows, err := pool.Query(context.Background(), auditForeignSQL)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	by := map[string][]uuid.UUID{}
	for _, r := range found {
		by[r.At] = append(by[r.At], r.Target)
	}
	entered := auditThere(t, auditTargetsSQL, by, id, pools)
	for _, r := range found {
		if r.Behaviour == schema.AllowDangling || entered[r.At] == nil {
			continue
		}
		known, there := entered[r.At][r.Target]
		switch {
		case !there:
			report("I1: %s: %s of %s refers to %s at %s, which is not there", id, r.Path, r.Name, r.Target, r.At)
		case r.Delegated && r.Proxy == nil:
			report("I8: %s: %s of %s refers to %s under a right without a proxy", id, r.Path, r.Name, r.Target)
		case r.Delegated: // auditRights
		case r.Behaviour == schema.Block:
			held[blockadeID{
				target: r.Target, holder: r.Holder, attempt: r.Attempt, path: r.Path, deployment: id.String(),
			}] = true
		case !known:
			report("I8: %s: %s of %s refers to %s, which has no entry of this deployment", id, r.Path, r.Name, r.Target)
		}
	}
}
