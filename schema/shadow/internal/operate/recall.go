package operate

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var (
	// One piece of work is enough for a resource and a deployment.
	endRightsSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_uid)
SELECT {end_rights}, s.shard, $2, s.uid FROM dbcontroller.shadow s WHERE s.uid = $1 AND NOT EXISTS (` + askedSQL + ` AND w.deployment_id = $2)`)

	askedSQL = `SELECT FROM dbcontroller.work w WHERE w.action = {end_rights} AND w.target_uid = $1`

	// The acting right is not stored here: a deployment with an entry may have it. The right to block has a
	// proxy, whose holder uid is its target's uid.
	listGrantedSQL = db.Codes(`
SELECT d.service, d.region, EXISTS (` + askedSQL + ` AND w.deployment_id = d.id) FROM dbcontroller.deployment d
WHERE d.id <> $3 AND (d.service, d.region) > (($5::text[])[1], ($5::text[])[2]) AND (d.id IN (SELECT deployment_id FROM dbcontroller.holder_entry WHERE target_id = $2)
    OR d.id IN (SELECT deployment_id FROM dbcontroller.blockade WHERE target_id = $2 AND holder_uid = $1))
ORDER BY d.service, d.region LIMIT $4`)

	selectToEndSQL = db.Codes(
		`SELECT seq, target_uid FROM dbcontroller.work WHERE seq = ANY ($1) AND action = {end_rights}`)
)

// grantedRights lists the deployments that may have rights to a resource that is not being deleted.
func (s *Operations) grantedRights(ctx context.Context, r resource, after []string, limit int) ([]Releasable, error) {
	rows, err := s.Pool.Query(ctx, listGrantedSQL, r.uid, r.id, s.SelfID, limit, place(after, 2))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Releasable, error) {
		k := key{what: rights, uid: r.uid}
		var asked bool
		err := row.Scan(&k.deployment.Service, &k.deployment.Region, &asked)
		out := Releasable{
			Key: k.String(), What: rights, Name: r.name, Other: k.deployment.String(),
			at: placeOf(k.deployment),
		}
		if out.Breaks = breaks(k.deployment); asked {
			out.Refused = "it was asked to end them, and has not answered yet: it is asked again until it does"
		}
		return out, err
	})
}

func breaks(of schema.DeploymentID) string {
	return of.String() +
		" ends its rights to refer to this resource without asking, if it has any, and asks for each new reference; what it wrote under them stays, and still counts. " +
		"While processes here run with --delegations, and the kind does not say delegation: none, it is given them again"
}

// recall asks a deployment to end its rights to a resource, until it says that it has. It reports whether
// that is new.
func (s *Operations) recall(ctx context.Context, tx pgx.Tx, resource uuid.UUID, of int32) (bool, error) {
	tag, err := tx.Exec(ctx, endRightsSQL, resource, of)
	return err == nil && tag.RowsAffected() > 0, err
}

// RightsToEnd returns the resources of this deployment whose rights another one has to end, by piece of work.
func (s *Operations) RightsToEnd(ctx context.Context, seqs []int64) (map[int64]uuid.UUID, error) {
	rows, err := s.Pool.Query(ctx, selectToEndSQL, seqs)
	if err != nil {
		return nil, fmt.Errorf("read the rights to end: %w", err)
	}
	uids := map[int64]uuid.UUID{}
	var seq int64
	var uid uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&seq, &uid}, func() error { uids[seq] = uid; return nil })
	return uids, err
}

// RightsEnded removes the pieces of work for rights that have ended. The answer may be of a database that was
// lost since: its rights do not count in the next epoch.
func (s *Operations) RightsEnded(ctx context.Context, seqs []int64) error { return s.Finish(ctx, seqs) }
