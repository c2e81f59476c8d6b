package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
)

var decommissionSQL = db.Codes(`
WITH said AS (
    INSERT INTO dbcontroller.decommissioned (deployment_id, blocking, reason, said_by) VALUES ($1, $2, $3, $4)
    ON CONFLICT DO NOTHING RETURNING deployment_id
)
INSERT INTO dbcontroller.work (action, shard, deployment_id) SELECT {clean_up_decommissioned}, $5, deployment_id FROM said`)

// Decommission decommissions another deployment: after its commit no reference to or from that deployment is
// established, and none of its resources becomes an owner or an ownee here. CleanUpDecommissioned, which it
// adds as work, removes the stored rows. A second call changes nothing: the first decision counts. It fails
// with *InvalidError.
func (s *Admin) Decommission(ctx context.Context, d gate.Decommissioned) error {
	switch {
	case d.Deployment == s.Self:
		return &peer.InvalidError{
			Resource: "deployment",
			Err:      errors.New("a deployment cannot decommission itself: call the other deployments"),
		}
	case d.Blocking != schema.Unset && d.Blocking != schema.CascadeDelete:
		return &peer.InvalidError{Resource: "blocking", Err: errors.New("want UNSET or CASCADE_DELETE")}
	case d.Reason == "" || len(d.Reason) > 1000:
		return &peer.InvalidError{
			Resource: "reason",
			Err:      errors.New("want 1 to 1000 characters; the reason is stored with the decision"),
		}
	}
	id, err := s.Names.Deployment(ctx, d.Deployment)
	if err != nil {
		return err
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		// Exclusive version lock: writes, establishes and owner checks hold it shared, and read the
		// decommissioned deployments after they have it.
		if _, err := tx.Exec(ctx, gate.LockVersionSQL, gate.VersionLock); err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(decommissionSQL, id, int16(d.Blocking), d.Reason, d.By, schema.Shard(d.Deployment.String()))
		b.Queue(gate.ForgetUnconfirmedSQL, id)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("decommission %s: %w", d.Deployment, err)
	}
	s.Log.Warn("a deployment is decommissioned", zap.Stringer("deployment", d.Deployment), zap.String("by", d.By),
		zap.String("reason", d.Reason), requestid.Field(ctx))
	return s.gate.LoadDecommissioned(ctx)
}

// DecommissionPlan is the effect of decommissioning a deployment here. Each count ends at
// DecommissionCounted.
type DecommissionPlan struct {
	Deleted  int64 // resources here that refer to resources there and are deleted
	Unset    int64 // references
	Dangling int64 // references
	Owned    int64 // resources here with an owner there
	Released int64 // references from there that do not count any more
}

// DecommissionCounted is the greatest count of a DecommissionPlan: there may be more.
const DecommissionCounted = 100_000

// Counts read no more rows than they can tell. A holder is counted once for any number of references.
var planDecommissionSQL = db.Codes(`
WITH gone AS MATERIALIZED (SELECT id FROM dbcontroller.deployment WHERE service = $1 AND region = $2), referring AS MATERIALIZED (
    SELECT r.holder_id, CASE WHEN r.behaviour = {block} THEN $3 ELSE r.behaviour END AS behaviour
    FROM dbcontroller.foreign_target f JOIN dbcontroller.reference r ON r.target_id = f.id WHERE f.deployment_id = (SELECT id FROM gone) LIMIT $4
)
SELECT (SELECT count(DISTINCT holder_id) FROM referring WHERE behaviour IN ({cascade_delete}, {async_cascade_delete})),
    (SELECT count(*) FROM referring WHERE behaviour IN ({unset}, {async_unset})),
    (SELECT count(*) FROM referring WHERE behaviour = {allow_dangling}),
    (SELECT count(*) FROM (SELECT DISTINCT ownee_id FROM dbcontroller.owner_reference WHERE deployment_id = (SELECT id FROM gone) LIMIT $4) AS o),
    (SELECT count(*) FROM (SELECT FROM dbcontroller.blockade WHERE deployment_id = (SELECT id FROM gone) LIMIT $4) AS b)`)

// PlanDecommission counts the effects of Decommission here, and changes nothing. A deployment that is not
// known here has no part.
func (s *Admin) PlanDecommission(ctx context.Context, of schema.DeploymentID,
	blocking schema.Behaviour,
) (p DecommissionPlan, err error) {
	err = s.Pool.QueryRow(ctx, planDecommissionSQL, of.Service, of.Region, int16(blocking), DecommissionCounted).
		Scan(&p.Deleted, &p.Unset, &p.Dangling, &p.Owned, &p.Released)
	if err != nil {
		return p, fmt.Errorf("plan the decommissioning of %s: %w", of, err)
	}
	return p, nil
}

