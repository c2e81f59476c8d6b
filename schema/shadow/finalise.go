package shadow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/schema"
)

// Keyset paging: a page does not scan the dead rows of earlier pages.
var acknowledgeSQL = codes(`
WITH page AS (
    SELECT n.seq FROM dbcontroller.notice n JOIN dbcontroller.shadow s ON s.id = n.target_id
    WHERE n.deployment_id = @deployment AND n.seq > @after AND pg_visible_in_snapshot(n.xid, @position::text::pg_snapshot)
        AND NOT s.uid = ANY (COALESCE(@except::uuid[], '{}'))
    ORDER BY n.seq LIMIT @at_most
), done AS (
    DELETE FROM dbcontroller.notice n USING page WHERE n.seq = page.seq RETURNING n.target_id
), look AS (
` + lookAgain("@self", `done JOIN dbcontroller.shadow s ON s.id = done.target_id`) + `
)
SELECT count(*), COALESCE(max(seq), 0) FROM page`)

// Acknowledge is AcknowledgeFor without a time limit.
func (s *Store) Acknowledge(ctx context.Context, holder schema.DeploymentID, epoch uuid.UUID, token string, except []uuid.UUID) error {
	_, err := s.AcknowledgeFor(ctx, holder, epoch, token, except, math.MaxInt64)
	return err
}

// AcknowledgeFor removes the notices on which a holder's deployment has acted, in the given epoch of its database: those
// up to a position of its watch, except those of some uids. A notice is up to a position when the position sees the
// transaction that wrote it. It fails with ErrPosition when the token is not a position of this database's present epoch
// for this deployment, and with ErrStaleEpoch.
//
// It works in transactions of Config.BatchSize notices, and returns whether more are left when patience ends. Each
// transaction lasts, however the call ends: repeated calls terminate for any number of notices.
func (s *Store) AcknowledgeFor(ctx context.Context, holder schema.DeploymentID, epoch uuid.UUID, token string, except []uuid.UUID, patience time.Duration) (more bool, err error) {
	selfEpoch := s.PresentEpoch()
	deployment, err := s.names.deployment(ctx, holder)
	if err != nil {
		return false, err
	}
	n, last := s.cfg.BatchSize, int64(0)
	for began := time.Now(); n == s.cfg.BatchSize; {
		if last > 0 && time.Since(began) >= patience {
			return true, nil
		}
		after := last
		err = s.inTx(ctx, workFeed, func(tx pgx.Tx) error {
			position, err := s.feeds.Open(ctx, tx, token, noticesFilter(holder))
			if errors.Is(err, feed.ErrReset) {
				err = fmt.Errorf("%w: %w", ErrPosition, err)
			}
			if err != nil {
				return s.followed(err)
			}
			b := &pgx.Batch{}
			s.checkPeerEpoch(tx, b, deployment, epoch, selfEpoch)
			b.Queue(acknowledgeSQL, named{
				"deployment": deployment, "position": position.Text, "except": except, "self": s.selfID, "after": after, "at_most": s.cfg.BatchSize,
			}).QueryRow(func(row pgx.Row) error { return row.Scan(&n, &last) })
			return tx.SendBatch(ctx, b).Close()
		})
		if err != nil {
			return false, fmt.Errorf("acknowledge deletions: %w", err)
		}
	}
	return false, nil
}

const (
	// Waits for whoever is about to mark one of them, and shows the mark: a condition on the state would pass over the
	// old version without waiting, and the look would be lost. It is no obstacle to who refers to an ACTIVE one.
	awaitMarksSQL = `SELECT id, state FROM dbcontroller.shadow WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE`

	lockDeletingSQL = `SELECT id FROM dbcontroller.shadow WHERE id = ANY ($1) ORDER BY id FOR UPDATE`
	doneSQL         = `DELETE FROM dbcontroller.work WHERE seq = ANY ($1)`
)

// Whoever refers is ACTIVE: holders that are DELETING have dropped their references.
var nothingLeftSQL = codes(`
SELECT t FROM unnest($1::bigint[]) AS t
WHERE NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t)
    AND NOT EXISTS (SELECT FROM dbcontroller.notice WHERE target_id = t)
    AND NOT EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = t AND behaviour < {allow_dangling})
    AND NOT EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE owner_id = t)
    AND NOT EXISTS (SELECT FROM dbcontroller.shadow WHERE id = t AND block_deletion)`)

var (
	selectFinaliseSQL = codes(`SELECT DISTINCT target_id FROM dbcontroller.work WHERE seq = ANY ($1) AND action = {finalise}`)

	// A resource in DELETING without blockers can be hidden: no blocker can be added any more (I12).
	hideSQL = codes(`
WITH hiding AS (
    UPDATE dbcontroller.shadow s SET hidden = true, revision = nextval('dbcontroller.revision')
    WHERE id = ANY ($1) AND NOT COALESCE(id = ANY ($2), false) AND kind_id = ANY ($3::int[]) AND NOT hidden AND NOT block_deletion
        AND NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = s.id)
        AND NOT EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = s.id AND behaviour = {block})
    RETURNING uid, revision, generation, kind_id, created_at, name
)` + changeGone(`revision`, `hiding`))
)

