package shadow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

// Decommissioned is an operator's decision that a deployment never comes back. Only an operator decommissions: an
// unreachable deployment, or one that the registry does not list, is not decommissioned.
type Decommissioned struct {
	Deployment schema.DeploymentID
	// Blocking is the behaviour of BLOCK references to its resources: schema.Unset or schema.CascadeDelete. References
	// with another behaviour act as on the deletion of their target.
	Blocking schema.Behaviour
	// Reason has 1 to 1000 bytes.
	Reason string
	// By is the operator's identity; At the time of the decision, by this database's clock. Both are set by Decommissioned.
	By string
	At time.Time
	// Working reports that CleanUpDecommissioned has not finished.
	Working bool
}

const (
	// Recovery does not wait for a decommissioned deployment.
	forgetUnconfirmedSQL = `UPDATE dbcontroller.deployment SET unconfirmed = false, uncompared = false WHERE id = $1 AND (unconfirmed OR uncompared)`
	isDecommissionedSQL  = `SELECT EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = $1)`
)

var (
	decommissionSQL = codes(`
WITH said AS (
    INSERT INTO dbcontroller.decommissioned (deployment_id, blocking, reason, said_by) VALUES ($1, $2, $3, $4)
    ON CONFLICT DO NOTHING RETURNING deployment_id
)
INSERT INTO dbcontroller.work (action, shard, deployment_id) SELECT {retire}, $5, deployment_id FROM said`)

	selectDecommissionedSQL = codes(`
SELECT d.service, d.region, x.blocking, x.reason, x.said_by, x.said_at,
    EXISTS (SELECT FROM dbcontroller.work w WHERE w.action = {retire} AND w.deployment_id = x.deployment_id)
FROM dbcontroller.decommissioned x JOIN dbcontroller.deployment d ON d.id = x.deployment_id
ORDER BY d.service, d.region`)
)

// Decommission decommissions another deployment: after its commit no reference to or from that deployment is
// established, and none of its resources becomes an owner or an ownee here. CleanUpDecommissioned, which it adds as
// work, removes what is stored. A second call changes nothing: the first decision counts. It fails with *InvalidError.
func (s *Store) Decommission(ctx context.Context, d Decommissioned) error {
	switch {
	case d.Deployment == s.self:
		return &InvalidError{Resource: "deployment", Err: errors.New("a deployment cannot decommission itself: say it to the others")}
	case d.Blocking != schema.Unset && d.Blocking != schema.CascadeDelete:
		return &InvalidError{Resource: "blocking", Err: errors.New("want UNSET or CASCADE_DELETE")}
	case d.Reason == "" || len(d.Reason) > 1000:
		return &InvalidError{Resource: "reason", Err: errors.New("want up to 1000 characters: it is kept for those who ask later")}
	}
	id, err := s.names.deployment(ctx, d.Deployment)
	if err != nil {
		return err
	}
	err = s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
		// Exclusive version lock: writes, establishes and owner checks hold it shared, and read the decommissioned
		// deployments after they have it.
		if _, err := tx.Exec(ctx, lockVersionSQL, versionLock); err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(decommissionSQL, id, int16(d.Blocking), d.Reason, d.By, schema.Shard(d.Deployment.String()))
		b.Queue(forgetUnconfirmedSQL, id)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("decommission %s: %w", d.Deployment, err)
	}
	s.log.Warn("a deployment is decommissioned", zap.Stringer("deployment", d.Deployment), zap.String("by", d.By), zap.String("reason", d.Reason))
	return s.loadDecommissioned(ctx)
}

