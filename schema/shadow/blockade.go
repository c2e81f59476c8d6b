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

	// The tentative rows of acting references become one entry a deployment. A target that a cascade has marked
	// meanwhile gets a new notice, so that only an acknowledgement of a later position counts (I4).
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

// aboutTargets locks targets in one statement, and lets fn change the blockades of these, and of no other, in the next:
// a blockade of a target that the lock did not see (its Establish was under way, a duplicate) stays tentative, and is
// asked about when it expires. Only what concerns targets in DELETING is of interest to watches.
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

// Confirm says that the holder's attempts have committed, in an epoch of its database: blocking blockades stand from now on, and for the acting
// references one entry of the deployment takes their place. It answers the attempts of which nothing was tentative:
// confirmed or released before. Nothing is invented for them.
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
	// FOR NO KEY UPDATE, unlike FOR SHARE, waits for an Establish of the same attempt that is under way, so that the
	// removal sees its rows, and a later one sees the tombstone.
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

// Release removes exactly the blockades of the keys, and every blockade of the attempts, which were aborted. What
// arrives late or again finds nothing; the attempts establish nothing any more.
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

// keyColumns looks paths up and stores none: of one that was never stored there is no row.
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

// Answer tells the deployment of targets what became of attempts of this deployment: held while the committed
// reference is there, gone when the attempt is decided and the reference is not there, undecided otherwise. For
// blockades that the target's clock calls expired, it first makes sure that the attempt can never commit.
func (s *Store) Answer(ctx context.Context, target schema.DeploymentID, questions []Question) (*Answers, error) {
	selfEpoch := s.PresentEpoch()
	deployment, err := s.names.deployment(ctx, target)
	if err != nil {
		return nil, err
	}
	// Who asks has something of ours: its deletions concern us, whatever is left here of why.
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
		if err == nil && epoch != selfEpoch { // numbers that were looked up may mean something else: not held is not gone
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
		// Waits for a commit of the same attempt that is under way; the next statements then see what it wrote.
		if _, err := tx.Exec(ctx, decideAbortedSQL, expired); err != nil {
			return err
		}
		// Decisions before references: an attempt that commits between the two statements has its references seen.
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
		return nil, fmt.Errorf("answer what became of attempts: %w", err)
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

// Settle applies the verdicts of a holder's deployment: held confirms, gone removes, undecided changes nothing. It
// touches only blockades that are still there.
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
	// expiredSQL goes on with TentativeTTL, which is an interval, and ")". It is of a tentative blockade b: its time is over, or
	// further ahead than it can be, since the clock went back. To ask early costs its writer another try at most.
	expiredSQL = `(b.expires_at <= now() OR b.expires_at > now() + interval '1 s' + 2 * `

	selectExpiredHoldersSQL = `SELECT DISTINCT deployment_id FROM dbcontroller.blockade b WHERE ` + expiredSQL + `$1::interval)`

	selectExpiredSQL = `
SELECT b.attempt, b.holder_uid, b.field_id, s.uid
FROM dbcontroller.blockade b JOIN dbcontroller.shadow s ON s.id = b.target_id
WHERE ` + expiredSQL + `$3::interval) AND b.deployment_id = $1
ORDER BY b.expires_at LIMIT $2`
)

// ExpiredHolders names the deployments that have tentative blockades here which are expired by this database's clock.
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

// Expired gives up to limit questions about expired blockades of one holder's deployment, the oldest first.
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