// Finalise checks the resources of some pieces of work, removes those in DELETING that wait for nothing, and returns
// their number. The work is removed in the same transaction: each change for which a resource waits adds new work.
func (s *Store) Finalise(ctx context.Context, seqs []int64) (removed int, err error) {
	err = s.inTx(ctx, changeFeed|workFeed, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, selectFinaliseSQL, seqs)
		if err != nil {
			return err
		}
		targets, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		if targets, err = deleting(ctx, tx, targets); err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, lockDeletingSQL, targets); err != nil {
			return err
		}
		if targets, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
			return err
		}
		if len(targets) > 0 {
			if err := s.checkRecovered(ctx, tx); err != nil {
				return err
			}
		}
		if rows, err = tx.Query(ctx, nothingLeftSQL, targets); err != nil {
			return err
		}
		free, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		removed = len(free)
		b := &pgx.Batch{}
		if hiding := s.hiding(); len(hiding) > 0 {
			b.Queue(hideSQL, targets, free, hiding)
		}
		b.Queue(removeSQL, (&reasons{}).parameters(free, s.selfID)) // noted when they were marked
		b.Queue(removeDanglingSQL, free)
		b.Queue(doneSQL, seqs)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return 0, fmt.Errorf("finalise: %w", err)
	}
	if removed > 0 {
		crash.At("crash-finalise-committed")
	}
	return removed, nil
}

// deleting returns the targets in DELETING.
func deleting(ctx context.Context, tx pgx.Tx, targets []int64) ([]int64, error) {
	rows, err := tx.Query(ctx, awaitMarksSQL, targets)
	if err != nil {
		return nil, err
	}
	var marked []int64
	var id int64
	var state State
	_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error {
		if state == Deleting {
			marked = append(marked, id)
		}
		return nil
	})
	return marked, err
}

var selectMessagesSQL = codes(`
SELECT w.seq, w.action, w.attempt, w.holder_uid, w.field_id, w.target_uid, ` + epochNowSQL + `
FROM dbcontroller.work w, dbcontroller.meta m WHERE w.seq = ANY ($1) AND w.deployment_id = $2 AND w.action IN ({confirm}, {release}, {let_go})`)

// Messages are the messages of pieces of work: what this deployment owes to another one now.
type Messages struct {
	// Epoch of the database in which they were read.
	Epoch   uuid.UUID
	Confirm []AttemptID
	Release []BlockadeKey
	Abandon []AttemptID
	LetGo   []LetGo
	// Seqs are the pieces of work of these messages, which Delivered removes.
	Seqs []int64
}

// Messages reads the messages of some pieces of work for a deployment. Work that was removed has none.
func (s *Store) Messages(ctx context.Context, to schema.DeploymentID, seqs []int64) (*Messages, error) {
	deployment, err := s.names.deployment(ctx, to)
	if err != nil {
		return nil, err
	}
	type row struct {
		Seq       int64
		Action    schema.Action
		Attempt   *uuid.UUID
		HolderUID *uuid.UUID
		Field     *int32
		TargetUID *uuid.UUID
		Epoch     *uuid.UUID
	}
	rows, err := s.pool.Query(ctx, selectMessagesSQL, seqs, deployment)
	if err != nil {
		return nil, fmt.Errorf("read work: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, fmt.Errorf("read work: %w", err)
	}
	m := &Messages{}
	for _, r := range found {
		if r.Epoch == nil {
			return nil, s.recoveringSelf()
		}
		m.Epoch = *r.Epoch
		m.Seqs = append(m.Seqs, r.Seq)
		switch {
		case r.Action == schema.Confirm:
			m.Confirm = append(m.Confirm, *r.Attempt)
		case r.Action == schema.LetGo:
			m.LetGo = append(m.LetGo, LetGo{Owner: *r.HolderUID, Ownee: *r.TargetUID})
		case r.HolderUID == nil:
			m.Abandon = append(m.Abandon, *r.Attempt)
		default:
			path, err := s.names.fieldOf(ctx, s.pool, *r.Field)
			if err != nil {
				return nil, err
			}
			m.Release = append(m.Release, BlockadeKey{Attempt: *r.Attempt, HolderUID: *r.HolderUID, Path: path, TargetUID: *r.TargetUID})
		}
	}
	return m, nil
}

// Delivered removes the work of messages that the other deployment has accepted.
func (s *Store) Delivered(ctx context.Context, m *Messages) error {
	return s.finish(ctx, m.Seqs)
}