// Decommissioned lists the decommissioned deployments, by service and region.
func (s *Store) Decommissioned(ctx context.Context) ([]Decommissioned, error) {
	rows, err := s.pool.Query(ctx, selectDecommissionedSQL)
	if err != nil {
		return nil, fmt.Errorf("read who is decommissioned: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Decommissioned, err error) {
		err = row.Scan(&d.Deployment.Service, &d.Deployment.Region, &d.Blocking, &d.Reason, &d.By, &d.At, &d.Working)
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("read who is decommissioned: %w", err)
	}
	return out, nil
}

// Barred tells whether a deployment is known here to be decommissioned. Another process may know it a little earlier;
// what must not happen is refused by the transactions themselves.
func (s *Store) IsDecommissioned(id schema.DeploymentID) bool {
	decommissioned := s.decommissioned.Load()
	return decommissioned != nil && slices.Contains(*decommissioned, id)
}

func (s *Store) loadDecommissioned(ctx context.Context) error {
	all, err := s.Decommissioned(ctx)
	if err != nil {
		return err
	}
	decommissioned := make([]schema.DeploymentID, len(all))
	for i, d := range all {
		decommissioned[i] = d.Deployment
	}
	s.decommissioned.Store(&decommissioned)
	return nil
}

// notBarred refuses new references and owners in deployments that are gone. The version's lock is held shared.
func (s *Store) refuseDecommissioned(ctx context.Context, sv *saving, decommissioned []int32) error {
	if len(decommissioned) == 0 {
		return nil
	}
	var refused []Refusal
	for _, wr := range sv.writes {
		for _, o := range wr.addOwners {
			if slices.Contains(decommissioned, o.deploymentID) {
				return &InvalidError{Resource: wr.Name, Err: fmt.Errorf("owner %s: %w", o.name, errOwnerDecommissioned)}
			}
		}
		for _, ref := range wr.add {
			if ref.Target.Deployment == s.self {
				continue
			}
			id, err := s.names.deployment(ctx, ref.Target.Deployment)
			if err != nil {
				return err
			}
			if slices.Contains(decommissioned, id) {
				refused = append(refused, Refusal{Holder: wr.Name, Path: ref.Path, Target: ref.Target, Reason: TargetDecommissioned})
			}
		}
	}
	if len(refused) > 0 {
		return &RefusedError{Refusals: refused}
	}
	return nil
}

var errOwnerDecommissioned = errors.New("an operator has decommissioned its deployment")

const (
	// What a deployment has here, by the keys it is stored under: a page walks no row twice.
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

	// Establish, Confirm and deletes hold the shadow: what they write comes before this or never.
	lockDecommissionedTargetsSQL = `SELECT FROM dbcontroller.shadow WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`

	decommissionedOwneesSQL = `
SELECT DISTINCT ownee_id FROM dbcontroller.owner_reference WHERE deployment_id = $1 AND ownee_id > $2 ORDER BY ownee_id LIMIT $3`
)

var (
	decommissionedForeignTargetsSQL = codes(`
SELECT f.id, f.uid FROM dbcontroller.foreign_target f
WHERE f.deployment_id = $1 AND f.id > $2 AND EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id AND r.behaviour < {allow_dangling})
ORDER BY f.id LIMIT $3`)

	// As long as anything is left the piece of work is, too.
	finishDecommissionSQL = codes(`
DELETE FROM dbcontroller.work w WHERE w.deployment_id = $1
    AND NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE deployment_id = $1)
    AND NOT EXISTS (SELECT FROM dbcontroller.holder_entry WHERE deployment_id = $1)
    AND NOT EXISTS (SELECT FROM dbcontroller.notice WHERE deployment_id = $1)
    AND NOT EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE deployment_id = $1)
    AND NOT EXISTS (SELECT FROM dbcontroller.owner_reference WHERE deployment_id = $1)
    AND NOT EXISTS (
        SELECT FROM dbcontroller.foreign_target f JOIN dbcontroller.reference r ON r.target_id = f.id
        WHERE f.deployment_id = $1 AND r.behaviour < {allow_dangling}
    )`)
)

var (
	cleanUpTargetsSQL = codes(`
WITH blockades AS (
    DELETE FROM dbcontroller.blockade WHERE deployment_id = $1 AND target_id = ANY ($2)
), entries AS (
    DELETE FROM dbcontroller.holder_entry WHERE deployment_id = $1 AND target_id = ANY ($2)
), notices AS (
    DELETE FROM dbcontroller.notice WHERE deployment_id = $1 AND target_id = ANY ($2)
), ownees AS (
    DELETE FROM dbcontroller.ownee_entry WHERE deployment_id = $1 AND owner_id = ANY ($2)
)` + lookAgain(`$3`, `dbcontroller.shadow s WHERE s.id = ANY ($2) AND s.state = {deleting}`))

	blockingHoldersSQL = codes(`
SELECT r.holder_id FROM dbcontroller.reference r JOIN dbcontroller.foreign_target f ON f.id = r.target_id
WHERE f.deployment_id = $1 AND f.uid = ANY ($2) AND r.behaviour = {block} LIMIT $3`)

	// Under the locks of the holders. A parent cannot be unset: it may dangle.
	replaceBlockingSQL = codes(`
UPDATE dbcontroller.reference r SET behaviour = CASE WHEN $3 = {unset} AND r.field_id = $5 THEN {allow_dangling} ELSE $3 END
FROM dbcontroller.foreign_target f
WHERE r.holder_id = ANY ($4) AND f.id = r.target_id AND f.deployment_id = $1 AND f.uid = ANY ($2) AND r.behaviour = {block}`)

	dropDecommissionedWorkSQL = codes(`DELETE FROM dbcontroller.work WHERE deployment_id = $1 AND action <> {retire}`)
)

// retirePage is how many targets, and how many foreign ones, one step takes.
const decommissionPage = 1000

// Retire works off what a decommissioned deployment had here, and what pointed to it: blockades, entries and
// unacknowledged deletions of its holders go, references to its resources act, owner references to them are dropped,
// and messages to it are forgotten. It ends with all of it, and goes on where it was when it is called again. What it
// was not told of is not touched.
func (s *Store) CleanUpDecommissioned(ctx context.Context, deployment schema.DeploymentID) error {
	id, err := s.names.deployment(ctx, deployment)
	if err != nil {
		return err
	}
	var blocking schema.Behaviour
	// The same id in every deployment that decommissions it.
	cause := &schema.Cause{ID: uuid.NewSHA1(uuid.NameSpaceURL, []byte("decommission/"+deployment.String())), Root: "//" + deployment.String()}
	err = s.pool.QueryRow(ctx, `SELECT blocking, said_by, said_at FROM dbcontroller.decommissioned WHERE deployment_id = $1`, id).Scan(&blocking, &cause.Actor, &cause.At)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("clean up after %s: it is not decommissioned", deployment)
	}
	if err != nil {
		return fmt.Errorf("clean up after %s: %w", deployment, err)
	}
	err = errors.Join(s.cleanUpTargets(ctx, id), s.cleanUpReferences(ctx, deployment, id, blocking, cause), s.cleanUpOwners(ctx, id, cause))
	if err != nil {
		return fmt.Errorf("clean up after %s: %w", deployment, err)
	}
	return s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, dropDecommissionedWorkSQL, id); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, finishDecommissionSQL, id)
		if err == nil && tag.RowsAffected() > 0 {
			s.log.Info("cleaned up after a decommissioned deployment", zap.Stringer("deployment", deployment))
		}
		return err
	})
}