const (
	// The rows of a deployment here, by the keys that they are stored by: a page walks no row twice.
	decommissionedTargetsSQL = `
SELECT DISTINCT id FROM (
    (SELECT target_id AS id FROM dbcontroller.blockade WHERE deployment_id = $1 AND target_id > $2 ORDER BY target_id LIMIT $3)
    UNION ALL
    (SELECT target_id FROM dbcontroller.holder_entry WHERE deployment_id = $1 AND target_id > $2 ORDER BY target_id LIMIT $3)
    UNION ALL
    (SELECT target_id FROM dbcontroller.notice WHERE deployment_id = $1 AND target_id > $2 ORDER BY target_id LIMIT $3)
    UNION ALL
    (SELECT owner_id FROM dbcontroller.ownee_entry WHERE deployment_id = $1 AND owner_id > $2 ORDER BY owner_id LIMIT $3)
) AS t ORDER BY id LIMIT $3`

	// Establish, Confirm and deletes lock the shadow: their rows are committed before this statement, or
	// refused.
	lockDecommissionedTargetsSQL = `SELECT FROM dbcontroller.shadow WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`

	decommissionedOwneesSQL = `
SELECT DISTINCT ownee_id FROM dbcontroller.owner_reference WHERE deployment_id = $1 AND ownee_id > $2 ORDER BY ownee_id LIMIT $3`
)

var (
	// Rows of tables ($4) may name any of them.
	decommissionedForeignTargetsSQL = db.Codes(`
SELECT f.id, f.uid FROM dbcontroller.foreign_target f
WHERE f.deployment_id = $1 AND f.id > $2 AND ($4 OR f.acting_epoch IS NOT NULL OR f.block_epoch IS NOT NULL OR EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id AND r.behaviour < {allow_dangling}))
ORDER BY f.id LIMIT $3`)

	// The piece of work stays as long as there are rows of the deployment.
	finishDecommissionSQL = db.Codes(`
DELETE FROM dbcontroller.work w WHERE w.deployment_id = $1
    AND NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE deployment_id = $1)
    AND NOT EXISTS (SELECT FROM dbcontroller.holder_entry WHERE deployment_id = $1)
    AND NOT EXISTS (SELECT FROM dbcontroller.notice WHERE deployment_id = $1)
    AND NOT EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE deployment_id = $1)
    AND NOT EXISTS (SELECT FROM dbcontroller.owner_reference WHERE deployment_id = $1)
    AND NOT EXISTS (SELECT FROM dbcontroller.foreign_target WHERE deployment_id = $1 AND (acting_epoch IS NOT NULL OR block_epoch IS NOT NULL))
    AND NOT EXISTS (
        SELECT FROM dbcontroller.foreign_target f JOIN dbcontroller.reference r ON r.target_id = f.id
        WHERE f.deployment_id = $1 AND r.behaviour < {allow_dangling}
    )`)
)

var (
	// At most $4 blockades: one target can have millions. Each step has its targets looked at again, since it
	// may be the last one.
	cleanUpTargetsSQL = db.Codes(`
WITH blockades AS (
    DELETE FROM dbcontroller.blockade WHERE (target_id, holder_uid, field_id, attempt) IN (
        SELECT target_id, holder_uid, field_id, attempt FROM dbcontroller.blockade WHERE deployment_id = $1 AND target_id = ANY ($2) LIMIT $4
    )
), entries AS (
    DELETE FROM dbcontroller.holder_entry WHERE deployment_id = $1 AND target_id = ANY ($2)
), notices AS (
    DELETE FROM dbcontroller.notice WHERE deployment_id = $1 AND target_id = ANY ($2)
), ownees AS (
    DELETE FROM dbcontroller.ownee_entry WHERE deployment_id = $1 AND owner_id = ANY ($2)
)` + db.LookAgain(`$3`, `dbcontroller.shadow s WHERE s.id = ANY ($2) AND s.state = {deleting}`))

	blockadesLeftSQL = `SELECT EXISTS (SELECT FROM dbcontroller.blockade WHERE deployment_id = $1 AND target_id = ANY ($2))`

	blockingHoldersSQL = db.Codes(`
SELECT r.holder_id FROM dbcontroller.reference r JOIN dbcontroller.foreign_target f ON f.id = r.target_id
WHERE f.deployment_id = $1 AND f.uid = ANY ($2) AND r.behaviour = {block} LIMIT $3`)

	// Under the locks of the holders. One in DELETING keeps nothing there any more.
	dropKeptSQL = db.Codes(`
DELETE FROM dbcontroller.reference r USING dbcontroller.foreign_target f, dbcontroller.shadow h
WHERE r.holder_id = ANY ($3) AND h.id = r.holder_id AND h.state = {deleting} AND f.id = r.target_id AND f.deployment_id = $1 AND f.uid = ANY ($2) AND r.behaviour = {block}`)

	// Under the locks of the holders. A parent cannot be unset: it may dangle.
	replaceBlockingSQL = db.Codes(`
UPDATE dbcontroller.reference r SET behaviour = CASE WHEN $3 = {unset} AND r.field_id = $5 THEN {allow_dangling} ELSE $3 END
FROM dbcontroller.foreign_target f
WHERE r.holder_id = ANY ($4) AND f.id = r.target_id AND f.deployment_id = $1 AND f.uid = ANY ($2) AND r.behaviour = {block}`)

	dropDecommissionedWorkSQL = db.Codes(`
WITH dropped AS (
    DELETE FROM dbcontroller.work WHERE seq IN (
        SELECT seq FROM dbcontroller.work WHERE deployment_id = $1 AND action <> {clean_up_decommissioned} AND seq > $2 ORDER BY seq LIMIT $3
    ) RETURNING seq
)
SELECT COALESCE(max(seq), 0) FROM dropped`)
)

