package operate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// mostKeys bounds one call.
const mostKeys = 100

const (
	recordSQL = `INSERT INTO dbcontroller.word (deployment_id, what, reason, said_by) VALUES ($1, $2, $3, $4)`

	// Establish, Confirm, Release, deletes and finalising lock the same row, or wait for it: their rows are
	// committed before the next statement, or they see its changes.
	lockSQL = `SELECT id, state FROM dbcontroller.shadow WHERE uid = $1 FOR NO KEY UPDATE`

	blockadeSQL = `
SELECT b.expires_at IS NOT NULL, COALESCE(` + db.ExpiredSQL + `@ttl::interval), false)
FROM dbcontroller.blockade b JOIN dbcontroller.field f ON f.id = b.field_id
WHERE b.target_id = @target AND b.deployment_id = @deployment AND b.holder_uid = @holder AND b.attempt = @attempt AND f.path = @path`

	// Closed, the attempt establishes nothing any more, so that a message that arrives late does not create
	// the blockade again.
	closeSQL = `INSERT INTO dbcontroller.closed_attempt (attempt, deployment_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`
)

var (
	releaseBlockadeSQL = `
WITH gone AS (
    DELETE FROM dbcontroller.blockade b USING dbcontroller.field f
    WHERE f.id = b.field_id AND b.target_id = @target AND b.deployment_id = @deployment AND b.holder_uid = @holder AND b.attempt = @attempt AND f.path = @path
    RETURNING b.target_id
)` + db.LookAgain("@self", db.Codes(`gone JOIN dbcontroller.shadow s ON s.id = gone.target_id WHERE s.state = {deleting}`))

	// A notice that a late confirm inserted after the operator looked is newer, and stays.
	releaseNoticesSQL = `
WITH gone AS (
    DELETE FROM dbcontroller.notice WHERE target_id = @target AND deployment_id = @deployment AND seq <= @notice RETURNING target_id
)` + db.LookAgain("@self", `gone JOIN dbcontroller.shadow s ON s.id = gone.target_id`)

	releaseEntrySQL = `
DELETE FROM dbcontroller.holder_entry WHERE target_id = $1 AND deployment_id = $2
    AND NOT EXISTS (SELECT FROM dbcontroller.notice WHERE target_id = $1 AND deployment_id = $2)`

	releaseOwneesSQL = `
WITH gone AS (
    DELETE FROM dbcontroller.ownee_entry WHERE owner_id = @target AND deployment_id = @deployment RETURNING owner_id
)` + db.LookAgain("@self", `gone JOIN dbcontroller.shadow s ON s.id = gone.owner_id`)

	dropOwnersWorkSQL = db.Codes(
		`DELETE FROM dbcontroller.work WHERE action = {drop_owners} AND target_id = $1 AND deployment_id = $2`)
)

// ForceRelease is an operator's decision (by) that some rows are wrong: blockades, entries, owner references,
// and references that a resource in DELETING keeps, by the keys of Releasable. Each is removed in a
// transaction of its own, which records the decision. It returns the keys whose rows were there. A row that
// is written later has another key, so a repetition, also a late one, changes nothing.
//
// A late message finds the same state as after a release by the other deployment: a confirm is answered with
// an unknown attempt, and its deployment compares its references, and establishes again the existing ones
// while their target exists; an establish of the attempt is refused; an acknowledgement has no notice to
// remove.
//
// Rights are taken back by work that asks their deployment until it says that they have ended.
//
// The deployment of a holder entry first ends its rights to refer to the resource without asking. unanswered
// releases the entry also when it does not say that it has, and leaves work that asks again until it does. It
// fails with *InvalidError, *UnavailableError, ErrAborted and ErrDecommissioned.
func (s *Operations) ForceRelease(ctx context.Context, keys []string, unanswered bool, reason,
	by string,
) (released []string, err error) {
	if len(keys) == 0 || len(keys) > mostKeys {
		return nil, &peer.InvalidError{Resource: "keys", Err: fmt.Errorf("want 1 to %d keys", mostKeys)}
	}
	parsed := make([]key, len(keys))
	for i, text := range keys {
		if parsed[i], err = parseKey(text); err != nil {
			return nil, err
		}
	}
	for i, k := range parsed {
		done, err := s.release(ctx, k, unanswered, reason, by)
		if err != nil {
			return released, fmt.Errorf("release %s: %w", k.what, err)
		}
		if done {
			released = append(released, keys[i])
			s.Log.Warn("an operator has released rows that tie a resource", zap.String("key", keys[i]),
				zap.String("by", by), zap.String("reason", reason), requestid.Field(ctx))
		}
	}
	return released, nil
}

func (s *Operations) release(ctx context.Context, k key, unanswered bool, reason, by string) (done bool, err error) {
	if reason == "" || len(reason) > 1000 {
		return false, &peer.InvalidError{
			Resource: "reason",
			Err:      errors.New("want 1 to 1000 characters; the reason is stored with the decision"),
		}
	}
	if why := s.refused(k); why != "" {
		return false, &peer.InvalidError{Resource: "keys", Err: errors.New(why)}
	}
	deployment, err := s.Names.Deployment(ctx, k.deployment)
	if err != nil {
		return false, err
	}
	closed, what := func(context.Context, pgx.Tx) error { return nil }, k.what+"_RELEASED"
	if k.what == holderEntry {
		check, err := s.close(ctx, k, deployment)
		switch {
		case errors.Is(err, errNoEntry):
			return false, nil
		case err == nil:
			closed = check
		case !unanswered || ctx.Err() != nil:
			return false, err
		default:
			closed, what = s.insist(k, deployment), what+"_UNANSWERED"
			s.Log.Warn("an entry is released although its deployment did not say that it ended its rights",
				zap.Stringer("of", k.deployment), zap.Error(err), requestid.Field(ctx))
		}
	}
	err = s.gate.RecordDecision(ctx, deployment, what, k.String()+": "+reason, by, func(tx pgx.Tx) (bool, error) {
		if done, err = s.releaseIn(ctx, tx, k, deployment); err == nil && done {
			err = closed(ctx, tx)
		}
		return done, err
	})
	return done && err == nil, err
}