func (s *Store) cleanUpTargets(ctx context.Context, deployment int32) error {
	for after := int64(0); ; {
		rows, err := s.pool.Query(ctx, decommissionedTargetsSQL, deployment, after, decommissionPage)
		if err != nil {
			return err
		}
		targets, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(targets) == 0 {
			return err
		}
		after = targets[len(targets)-1]
		err = s.inTx(ctx, workFeed|noticeFeed, func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(lockDecommissionedTargetsSQL, targets)
			b.Queue(cleanUpTargetsSQL, deployment, targets, s.selfID)
			return tx.SendBatch(ctx, b).Close()
		})
		if err != nil {
			return err
		}
	}
}

func (s *Store) cleanUpReferences(ctx context.Context, deployment schema.DeploymentID, id int32, blocking schema.Behaviour, cause *schema.Cause) error {
	var failed error
	for after := int64(0); ; {
		rows, err := s.pool.Query(ctx, decommissionedForeignTargetsSQL, id, after, decommissionPage)
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
		failures, err := s.ActFor(ctx, deployment, deletions, math.MaxInt64)
		if err != nil {
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

// turnBlocking lets references that blocked act, as the operator said.
func (s *Store) replaceBlocking(ctx context.Context, deployment int32, uids []uuid.UUID, blocking schema.Behaviour) error {
	parent, err := s.names.field(ctx, schema.ParentPath)
	if err != nil {
		return err
	}
	for {
		rows, err := s.pool.Query(ctx, blockingHoldersSQL, deployment, uids, s.cfg.BatchSize)
		if err != nil {
			return err
		}
		holders, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(holders) == 0 {
			return err
		}
		slices.Sort(holders)
		holders = slices.Compact(holders)
		err = s.inTx(ctx, noFeed, func(tx pgx.Tx) error {
			if _, err := lockMembers(ctx, tx, holders); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, replaceBlockingSQL, deployment, uids, int16(blocking), holders, parent)
			return err
		})
		if err != nil {
			return err
		}
	}
}

func (s *Store) cleanUpOwners(ctx context.Context, deployment int32, cause *schema.Cause) error {
	change := ownerChange{cause: cause, lost: func(r ownerRow) bool { return r.deploymentID == deployment }}
	var failed error
	for after := int64(0); ; {
		rows, err := s.pool.Query(ctx, decommissionedOwneesSQL, deployment, after, s.cfg.BatchSize)
		if err != nil {
			return err
		}
		ownees, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(ownees) == 0 {
			return errors.Join(failed, err)
		}
		after = ownees[len(ownees)-1]
		failed = errors.Join(failed, s.changeEach(ctx, ownees, func(part []int64) error {
			return s.inTx(ctx, allFeeds, func(tx pgx.Tx) error { return s.changeOwners(ctx, tx, slices.Clone(part), change) })
		}))
		if ctx.Err() != nil {
			return errors.Join(failed, ctx.Err())
		}
	}
}