// decommissionPage is the maximum number of targets, and of foreign targets, of one step.
const decommissionPage = 1000

// CleanUpDecommissioned removes, in pages, all rows of a decommissioned deployment and all references to it:
// blockades, entries and unacknowledged deletions of its holders are removed, references to its resources
// act, owner references to them are dropped, and messages to it are removed. It ends when nothing is left; a
// later call continues. Rows of other deployments are not touched.
func (s *Admin) CleanUpDecommissioned(ctx context.Context, deployment schema.DeploymentID) error {
	id, err := s.Names.Deployment(ctx, deployment)
	if err != nil {
		return err
	}
	var blocking schema.Behaviour
	// The same id in every deployment that decommissions it.
	cause := &schema.Cause{
		ID:   uuid.NewSHA1(uuid.NameSpaceURL, []byte("decommission/"+deployment.String())),
		Root: "//" + deployment.String(),
	}
	err = s.Pool.QueryRow(ctx,
		`SELECT blocking, said_by, said_at FROM dbcontroller.decommissioned WHERE deployment_id = $1`, id).
		Scan(&blocking, &cause.Actor, &cause.At)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("clean up after %s: it is not decommissioned", deployment)
	}
	if err != nil {
		return fmt.Errorf("clean up after %s: %w", deployment, err)
	}
	err = errors.Join(s.thaw(ctx, id), s.cleanUpTargets(ctx, id), s.cleanUpReferences(ctx, deployment, id, blocking,
		cause), s.cleanUpOwners(ctx, id, cause))
	if err != nil {
		return fmt.Errorf("clean up after %s: %w", deployment, err)
	}
	if err := s.dropMessages(ctx, id); err != nil {
		return fmt.Errorf("clean up after %s: %w", deployment, err)
	}
	return s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, finishDecommissionSQL, id)
		if err == nil && tag.RowsAffected() > 0 {
			s.Log.Info("cleaned up after a decommissioned deployment", zap.Stringer("deployment", deployment))
		}
		return err
	})
}

// Of deletions that the deployment coordinates, and of members for which it has the target: no mark comes
// from there. Nothing is frozen for it any more. A member of a scheduled deletion of another coordinator may
// be one for other targets too: it stays hidden, and when it is not marked after the commit, it is opened.
const thawDecommissionedSQL = `
WITH freezes AS (
    DELETE FROM dbcontroller.freeze WHERE deployment_id = $1 RETURNING deletion
), kept AS (
    UPDATE dbcontroller.frozen m SET via_deployment_id = f.deployment_id, via_uid = '00000000-0000-0000-0000-000000000000' FROM dbcontroller.freeze f
    WHERE f.deletion = m.deletion AND m.via_deployment_id = $1 AND f.deployment_id <> $1 AND f.purge_at IS NOT NULL AND NOT f.committed
    RETURNING m.target_id, m.deletion
)
DELETE FROM dbcontroller.frozen m
WHERE (via_deployment_id = $1 OR deletion IN (SELECT deletion FROM freezes)) AND NOT EXISTS (SELECT FROM kept k WHERE k.target_id = m.target_id AND k.deletion = m.deletion)
RETURNING target_id`

func (s *Admin) thaw(ctx context.Context, deployment int32) error {
	return s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, thawDecommissionedSQL, deployment)
		if err != nil {
			return err
		}
		thawed, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		return target.Unhide(ctx, tx, s.DB, thawed)
	})
}

// dropMessages removes the messages to a decommissioned deployment.
func (s *Admin) dropMessages(ctx context.Context, deployment int32) error {
	for last := int64(0); ; {
		err := s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, dropDecommissionedWorkSQL, deployment, last, s.Cfg.Limits.Batch).Scan(&last)
		})
		if err != nil || last == 0 {
			return err
		}
	}
}

