package target

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

const lockAttemptTargetsSQL = `
SELECT id, state FROM dbcontroller.shadow
WHERE id = ANY (ARRAY (SELECT DISTINCT target_id FROM dbcontroller.blockade WHERE attempt = ANY ($1) AND deployment_id = $2))
ORDER BY id FOR SHARE`

var (
	confirmBlockingSQL = db.Codes(`
UPDATE dbcontroller.blockade SET expires_at = NULL
WHERE attempt = ANY ($1) AND deployment_id = $2 AND behaviour = {block} AND expires_at IS NOT NULL AND ` + db.OneOf("target_id", "$3::bigint[]") + `
RETURNING attempt`)

	// One holder entry replaces the tentative blockades of acting references. A target that a cascade has
	// marked in the meantime gets a new notice, so that only an acknowledgement of a later position counts
	// (I4).
	confirmActingSQL = db.Codes(`
WITH taken AS (
    DELETE FROM dbcontroller.blockade
    WHERE attempt = ANY (@attempts) AND deployment_id = @deployment AND behaviour <> {block} AND ` + db.OneOf("target_id", "@targets::bigint[]") + `
    RETURNING target_id, behaviour, attempt
)` + enterTakenSQL + `
SELECT attempt FROM taken`)

	// An entry that is looked at is used again.
	enterTakenSQL = db.Codes(`, entries AS (
    INSERT INTO dbcontroller.holder_entry (target_id, deployment_id)
    SELECT DISTINCT target_id, @deployment::int FROM taken WHERE behaviour <> {allow_dangling}
    ON CONFLICT DO NOTHING
), used AS (
    UPDATE dbcontroller.holder_entry e SET look = NULL
    WHERE e.deployment_id = @deployment AND e.target_id = ANY (ARRAY (SELECT target_id FROM taken WHERE behaviour <> {allow_dangling})) AND e.look IS NOT NULL
), marked AS (
    SELECT id, shard FROM dbcontroller.shadow WHERE id = ANY (ARRAY (SELECT DISTINCT target_id FROM taken)) AND state = {deleting}
), notices AS (
    INSERT INTO dbcontroller.notice (target_id, deployment_id)
    SELECT id, @deployment::int FROM marked WHERE id IN (SELECT target_id FROM taken WHERE behaviour <> {allow_dangling})
), looked AS (
` + db.LookAgain("@self", `marked s WHERE s.id NOT IN (SELECT target_id FROM taken WHERE behaviour <> {allow_dangling})`) + `
)`)
)

// withLockedTargets locks targets in one statement and calls fn, which changes the blockades of these targets
// alone. A blockade on a target that the lock statement did not see (a duplicate Establish was in flight)
// stays tentative and is resolved after it expires. Watches are notified only when one of the targets is
// DELETING.
func (s *Keeper) withLockedTargets(ctx context.Context, lock string, args []any,
	fn func(tx pgx.Tx, locked []int64) error,
) error {
	deleting := false
	err := s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, lock, args...)
		if err != nil {
			return err
		}
		locked := []int64{}
		var id int64
		var state peer.State
		_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error {
			locked, deleting = append(locked, id), deleting || state == peer.Deleting
			return nil
		})
		if err != nil {
			return err
		}
		return fn(tx, locked)
	})
	if err == nil && deleting {
		s.Touched(db.WorkFeed | db.NoticeFeed)
	}
	return err
}