// refused returns the reason why a row of this key is never released.
func (s *Operations) refused(k key) string {
	switch k.what {
	case holderEntry, owneeEntry, rights:
		return s.entryRefusal(k)
	}
	return ""
}

// releaseIn locks the resource, then looks for the row and removes it.
func (s *Operations) releaseIn(ctx context.Context, tx pgx.Tx, k key, deployment int32) (bool, error) {
	var id int64
	var state peer.State
	err := tx.QueryRow(ctx, lockSQL, k.uid).Scan(&id, &state)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	named := db.Named{"target": id, "deployment": deployment, "self": s.SelfID}
	switch {
	case k.what == blockade:
		return s.releaseBlockade(ctx, tx, k, named)
	case k.what == ownerReference && state == peer.Active:
		return s.releaseOwner(ctx, tx, k, id, deployment)
	case k.what == rights && state == peer.Active: // a deletion ends them itself
		return s.recall(ctx, tx, k.uid, deployment)
	case state != peer.Deleting: // an entry holds nothing back, and is needed by the deletion
		return false, nil
	case k.what == holderEntry:
		named["notice"] = k.notice
		return both(ctx, tx, releaseNoticesSQL, named, releaseEntrySQL, id, deployment)
	case k.what == keptReference:
		return s.releaseKept(ctx, tx, k, id)
	case k.what == owneeEntry:
		return both(ctx, tx, releaseOwneesSQL, named, dropOwnersWorkSQL, id, deployment)
	}
	return false, nil
}

// both runs a statement that removes the row that holds the resource back and, if there was one, a statement
// that removes the rows that belong to it.
func both(ctx context.Context, tx pgx.Tx, first string, named db.Named, second string, id int64,
	deployment int32,
) (bool, error) {
	tag, err := tx.Exec(ctx, first, named)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	_, err = tx.Exec(ctx, second, id, deployment)
	return true, err
}

func (s *Operations) releaseBlockade(ctx context.Context, tx pgx.Tx, k key, named db.Named) (bool, error) {
	named["holder"], named["attempt"], named["path"] = k.holder, k.attempt, k.path
	var tentative, expired bool
	err := tx.QueryRow(ctx, blockadeSQL, db.Named{
		"target": named["target"], "deployment": named["deployment"], "holder": k.holder, "attempt": k.attempt,
		"path": k.path, "ttl": s.Tuning.Load().TentativeTTL,
	}).Scan(&tentative, &expired)
	why := refusal(k, tentative, expired)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	case why != "" && tentative:
		return false, fmt.Errorf("%w: %s", peer.ErrAborted, why)
	case why != "":
		return false, &peer.InvalidError{Resource: "keys", Err: errors.New(why)}
	}
	if k.ofRight() { // its deployment may go on writing under the right until it has heard
		if _, err := s.recall(ctx, tx, k.uid, named["deployment"].(int32)); err != nil {
			return false, err
		}
	}
	b := &pgx.Batch{}
	b.Queue(releaseBlockadeSQL, named)
	b.Queue(closeSQL, k.attempt, named["deployment"])
	return true, tx.SendBatch(ctx, b).Close()
}

const keptSQL = `
SELECT r.field_id, r.target_id FROM dbcontroller.reference r JOIN dbcontroller.field p ON p.id = r.field_id
WHERE r.holder_id = $1 AND p.path = $2 AND r.target_id IN (
    SELECT id FROM dbcontroller.shadow WHERE uid = $3 UNION ALL SELECT id FROM dbcontroller.foreign_target WHERE uid = $3)`

// releaseKept drops a reference of a resource in DELETING, as its removal would.
func (s *Operations) releaseKept(ctx context.Context, tx pgx.Tx, k key, id int64) (bool, error) {
	var field int32
	var target int64
	err := tx.QueryRow(ctx, keptSQL, id, k.path, k.target).Scan(&field, &target)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return s.cascade.DropKept(ctx, tx, id, field, target)
}

// releaseOwner drops an owner reference as a user's update would: the resource stays, also without owners.
func (s *Operations) releaseOwner(ctx context.Context, tx pgx.Tx, k key, id int64,
	deployment int32,
) (done bool, err error) {
	var kind int32
	err = tx.QueryRow(ctx, `SELECT id FROM dbcontroller.kind WHERE service = $1 AND kind = $2`, k.deployment.Service,
		k.kind).Scan(&kind)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = s.cascade.ChangeOwners(ctx, tx, []int64{id}, cascade.OwnerChange{
		Stays: true,
		Lost: func(r prepare.OwnerRow) bool {
			same := r.DeploymentID == deployment && r.KindID == kind && r.Name == k.name && r.UID == k.owner &&
				r.CreatedAt.UnixMicro() == k.since.UnixMicro()
			done = done || same
			return same
		},
	})
	return done, err
}
