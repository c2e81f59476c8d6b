package shadow

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

const lockAttemptTargetsSQL = `
SELECT id, state FROM dbcontroller.shadow
WHERE id IN (SELECT target_id FROM dbcontroller.blockade WHERE attempt = ANY ($1) AND deployment_id = $2)
ORDER BY id FOR SHARE`

var (
	confirmBlockingSQL = codes(`
UPDATE dbcontroller.blockade SET expires_at = NULL
WHERE attempt = ANY ($1) AND deployment_id = $2 AND behaviour = {block} AND expires_at IS NOT NULL AND target_id = ANY ($3)
RETURNING attempt`)

	// One holder entry replaces the tentative blockades of acting references. A target that a cascade has marked in the
	// meantime gets a new notice, so that only an acknowledgement of a later position counts (I4).
	confirmActingSQL = codes(`
WITH taken AS (
    DELETE FROM dbcontroller.blockade
    WHERE attempt = ANY (@attempts) AND deployment_id = @deployment AND behaviour <> {block} AND target_id = ANY (@targets)
    RETURNING target_id, behaviour, attempt
)` + enterTakenSQL + `
SELECT DISTINCT attempt FROM taken`)

	enterTakenSQL = codes(`, entries AS (
    INSERT INTO dbcontroller.holder_entry (target_id, deployment_id)
    SELECT DISTINCT target_id, @deployment::int FROM taken WHERE behaviour <> {allow_dangling}
    ON CONFLICT DO NOTHING
), marked AS (
    SELECT id, shard FROM dbcontroller.shadow WHERE id IN (SELECT target_id FROM taken) AND state = {deleting}
), notices AS (
    INSERT INTO dbcontroller.notice (target_id, deployment_id)
    SELECT id, @deployment::int FROM marked WHERE id IN (SELECT target_id FROM taken WHERE behaviour <> {allow_dangling})
), looked AS (
` + lookAgain("@self", `marked s WHERE s.id NOT IN (SELECT target_id FROM taken WHERE behaviour <> {allow_dangling})`) + `
)`)
)

// withLockedTargets locks targets in one statement and calls fn, which changes the blockades of these targets alone. A
// blockade on a target that the lock statement did not see (a duplicate Establish was in flight) stays tentative and is
// resolved after it expires. Watches are notified only when one of the targets is DELETING.
func (s *Store) withLockedTargets(ctx context.Context, lock string, args []any, fn func(tx pgx.Tx, locked []int64) error) error {
	deleting := false
	err := s.inTx(ctx, noFeed, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, lock, args...)
		if err != nil {
			return err
		}
		locked := []int64{}
		var id int64
		var state State
		_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error {
			locked, deleting = append(locked, id), deleting || state == Deleting
			return nil
		})
		if err != nil {
			return err
		}
		return fn(tx, locked)
	})
	if err == nil && deleting {
		s.touched(workFeed | noticeFeed)
	}
	return err
}