// Confirm records that attempts of a holder's deployment have committed, in the given epoch of its database:
// BLOCK blockades become confirmed; one holder entry replaces the blockades of acting references. It returns
// the attempts without a tentative blockade, which were confirmed or released before, and the attempts with
// fewer than they have references, of which this database has lost some: nothing is created for them. A
// holder's deployment that is delegable is granted delegations of the targets. The members of its scheduled
// deletions are hidden, and those that were undeleted before are returned as unknown. It fails with
// ErrStaleEpoch.
func (s *Keeper) Confirm(ctx context.Context, holder schema.DeploymentID, c peer.Confirm) (*peer.Confirmed, error) {
	selfEpoch := s.gate.PresentEpoch()
	deployment, err := s.Names.Deployment(ctx, holder)
	if err != nil {
		return nil, err
	}
	out := &peer.Confirmed{Epoch: selfEpoch}
	if len(c.Scheduled) > 0 {
		if out.Unknown, err = s.schedule(ctx, holder, c); err != nil {
			return nil, err
		}
	}
	var kinds []int32
	delegable := c.Delegable && s.Cfg.Delegations
	if delegable {
		if kinds, err = s.delegatedKinds(ctx, holder.Service); err != nil {
			return nil, err
		}
	}
	known := map[peer.AttemptID]int32{}
	err = s.withLockedTargets(ctx, lockAttemptTargetsSQL, []any{c.Attempts, deployment},
		func(tx pgx.Tx, locked []int64) error {
			clear(known) // of an earlier try
			take := func(rows pgx.Rows) error {
				var a peer.AttemptID
				_, err := pgx.ForEachRow(rows, []any{&a}, func() error { known[a]++; return nil })
				return err
			}
			b := &pgx.Batch{}
			// a forgotten confirm leaves tentative blockades, which are resolved; a right would be forgotten
			// here alone
			if !delegable {
				db.Redoable(tx, b)
			}
			s.gate.CheckPeerEpoch(tx, b, deployment, c.Epoch, selfEpoch)
			b.Queue(confirmBlockingSQL, c.Attempts, deployment, locked).Query(take)
			b.Queue(confirmActingSQL, db.Named{
				"attempts": c.Attempts, "deployment": deployment, "self": s.SelfID,
				"targets": locked,
			}).Query(take)
			b.Queue(confirmFrozenSQL, c.Attempts, deployment).Query(take)
			if out.Delegated = nil; delegable {
				s.queueGrants(b, locked, deployment, kinds, &out.Delegated)
			}
			return tx.SendBatch(ctx, b).Close()
		})
	if err != nil {
		return nil, fmt.Errorf("confirm blockades: %w", err)
	}
	for i, a := range c.Attempts {
		least := int32(1)
		if len(c.References) == len(c.Attempts) {
			least = max(least, c.References[i])
		}
		if known[a] < least {
			out.Unknown = append(out.Unknown, a)
		}
	}
	return out, nil
}

const (
	// FOR NO KEY UPDATE, unlike FOR SHARE, waits for an Establish of the same attempt in flight: the DELETE
	// sees the blockades of an earlier Establish, and a later one sees the closed attempt. (An array, which
	// an index serves: with IN and OR, each release read all resources.)
	lockReleasedSQL = `
SELECT id, state FROM dbcontroller.shadow WHERE uid = ANY ($1)
    OR id = ANY (ARRAY (SELECT DISTINCT target_id FROM dbcontroller.blockade WHERE attempt = ANY ($2) AND deployment_id = $3))
ORDER BY id FOR NO KEY UPDATE`

	countUnknownSQL = `
SELECT count(*) FROM (SELECT DISTINCT unnest($1::uuid[]) AS attempt) AS i
WHERE NOT EXISTS (SELECT FROM dbcontroller.blockade b WHERE b.attempt = i.attempt AND b.deployment_id = $2)
    AND NOT EXISTS (SELECT FROM dbcontroller.freeze f WHERE f.deletion = i.attempt AND f.deployment_id = $2)
    AND NOT EXISTS (SELECT FROM dbcontroller.closed_attempt c WHERE c.attempt = i.attempt AND c.deployment_id = $2)`

	closeAttemptsSQL = `
INSERT INTO dbcontroller.closed_attempt (attempt, deployment_id) SELECT DISTINCT unnest($1::uuid[]), $2::int ON CONFLICT DO NOTHING`
)

// ofKeysSQL joins keys of blockades with their rows b. The targets of the keys are looked up first: otherwise
// the planner can read all blockades of a target for each key, since most targets have few. (Of a target with
// 20,000, a release of 400 took 2.8 s; it takes 3 ms.)
const ofKeysSQL = `(
    SELECT i.attempt, i.holder_uid, i.field_id, s.id AS target_id
    FROM unnest(@attempts::uuid[], @holders::uuid[], @fields::int[], @targets::uuid[]) AS i (attempt, holder_uid, field_id, target_uid)
    CROSS JOIN LATERAL (SELECT id FROM dbcontroller.shadow WHERE uid = i.target_uid OFFSET 0) AS s OFFSET 0
) AS i
WHERE b.target_id = i.target_id AND b.holder_uid = i.holder_uid AND b.field_id = i.field_id AND b.attempt IS NOT DISTINCT FROM i.attempt`

var (
	removeKeysSQL = `
WITH gone AS (
    DELETE FROM dbcontroller.blockade b USING ` + ofKeysSQL + ` AND b.deployment_id = @deployment RETURNING b.target_id
)` + lookAtGoneSQL

	removeAttemptsSQL = `
WITH gone AS (
    DELETE FROM dbcontroller.blockade
    WHERE attempt = ANY (@attempts) AND deployment_id = @deployment AND ` + db.OneOf("target_id", "@targets::bigint[]") + ` RETURNING target_id
)` + lookAtGoneSQL

	lookAtGoneSQL = db.LookAgain("@self",
		db.Codes(
			`dbcontroller.shadow s WHERE s.id = ANY (ARRAY (SELECT DISTINCT target_id FROM gone)) AND s.state = {deleting}`))
)

