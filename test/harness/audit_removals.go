package harness

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
)

// Removals are found by name and uid: there is no index of uids alone, and without one a plan made from
// statistics of before the deletions takes quadratic time.
const (
	auditUnrecordedSQL = `
SELECT DISTINCT c.name FROM dbcontroller.change c
WHERE c.state = 3 AND NOT EXISTS (
    SELECT FROM dbcontroller.removal r JOIN dbcontroller.cause x ON x.id = r.cause_id WHERE r.name = c.name AND r.uid = c.uid)
    AND NOT EXISTS (SELECT FROM dbcontroller.shadow s WHERE s.name = c.name AND s.uid = c.uid AND s.state = 1) -- it was hidden
UNION SELECT s.name FROM dbcontroller.shadow s
WHERE s.state = 2 AND NOT EXISTS (
    SELECT FROM dbcontroller.removal r JOIN dbcontroller.cause x ON x.id = r.cause_id WHERE r.name = s.name AND r.uid = s.uid)`

	auditLiveSQL = `
SELECT s.name FROM dbcontroller.shadow s JOIN dbcontroller.removal r USING (name, uid) WHERE s.state = 1`

	// The links of cascades; a chain that a Decommission has caused ends without a removal. One removal for
	// each distinct link is enough.
	auditLinksSQL = `
SELECT min(r.name), d.service || '/' || d.region, x.via_name, x.via_uid, x.root
FROM dbcontroller.removal r JOIN dbcontroller.cause x ON x.id = r.cause_id
LEFT JOIN dbcontroller.deployment d ON d.id = x.via_deployment_id
WHERE x.how = 2
GROUP BY 2, 3, 4, 5`

	auditLinkSQL = `
SELECT i.uid FROM unnest($1::text[], $2::uuid[]) AS i (name, uid)
WHERE NOT EXISTS (SELECT FROM dbcontroller.removal r WHERE r.name = i.name AND r.uid = i.uid)`

	auditEpochsSQL = `SELECT count(*) FROM dbcontroller.epoch`
)

// auditRemovals checks that each resource that is gone or DELETING has a removal with a cause, that no ACTIVE
// resource has one, and that each chain of cascades leads to the deleted root.
func auditRemovals(t require.TestingT, id schema.DeploymentID, pool *pgxpool.Pool,
	pools map[schema.DeploymentID]*pgxpool.Pool, report func(string, ...any),
) {
	ctx := context.Background()
	for sql, problem := range map[string]string{
		auditUnrecordedSQL: "%s: %s is gone or DELETING, and has no removal with a cause",
		auditLiveSQL:       "%s: the removal of %s is noted, but it lives",
	} {
		rows, err := pool.Query(ctx, sql)
		require.NoError(t, err)
		var name string
		_, err = pgx.ForEachRow(rows, []any{&name}, func() error { report(problem, id, name); return nil })
		require.NoError(t, err)
	}
	for _, p := range pools {
		var epochs int
		require.NoError(t, p.QueryRow(ctx, auditEpochsSQL).Scan(&epochs))
		if epochs > 1 {
			return // a database has lost commits, and links with them
		}
	}
	type link struct{ name, of string }
	links := map[schema.DeploymentID]map[uuid.UUID]link{}
	rows, err := pool.Query(ctx, auditLinksSQL)
	require.NoError(t, err)
	var name, root string
	var at, viaName *string
	var via *uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&name, &at, &viaName, &via, &root}, func() error {
		if via != nil && *via == uuid.Nil { // of a target that does not exist
			return nil
		}
		if at == nil || viaName == nil || via == nil {
			report("%s: the removal of %s by a cascade names no target", id, name)
			return nil
		}
		there, err := schema.ParseDeploymentID(*at)
		if err != nil {
			return err
		}
		if _, err := schema.ParseFullName(root); err != nil || pools[there] == nil {
			return nil // caused by a Decommission
		}
		if links[there] == nil {
			links[there] = map[uuid.UUID]link{}
		}
		links[there][*via] = link{name: *viaName, of: name}
		return nil
	})
	require.NoError(t, err)
	for there, of := range links {
		var names []string
		var uids []uuid.UUID
		for uid, l := range of {
			names, uids = append(names, l.name), append(uids, uid)
		}
		rows, err := pools[there].Query(ctx, auditLinkSQL, names, uids)
		require.NoError(t, err)
		var uid uuid.UUID
		_, err = pgx.ForEachRow(rows, []any{&uid}, func() error {
			report("%s: %s cascaded with %s of %s, the removal of which is not noted there", id, of[uid].of, uid, there)
			return nil
		})
		require.NoError(t, err)
	}
}