func (s *Admin) cleanUpTargets(ctx context.Context, deployment int32) error {
	for after := int64(0); ; {
		rows, err := s.Pool.Query(ctx, decommissionedTargetsSQL, deployment, after, decommissionPage)
		if err != nil {
			return err
		}
		targets, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(targets) == 0 {
			return err
		}
		after = targets[len(targets)-1]
		for more := true; more; {
			err = s.InTx(ctx, db.WorkFeed|db.NoticeFeed, func(tx pgx.Tx) error {
				b := &pgx.Batch{}
				b.Queue(lockDecommissionedTargetsSQL, targets)
				b.Queue(cleanUpTargetsSQL, deployment, targets, s.SelfID, s.Cfg.Limits.Batch)
				b.Queue(blockadesLeftSQL, deployment, targets).QueryRow(func(row pgx.Row) error {
					return row.Scan(&more)
				})
				return tx.SendBatch(ctx, b).Close()
			})
			if err != nil {
				return err
			}
		}
	}
}

// cleanUpReferences acts upon all references to the deployment's resources, and ends the rights to refer to
// them, each under its lock: the order alone excludes neither a transaction that has used a right, nor one
// with an older snapshot. The next run ends the rights that are used at the moment.
func (s *Admin) cleanUpReferences(ctx context.Context, deployment schema.DeploymentID, id int32,
	blocking schema.Behaviour, cause *schema.Cause,
) error {
	var failed error
	for after := int64(0); ; {
		rows, err := s.Pool.Query(ctx, decommissionedForeignTargetsSQL, id, after, decommissionPage,
			s.follow.RowsRefer())
		if err != nil {
			return err
		}
		targets, err := pgx.CollectRows(rows, pgx.RowToStructByPos[decommissionedTarget])
		if err != nil || len(targets) == 0 {
			return errors.Join(failed, err)
		}
		after = targets[len(targets)-1].ID
		uids, deletions := make([]uuid.UUID, len(targets)), make([]schema.Deletion, len(targets))
		for i, t := range targets {
			uids[i], deletions[i] = t.UID, schema.Deletion{UID: t.UID, Cause: cause}
		}
		if err := s.replaceBlocking(ctx, id, uids, blocking); err != nil {
			return err
		}
		failures, err := s.follow.ActForDecommissioned(ctx, deployment, deletions, blocking)
		if err != nil {
			return err
		}
		if err := s.follow.Forget(ctx, deployment, deletions); err != nil {
			return err
		}
		for _, err := range failures { // the others go on (I20)
			failed = errors.Join(failed, err)
		}
	}
}

type decommissionedTarget struct {
	ID  int64
	UID uuid.UUID
}

// replaceBlocking gives blocking references the behaviour that the operator chose.
func (s *Admin) replaceBlocking(ctx context.Context, deployment int32, uids []uuid.UUID,
	blocking schema.Behaviour,
) error {
	parent, err := s.Names.Field(ctx, schema.ParentPath)
	if err != nil {
		return err
	}
	for {
		rows, err := s.Pool.Query(ctx, blockingHoldersSQL, deployment, uids, s.Cfg.Limits.Batch)
		if err != nil {
			return err
		}
		holders, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(holders) == 0 {
			return err
		}
		slices.Sort(holders)
		holders = slices.Compact(holders)
		err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
			if _, err := cascade.LockMembers(ctx, tx, holders); err != nil {
				return err
			}
			b := &pgx.Batch{}
			b.Queue(dropKeptSQL, deployment, uids, holders)
			b.Queue(replaceBlockingSQL, deployment, uids, int16(blocking), holders, parent)
			return tx.SendBatch(ctx, b).Close()
		})
		if err != nil {
			return err
		}
	}
}

func (s *Admin) cleanUpOwners(ctx context.Context, deployment int32, cause *schema.Cause) error {
	change := cascade.OwnerChange{Cause: cause, Lost: func(r prepare.OwnerRow) bool {
		return r.DeploymentID == deployment
	}}
	var failed error
	for after := int64(0); ; {
		rows, err := s.Pool.Query(ctx, decommissionedOwneesSQL, deployment, after, s.Cfg.Limits.Batch)
		if err != nil {
			return err
		}
		ownees, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(ownees) == 0 {
			return errors.Join(failed, err)
		}
		after = ownees[len(ownees)-1]
		failed = errors.Join(failed, s.ChangeEach(ctx, ownees, func(part []int64) error {
			return s.InTx(ctx, db.AllFeeds, func(tx pgx.Tx) error {
				return s.cascade.ChangeOwners(ctx, tx, slices.Clone(part), change)
			})
		}))
		if ctx.Err() != nil {
			return errors.Join(failed, ctx.Err())
		}
	}
}