// Release removes the blockades with the given keys, and all blockades of the given aborted attempts, for a
// holder's deployment in the given epoch of its database. It closes the attempts: they cannot establish any
// more. It is idempotent. It fails with ErrStaleEpoch.
func (s *Keeper) Release(ctx context.Context, holder schema.DeploymentID, epoch uuid.UUID, keys []peer.BlockadeKey,
	attempts []peer.AttemptID,
) error {
	selfEpoch := s.gate.PresentEpoch()
	deployment, err := s.Names.Deployment(ctx, holder)
	if err != nil {
		return err
	}
	if keys, err = s.leaveLooks(ctx, deployment, keys); err != nil || len(keys)+len(attempts) == 0 {
		return err
	}
	k, err := s.KeyColumns(ctx, keys)
	if err != nil {
		return err
	}
	ended := slices.Concat(k.Attempts, attempts)
	err = s.withLockedTargets(ctx, lockReleasedSQL, []any{k.Targets, attempts, deployment},
		func(tx pgx.Tx, locked []int64) error {
			var unknown int
			if err := tx.QueryRow(ctx, countUnknownSQL, ended, deployment).Scan(&unknown); err != nil {
				return err
			}
			if err := s.gate.Unknown.Take(deployment, unknown); err != nil {
				return err
			}
			b := &pgx.Batch{}
			s.gate.CheckPeerEpoch(tx, b, deployment, epoch, selfEpoch)
			b.Queue(removeKeysSQL, db.Named{
				"attempts": k.Attempts, "holders": k.Holders, "fields": k.Fields, "targets": k.Targets,
				"deployment": deployment, "self": s.SelfID,
			})
			b.Queue(removeAttemptsSQL, db.Named{
				"attempts": attempts, "deployment": deployment, "targets": locked,
				"self": s.SelfID,
			})
			thawed := queueThaw(b, thawSQL, ended, deployment)
			b.Queue(closeAttemptsSQL, ended, deployment)
			err := tx.SendBatch(ctx, b).Close()
			if err == nil {
				err = Unhide(ctx, tx, s.DB, *thawed)
			}
			if err != nil {
				s.gate.Unknown.Return(deployment, unknown)
			}
			return err
		})
	if err != nil {
		return fmt.Errorf("release blockades: %w", err)
	}
	return nil
}

const lockUIDsSQL = `SELECT id, state FROM dbcontroller.shadow WHERE uid = ANY ($1) ORDER BY id FOR NO KEY UPDATE`

var (
	settleBlockingSQL = db.Codes(`
UPDATE dbcontroller.blockade b SET expires_at = NULL FROM ` + ofKeysSQL + `
    AND b.deployment_id = @deployment AND b.behaviour = {block} AND b.expires_at IS NOT NULL`)

	settleActingSQL = db.Codes(`
WITH taken AS (
    DELETE FROM dbcontroller.blockade b USING ` + ofKeysSQL + ` AND b.deployment_id = @deployment AND b.behaviour <> {block}
    RETURNING b.target_id, b.behaviour
)` + enterTakenSQL + `
SELECT count(*) FROM taken`)
)

