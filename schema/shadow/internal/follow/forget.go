package follow

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// The foreign targets of a statement, by their ids, and by deployment and uid.
const (
	targetsByID  = `f.id = ANY ($1)`
	targetsByUID = `f.deployment_id = $1 AND f.uid = ANY ($2)`

	lockForeignTargets, inOrder = `SELECT f.id FROM dbcontroller.foreign_target f WHERE `, ` ORDER BY f.id FOR UPDATE`

	removeForeignTargets = `
DELETE FROM dbcontroller.foreign_target f
WHERE NOT EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = f.id) AND NOT ` + db.KeptSQL + `
    AND (f.block_attempt IS NULL OR EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = f.deployment_id)) AND `
)

// The key of each entry, for its release.
var forgetAndTellSQL = db.Codes(`
WITH gone AS (` + removeForeignTargets + targetsByID + ` RETURNING f.id, f.deployment_id, f.uid)
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, holder_uid, field_id, target_uid)
SELECT {release}, (g.id % 64)::smallint, g.deployment_id, g.uid, g.uid, $2, g.uid FROM gone g
WHERE NOT EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = g.deployment_id)`)

// Forget removes the targets of deletions at another deployment, except targets that references here still
// name, after ActFor. No call waits for it: tidying finds the targets that stay. So it comes behind the
// acknowledgement, and a watch that the act has woken does not wait until its part of the log is on disk.
func (s *Follower) Forget(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion) error {
	if from == s.Self && !s.rows.Refer() || len(deletions) == 0 {
		return nil
	}
	id, err := s.Names.Deployment(ctx, from)
	if err != nil {
		return err
	}
	uids := make([]uuid.UUID, len(deletions))
	for i, d := range deletions {
		uids[i] = d.UID
	}
	return s.forget(ctx, len(uids), targetsByUID, id, uids)
}

// ForgetUnreferred removes foreign targets, except targets that references name, and tells their deployments
// so: they may have holder entries of this one.
func (s *Follower) ForgetUnreferred(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	field, err := s.Names.Field(ctx, peer.EntryPath)
	if err != nil {
		return err
	}
	if s.rows.Refer() { // without a lock: a target that rows name stays
		if ids, err = s.unnamed(ctx, s.Pool, ids); err != nil || len(ids) == 0 {
			return err
		}
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		left, err := s.lockUnnamed(ctx, tx, targetsByID, ids)
		if err != nil || len(left) == 0 {
			return err
		}
		b := &pgx.Batch{}
		db.QueuePlans(tx, b, len(left))
		b.Queue(forgetAndTellSQL, left, field)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("remove foreign targets without references: %w", err)
	}
	return nil
}

// forget locks foreign targets before it looks for references: a save that refers to one of them holds that
// lock shared.
func (s *Follower) forget(ctx context.Context, n int, which string, args ...any) error {
	err := s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		if !s.rows.Refer() {
			db.Redoable(tx, b) // tidying finds the targets that are there again
			db.QueuePlans(tx, b, n)
			b.Queue(lockForeignTargets+which+inOrder, args...)
			b.Queue(removeForeignTargets+which, args...)
			return db.CommitWith(ctx, tx, b)
		}
		ids, err := s.lockUnnamed(ctx, tx, which, args...)
		if err != nil || len(ids) == 0 {
			return err
		}
		_, err = tx.Exec(ctx, removeForeignTargets+targetsByID, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("remove foreign targets without references: %w", err)
	}
	return nil
}

// lockUnnamed locks foreign targets, and returns the targets that no row of a table names.
func (s *Follower) lockUnnamed(ctx context.Context, tx pgx.Tx, which string, args ...any) ([]int64, error) {
	locked, err := tx.Query(ctx, lockForeignTargets+which+inOrder, args...)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(locked, pgx.RowTo[int64])
	if err == nil && len(ids) > 0 {
		err = s.rows.Refresh(ctx, tx, false)
	}
	if err != nil || len(ids) == 0 || !s.rows.Refer() {
		return ids, err
	}
	return s.unnamed(ctx, tx, ids)
}

// unnamed returns the targets that no row of a table names.
func (s *Follower) unnamed(ctx context.Context, q db.Querier, ids []int64) ([]int64, error) {
	targets, err := s.rows.Targets(ctx, q, ids)
	if err != nil {
		return nil, err
	}
	named := map[int64]bool{}
	for _, blocking := range []bool{true, false} {
		found, err := s.rows.Referring(ctx, q, blocking, targets, 1)
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			named[targets[r.Target].ID] = true
		}
	}
	return slices.DeleteFunc(ids, func(id int64) bool { return named[id] }), nil
}