// Confirm records that attempts of a holder's deployment have committed, in the given epoch of its database: BLOCK
// blockades become confirmed; one holder entry replaces the blockades of acting references. It returns the attempts
// without a tentative blockade, which were confirmed or released before: nothing is created for them. It fails with
// ErrStaleEpoch.
func (s *Store) Confirm(ctx context.Context, holder schema.DeploymentID, epoch uuid.UUID, attempts []AttemptID) ([]AttemptID, error) {
	selfEpoch := s.PresentEpoch()
	deployment, err := s.names.deployment(ctx, holder)
	if err != nil {
		return nil, err
	}
	known := map[AttemptID]bool{}
	err = s.withLockedTargets(ctx, lockAttemptTargetsSQL, []any{attempts, deployment}, func(tx pgx.Tx, locked []int64) error {
		clear(known) // of an earlier try
		take := func(rows pgx.Rows) error {
			var a AttemptID
			_, err := pgx.ForEachRow(rows, []any{&a}, func() error { known[a] = true; return nil })
			return err
		}
		b := &pgx.Batch{}
		s.checkPeerEpoch(tx, b, deployment, epoch, selfEpoch)
		b.Queue(confirmBlockingSQL, attempts, deployment, locked).Query(take)
		b.Queue(confirmActingSQL, named{"attempts": attempts, "deployment": deployment, "self": s.selfID, "targets": locked}).Query(take)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("confirm blockades: %w", err)
	}
	var unknown []AttemptID
	for _, a := range attempts {
		if !known[a] {
			unknown = append(unknown, a)
		}
	}
	return unknown, nil
}

const (
	// FOR NO KEY UPDATE, unlike FOR SHARE, waits for an Establish of the same attempt in flight: the DELETE sees the
	// blockades of an earlier Establish, and a later one sees the closed attempt.
	lockReleasedSQL = `
SELECT id, state FROM dbcontroller.shadow WHERE uid = ANY ($1)
    OR id IN (SELECT target_id FROM dbcontroller.blockade WHERE attempt = ANY ($2) AND deployment_id = $3)
ORDER BY id FOR NO KEY UPDATE`

	closeAttemptsSQL = `
INSERT INTO dbcontroller.closed_attempt (attempt, deployment_id) SELECT DISTINCT unnest($1::uuid[]), $2::int ON CONFLICT DO NOTHING`
)

var (
	removeKeysSQL = `
WITH gone AS (
    DELETE FROM dbcontroller.blockade b
    USING unnest(@attempts::uuid[], @holders::uuid[], @fields::int[], @targets::uuid[]) AS i (attempt, holder_uid, field_id, target_uid),
        dbcontroller.shadow s
    WHERE s.uid = i.target_uid AND b.target_id = s.id AND b.holder_uid = i.holder_uid AND b.field_id = i.field_id
        AND b.attempt = i.attempt AND b.deployment_id = @deployment
    RETURNING b.target_id
)` + lookAtGoneSQL

	removeAttemptsSQL = `
WITH gone AS (
    DELETE FROM dbcontroller.blockade
    WHERE attempt = ANY (@attempts) AND deployment_id = @deployment AND target_id = ANY (@targets) RETURNING target_id
)` + lookAtGoneSQL

	lookAtGoneSQL = lookAgain("@self", codes(`gone JOIN dbcontroller.shadow s ON s.id = gone.target_id WHERE s.state = {deleting}`))
)

// Release removes the blockades with the given keys, and all blockades of the given aborted attempts, for a holder's
// deployment in the given epoch of its database. It closes the attempts: they cannot establish any more. It is
// idempotent. It fails with ErrStaleEpoch.
func (s *Store) Release(ctx context.Context, holder schema.DeploymentID, epoch uuid.UUID, keys []BlockadeKey, attempts []AttemptID) error {
	selfEpoch := s.PresentEpoch()
	deployment, err := s.names.deployment(ctx, holder)
	if err != nil {
		return err
	}
	k, err := s.keyColumns(ctx, keys)
	if err != nil {
		return err
	}
	err = s.withLockedTargets(ctx, lockReleasedSQL, []any{k.targets, attempts, deployment}, func(tx pgx.Tx, locked []int64) error {
		b := &pgx.Batch{}
		s.checkPeerEpoch(tx, b, deployment, epoch, selfEpoch)
		b.Queue(removeKeysSQL, named{
			"attempts": k.attempts, "holders": k.holders, "fields": k.fields, "targets": k.targets, "deployment": deployment, "self": s.selfID,
		})
		b.Queue(removeAttemptsSQL, named{"attempts": attempts, "deployment": deployment, "targets": locked, "self": s.selfID})
		b.Queue(closeAttemptsSQL, append(k.attempts, attempts...), deployment)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("release blockades: %w", err)
	}
	return nil
}

type keyColumns struct {
	attempts, holders, targets []uuid.UUID
	fields                     []int32
}

// keyColumns returns the keys as columns for unnest. It stores no field path: a blockade of an unknown path cannot exist.
func (s *Store) keyColumns(ctx context.Context, keys []BlockadeKey) (k keyColumns, err error) {
	for _, key := range keys {
		field, err := s.names.knownField(ctx, key.Path)
		if err != nil {
			return k, err
		}
		k.attempts, k.holders = append(k.attempts, key.Attempt), append(k.holders, key.HolderUID)
		k.targets, k.fields = append(k.targets, key.TargetUID), append(k.fields, field)
	}
	return k, nil
}

const (
	selectStillHeldSQL = `
SELECT i.n - 1
FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::uuid[]) WITH ORDINALITY AS i (attempt, holder_uid, field_id, target_uid, n)
JOIN dbcontroller.shadow s ON s.uid = i.holder_uid
JOIN dbcontroller.foreign_target f ON f.uid = i.target_uid AND f.deployment_id = $5
JOIN dbcontroller.reference r ON r.holder_id = s.id AND r.field_id = i.field_id AND r.target_id = f.id AND r.attempt = i.attempt`
)

// Answer returns a verdict on each blockade that the deployment of its target asks about: held while the committed
// reference exists, gone when the attempt is decided and the reference does not exist, undecided otherwise. An undecided
// attempt whose blockade has expired by the target's clock is first decided ABORTED.
func (s *Store) Answer(ctx context.Context, target schema.DeploymentID, questions []Question) (*Answers, error) {
	selfEpoch := s.PresentEpoch()
	deployment, err := s.names.deployment(ctx, target)
	if err != nil {
		return nil, err
	}
	// The caller has blockades of this deployment, so that this deployment has to watch its deletions.
	if err := s.noteInterest(ctx, deployment); err != nil {
		return nil, err
	}
	keys := make([]BlockadeKey, len(questions))
	for i, q := range questions {
		keys[i] = q.Key
	}
	k, err := s.keyColumns(ctx, keys)
	if err != nil {
		return nil, err
	}
	verdicts, epoch := make([]Verdict, len(questions)), uuid.Nil
	held := func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, selectStillHeldSQL, k.attempts, k.holders, k.fields, k.targets, deployment)
		if err != nil {
			return err
		}
		var n int
		_, err = pgx.ForEachRow(rows, []any{&n}, func() error { verdicts[n] = Held; return nil })
		return err
	}
	err = s.inTx(ctx, noFeed, func(tx pgx.Tx) error {
		clear(verdicts)
		epoch, err = s.epochOf(ctx, tx)
		if err == nil && epoch != selfEpoch { // the looked-up ids may mean other rows: "not found" would not mean gone
			err = s.recoveringSelf()
		}
		if err != nil {
			return err
		}
		if err := held(tx); err != nil {
			return err
		}
		var expired []AttemptID
		for i, q := range questions {
			if verdicts[i] == Undecided && q.Expired {
				expired = append(expired, q.Key.Attempt)
			}
		}
		// Waits for a concurrent commit of the same attempt; the next statements then see its rows.
		if _, err := tx.Exec(ctx, decideAbortedSQL, expired); err != nil {
			return err
		}
		// Decisions before references: the references of an attempt that commits between the two statements are seen.
		decided, err := decisions(ctx, tx, k.attempts)
		if err != nil {
			return err
		}
		if err := held(tx); err != nil {
			return err
		}
		for i := range verdicts {
			if verdicts[i] == Undecided && decided[k.attempts[i]] {
				verdicts[i] = GoneVerdict
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("resolve attempts: %w", err)
	}
	return &Answers{verdicts, epoch}, nil
}

func decisions(ctx context.Context, tx pgx.Tx, attempts []AttemptID) (map[AttemptID]bool, error) {
	rows, err := tx.Query(ctx, selectDecisionsSQL, attempts)
	if err != nil {
		return nil, err
	}
	decided := map[AttemptID]bool{}
	var a AttemptID
	var committed bool
	_, err = pgx.ForEachRow(rows, []any{&a, &committed}, func() error { decided[a] = true; return nil })
	return decided, err
}

const lockUIDsSQL = `SELECT id, state FROM dbcontroller.shadow WHERE uid = ANY ($1) ORDER BY id FOR NO KEY UPDATE`

var (
	settleBlockingSQL = codes(`
UPDATE dbcontroller.blockade b SET expires_at = NULL
FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::uuid[]) AS i (attempt, holder_uid, field_id, target_uid)
JOIN dbcontroller.shadow s ON s.uid = i.target_uid
WHERE b.target_id = s.id AND b.holder_uid = i.holder_uid AND b.field_id = i.field_id AND b.attempt = i.attempt
    AND b.deployment_id = $5 AND b.behaviour = {block} AND b.expires_at IS NOT NULL`)

	settleActingSQL = codes(`
WITH taken AS (
    DELETE FROM dbcontroller.blockade b
    USING unnest(@attempts::uuid[], @holders::uuid[], @fields::int[], @targets::uuid[]) AS i (attempt, holder_uid, field_id, target_uid),
        dbcontroller.shadow s
    WHERE s.uid = i.target_uid AND b.target_id = s.id AND b.holder_uid = i.holder_uid AND b.field_id = i.field_id
        AND b.attempt = i.attempt AND b.deployment_id = @deployment AND b.behaviour <> {block}
    RETURNING b.target_id, b.behaviour
)` + enterTakenSQL + `
SELECT count(*) FROM taken`)
)

// Settle applies the verdicts of a holder's deployment to blockades that still exist: held confirms, gone removes,
// undecided changes nothing. It fails with ErrStaleEpoch.
func (s *Store) Settle(ctx context.Context, holder schema.DeploymentID, questions []Question, answers *Answers) error {
	selfEpoch := s.PresentEpoch()
	var held, gone []BlockadeKey
	for i, v := range answers.Verdicts {
		switch v {
		case Held:
			held = append(held, questions[i].Key)
		case GoneVerdict:
			gone = append(gone, questions[i].Key)
		case Undecided:
		}
	}
	if len(gone) > 0 {
		if err := s.Release(ctx, holder, answers.Epoch, gone, nil); err != nil {
			return err
		}
	}
	if len(held) == 0 {
		return nil
	}
	deployment, err := s.names.deployment(ctx, holder)
	if err != nil {
		return err
	}
	k, err := s.keyColumns(ctx, held)
	if err != nil {
		return err
	}
	err = s.withLockedTargets(ctx, lockUIDsSQL, []any{k.targets}, func(tx pgx.Tx, _ []int64) error {
		b := &pgx.Batch{}
		s.checkPeerEpoch(tx, b, deployment, answers.Epoch, selfEpoch)
		b.Queue(settleBlockingSQL, k.attempts, k.holders, k.fields, k.targets, deployment)
		b.Queue(settleActingSQL, named{
			"attempts": k.attempts, "holders": k.holders, "fields": k.fields, "targets": k.targets, "deployment": deployment, "self": s.selfID,
		})
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("settle blockades: %w", err)
	}
	return nil
}

const (
	// expiredSQL is a condition on a tentative blockade b, to be followed by TentativeTTL, an interval, and ")": it has
	// expired, or its expiry is impossibly late because the clock went back. Resolving early costs a retry of the write.
	expiredSQL = `(b.expires_at <= now() OR b.expires_at > now() + interval '1 s' + 2 * `

	selectExpiredHoldersSQL = `SELECT DISTINCT deployment_id FROM dbcontroller.blockade b WHERE ` + expiredSQL + `$1::interval)`

	selectExpiredSQL = `
SELECT b.attempt, b.holder_uid, b.field_id, s.uid
FROM dbcontroller.blockade b JOIN dbcontroller.shadow s ON s.id = b.target_id
WHERE ` + expiredSQL + `$3::interval) AND b.deployment_id = $1
ORDER BY b.expires_at LIMIT $2`
)

// ExpiredHolders returns the deployments with expired tentative blockades here, by this database's clock.
func (s *Store) ExpiredHolders(ctx context.Context) ([]schema.DeploymentID, error) {
	rows, err := s.pool.Query(ctx, selectExpiredHoldersSQL, s.cfg.TentativeTTL)
	if err != nil {
		return nil, fmt.Errorf("read expired blockades: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return nil, fmt.Errorf("read expired blockades: %w", err)
	}
	out := make([]schema.DeploymentID, len(ids))
	for i, id := range ids {
		if out[i], err = s.names.deploymentOf(ctx, s.pool, id); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Expired returns up to limit questions about expired blockades of one holder's deployment, oldest first.
func (s *Store) Expired(ctx context.Context, holder schema.DeploymentID, limit int) ([]Question, error) {
	deployment, err := s.names.deployment(ctx, holder)
	if err != nil {
		return nil, err
	}
	rows, err := s.pool.Query(ctx, selectExpiredSQL, deployment, limit, s.cfg.TentativeTTL)
	if err != nil {
		return nil, fmt.Errorf("read expired blockades: %w", err)
	}
	type row struct {
		q     Question
		field int32
	}
	found, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (x row, err error) {
		err = r.Scan(&x.q.Key.Attempt, &x.q.Key.HolderUID, &x.field, &x.q.Key.TargetUID)
		return x, err
	})
	if err != nil {
		return nil, fmt.Errorf("read expired blockades: %w", err)
	}
	out := make([]Question, len(found))
	for i, x := range found {
		out[i] = Question{Key: x.q.Key, Expired: true}
		if out[i].Key.Path, err = s.names.fieldOf(ctx, s.pool, x.field); err != nil {
			return nil, err
		}
	}
	return out, nil
}