// Settle applies the verdicts of a holder's deployment to blockades that still exist: held and leaving
// confirm, gone removes, undecided changes nothing: a deletion that is undecided is scheduled, and not asked
// about again. It fails with ErrStaleEpoch.
func (s *Keeper) Settle(ctx context.Context, holder schema.DeploymentID, questions []peer.Question,
	answers *peer.Answers,
) error {
	var held, gone []peer.BlockadeKey
	var scheduled []peer.AttemptID
	var frozen behind
	for i, v := range answers.Verdicts {
		switch {
		case questions[i].Key.Path == peer.FrozenPath:
			frozen.take(questions[i].Key, v == peer.Held)
		case v == peer.Held || v == peer.Leaving:
			held = append(held, questions[i].Key)
		case v == peer.GoneVerdict:
			gone = append(gone, questions[i].Key)
		case questions[i].Key.Path == peer.DeletionPath:
			scheduled = append(scheduled, questions[i].Key.Attempt)
		}
	}
	if err := s.settleLost(ctx, holder, answers.Epoch, frozen); err != nil {
		return err
	}
	if len(gone) > 0 {
		if err := s.Release(ctx, holder, answers.Epoch, gone, nil); err != nil {
			return err
		}
	}
	if len(held)+len(scheduled) == 0 {
		return nil
	}
	var committed []uuid.UUID
	for _, k := range held {
		if k.Path == peer.DeletionPath {
			committed = append(committed, k.Attempt)
		}
	}
	selfEpoch := s.gate.PresentEpoch()
	deployment, err := s.Names.Deployment(ctx, holder)
	if err != nil {
		return err
	}
	k, err := s.KeyColumns(ctx, held)
	if err != nil {
		return err
	}
	err = s.withLockedTargets(ctx, lockUIDsSQL, []any{k.Targets}, func(tx pgx.Tx, _ []int64) error {
		b := &pgx.Batch{}
		s.gate.CheckPeerEpoch(tx, b, deployment, answers.Epoch, selfEpoch)
		b.Queue(settleBlockingSQL, db.Named{
			"attempts": k.Attempts, "holders": k.Holders, "fields": k.Fields,
			"targets": k.Targets, "deployment": deployment,
		})
		b.Queue(settleActingSQL, db.Named{
			"attempts": k.Attempts, "holders": k.Holders, "fields": k.Fields, "targets": k.Targets,
			"deployment": deployment, "self": s.SelfID,
		})
		b.Queue(confirmFrozenSQL, committed, deployment)
		b.Queue(keepScheduledSQL, scheduled, deployment)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("settle blockades: %w", err)
	}
	return nil
}

const (
	selectExpiredHoldersSQL = `
SELECT DISTINCT deployment_id FROM dbcontroller.blockade b WHERE ` + db.ExpiredSQL + `$1::interval)
UNION SELECT f.deployment_id FROM dbcontroller.freeze f WHERE (` + db.FreezeExpiredSQL + ` OR ` + db.PurgeDueSQL + `) AND NOT f.committed
UNION SELECT m.via_deployment_id FROM dbcontroller.freeze f JOIN dbcontroller.frozen m USING (deletion)
WHERE ` + db.FreezeExpiredSQL + ` AND f.committed AND m.via_deployment_id IS NOT NULL`

	selectExpiredSQL = `
(SELECT b.attempt, b.holder_uid, b.field_id, s.uid
FROM dbcontroller.blockade b JOIN dbcontroller.shadow s ON s.id = b.target_id
WHERE ` + db.ExpiredSQL + `$3::interval) AND b.deployment_id = $1
ORDER BY b.expires_at LIMIT $2)
UNION ALL
(SELECT f.deletion, f.deletion, 0, f.deletion FROM dbcontroller.freeze f WHERE ` + db.FreezeExpiredSQL + ` AND NOT f.committed AND f.deployment_id = $1 LIMIT $2)
UNION ALL
(SELECT DISTINCT f.deletion, m.via_uid, 0, m.via_uid FROM dbcontroller.freeze f JOIN dbcontroller.frozen m USING (deletion)
WHERE ` + db.FreezeExpiredSQL + ` AND f.committed AND m.via_deployment_id = $1 LIMIT $2)`
)

// ExpiredHolders returns the deployments with expired tentative blockades here, by this database's clock.
func (s *Keeper) ExpiredHolders(ctx context.Context) ([]schema.DeploymentID, error) {
	rows, err := s.Pool.Query(ctx, selectExpiredHoldersSQL, s.Tuning.Load().TentativeTTL)
	if err != nil {
		return nil, fmt.Errorf("read expired blockades: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return nil, fmt.Errorf("read expired blockades: %w", err)
	}
	out := make([]schema.DeploymentID, len(ids))
	for i, id := range ids {
		if out[i], err = s.Names.DeploymentOf(ctx, s.Pool, id); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Expired returns up to limit questions about expired blockades of one holder's deployment, oldest first.
func (s *Keeper) Expired(ctx context.Context, holder schema.DeploymentID, limit int) ([]peer.Question, error) {
	deployment, err := s.Names.Deployment(ctx, holder)
	if err != nil {
		return nil, err
	}
	rows, err := s.Pool.Query(ctx, selectExpiredSQL, deployment, limit, s.Tuning.Load().TentativeTTL)
	if err != nil {
		return nil, fmt.Errorf("read expired blockades: %w", err)
	}
	type row struct {
		q     peer.Question
		field int32
	}
	found, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (x row, err error) {
		err = r.Scan(&x.q.Key.Attempt, &x.q.Key.HolderUID, &x.field, &x.q.Key.TargetUID)
		return x, err
	})
	if err != nil {
		return nil, fmt.Errorf("read expired blockades: %w", err)
	}
	out := make([]peer.Question, len(found))
	for i, x := range found {
		out[i] = peer.Question{Key: x.q.Key, Expired: true}
		if x.field == 0 {
			out[i].Key = peer.DeletionKey(x.q.Key.Attempt)
			if x.q.Key.TargetUID != x.q.Key.Attempt {
				out[i].Key = peer.FrozenKey(x.q.Key.Attempt, x.q.Key.TargetUID)
			}
			continue
		}
		if out[i].Key.Path, err = s.Names.FieldOf(ctx, s.Pool, x.field); err != nil {
			return nil, err
		}
	}
	return out, nil
}
