package target

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// Keyset paging: a page does not scan the dead rows of earlier pages.
var acknowledgeSQL = db.Codes(`
WITH page AS (
    SELECT n.seq FROM dbcontroller.notice n JOIN dbcontroller.shadow s ON s.id = n.target_id
    WHERE n.deployment_id = @deployment AND n.seq > @after AND pg_visible_in_snapshot(n.xid, @position::text::pg_snapshot)
        AND NOT s.uid = ANY (COALESCE(@except::uuid[], '{}'))
    ORDER BY n.seq LIMIT @at_most
), done AS (
    DELETE FROM dbcontroller.notice WHERE seq = ANY (ARRAY (SELECT seq FROM page)) RETURNING target_id
), look AS (
` + db.LookAgain("@self", `dbcontroller.shadow s WHERE s.id = ANY (ARRAY (SELECT DISTINCT target_id FROM done))`) + `
)
SELECT count(*), COALESCE(max(seq), 0) FROM page`)

// Acknowledge is AcknowledgeFor without a time limit.
func (s *Keeper) Acknowledge(ctx context.Context, holder schema.DeploymentID, epoch uuid.UUID, token string,
	except []uuid.UUID,
) error {
	_, err := s.AcknowledgeFor(ctx, holder, epoch, token, except, math.MaxInt64)
	return err
}

// AcknowledgeFor removes the notices on which a holder's deployment has acted, in the given epoch of its
// database: the notices up to a position of its watch, except the notices of some uids. A notice is up to a
// position when the position sees the transaction that wrote it. It fails with ErrPosition when the token is
// not a position of this database's present epoch for this deployment, and with ErrStaleEpoch.
//
// It works in transactions of Config.Limits.Batch notices, and returns whether more are left when patience
// ends. Each transaction lasts, for any end of the call: repeated calls terminate for any number of notices.
func (s *Keeper) AcknowledgeFor(ctx context.Context, holder schema.DeploymentID, epoch uuid.UUID, token string,
	except []uuid.UUID, patience time.Duration,
) (more bool, err error) {
	selfEpoch := s.gate.PresentEpoch()
	deployment, err := s.Names.Deployment(ctx, holder)
	if err != nil {
		return false, err
	}
	n, last := s.Cfg.Limits.Batch, int64(0)
	for began := time.Now(); n == s.Cfg.Limits.Batch; {
		if last > 0 && time.Since(began) >= patience {
			return true, nil
		}
		after := last
		err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			opened := s.Feeds.QueueOpen(ctx, b, token, read.NoticesFilter(holder))
			s.gate.CheckPeerEpoch(tx, b, deployment, epoch, selfEpoch)
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				if errors.Is(err, feed.ErrReset) {
					err = fmt.Errorf("%w: %w", peer.ErrPosition, err)
				}
				return read.Followed(s.gate, err)
			}
			db.AfterCommit(tx, func() {
				if n > 0 { // otherwise nothing is looked at again
					s.Touched(db.WorkFeed)
				}
			})
			b = &pgx.Batch{}
			b.Queue(acknowledgeSQL, db.Named{
				"deployment": deployment, "position": opened.Text, "except": except, "self": s.SelfID, "after": after,
				"at_most": s.Cfg.Limits.Batch,
			}).QueryRow(func(row pgx.Row) error { return row.Scan(&n, &last) })
			db.QueueOwn(tx, b)
			return db.CommitWith(ctx, tx, b)
		})
		if err != nil {
			return false, fmt.Errorf("acknowledge deletions: %w", err)
		}
	}
	return false, nil
}

var (
	// The resources that pieces of work ($1) look at again.
	lookedAt = db.Codes(`SELECT target_id FROM dbcontroller.work WHERE seq = ANY ($1) AND action = {finalise}`)
	// Waits for a transaction that is about to mark one of them: a condition on the state would pass over the
	// old version without waiting, and no work to look again would follow. It does not conflict with new
	// references to an ACTIVE one.
	awaitMarksSQL = `SELECT id FROM dbcontroller.shadow WHERE id = ANY (ARRAY (` + lookedAt +
		`)) ORDER BY id FOR KEY SHARE`

	lockDeletingSQL = db.Codes(`SELECT id, kind_id FROM dbcontroller.shadow WHERE id = ANY (ARRAY (` + lookedAt +
		`)) AND state = {deleting} ORDER BY id FOR UPDATE`)

	// A resource with empty finalizers gets the ones of its kind when nothing blocks it any more: its
	// clean-up begins after the clean-up of each resource that keeps a reference to it.
	giveFinalizersSQL = db.Codes(`
WITH s AS (
    UPDATE dbcontroller.shadow s SET finalizers = k.finalizers, revision = nextval('dbcontroller.revision')
    FROM dbcontroller.kind k
    WHERE s.id = ANY (ARRAY (` + lookedAt + `)) AND s.state = {deleting} AND s.finalizers = '{}' AND NOT s.block_deletion AND k.id = s.kind_id
        AND NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = s.id)
        AND NOT EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = s.id AND behaviour = {block})
    RETURNING s.id, s.uid, s.kind_id, s.name, s.revision, s.generation, s.created_at, s.block_deletion, s.finalizers
)` + db.ChangeTo(`{deleting}`, `s JOIN dbcontroller.resource r USING (id)`))

	nothingLeftSQL = db.Codes(`
SELECT t.id FROM dbcontroller.shadow t
WHERE t.id = ANY (ARRAY (` + lookedAt + `)) AND t.state = {deleting} AND NOT t.block_deletion AND t.finalizers IS NULL
    AND NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t.id)
    AND NOT EXISTS (SELECT FROM dbcontroller.notice WHERE target_id = t.id)
    AND NOT EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = t.id AND behaviour < {allow_dangling})
    AND NOT EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE owner_id = t.id)`)

	// A resource in DELETING without blockers can be hidden: no blocker can be added any more (I12).
	HideSQL = db.Codes(`
WITH hiding AS (
    UPDATE dbcontroller.shadow s SET hidden = true, revision = nextval('dbcontroller.revision')
    WHERE id = ANY ($1) AND NOT COALESCE(id = ANY ($2), false) AND kind_id = ANY ($3::int[]) AND NOT hidden AND NOT block_deletion AND finalizers IS NULL
        AND NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = s.id)
        AND NOT EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = s.id AND behaviour = {block})
    RETURNING uid, revision, generation, kind_id, created_at, name
)` + db.ChangeGone(`revision`, `hiding`))
)

// Looked are the resources that pieces of work look at again: Deleting are in DELETING, and locked; Free are
// the ones of them that nothing holds.
type Looked struct {
	Deleting, Free []int64
	Kinds          []int32 // of Deleting, each once
}

// QueueLook locks, gives finalizers, and checks in a batch of statements: each has a newer snapshot than the
// one before.
func QueueLook(b *pgx.Batch, seqs []int64) *Looked {
	l := &Looked{}
	b.Queue(awaitMarksSQL, seqs)
	b.Queue(lockDeletingSQL, seqs).Query(func(rows pgx.Rows) error {
		var id int64
		var kind int32
		_, err := pgx.ForEachRow(rows, []any{&id, &kind}, func() error {
			if l.Deleting = append(l.Deleting, id); !slices.Contains(l.Kinds, kind) {
				l.Kinds = append(l.Kinds, kind)
			}
			return nil
		})
		return err
	})
	b.Queue(giveFinalizersSQL, seqs)
	b.Queue(nothingLeftSQL, seqs).Query(func(rows pgx.Rows) (err error) {
		l.Free, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	return l
}

var selectMessagesSQL = db.Codes(`
SELECT w.seq, w.action, w.attempt, w.holder_uid, w.field_id, w.target_uid, w.earlier, COALESCE(w.established, 0), ` + gate.EpochNowSQL + `
FROM dbcontroller.work w, dbcontroller.meta m WHERE w.seq = ANY ($1) AND w.deployment_id = $2 AND w.action IN ({confirm}, {release}, {let_go})`)

// Messages reads the messages of some pieces of work for a deployment. Work that was removed has none.
func (s *Keeper) Messages(ctx context.Context, to schema.DeploymentID, seqs []int64) (*peer.Messages, error) {
	deployment, err := s.Names.Deployment(ctx, to)
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
		Earlier   []uuid.UUID
		Known     int32
		Epoch     *uuid.UUID
	}
	rows, err := s.Pool.Query(ctx, selectMessagesSQL, seqs, deployment)
	if err != nil {
		return nil, fmt.Errorf("read work: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, fmt.Errorf("read work: %w", err)
	}
	m := &peer.Messages{}
	var scheduled []peer.AttemptID
	for _, r := range found {
		if r.Epoch == nil {
			return nil, s.gate.RecoveringSelf()
		}
		m.Epoch = *r.Epoch
		m.Seqs = append(m.Seqs, r.Seq)
		switch {
		case r.Action == schema.Confirm && r.Known == db.ScheduledDeletion:
			scheduled = append(scheduled, *r.Attempt)
		case r.Action == schema.Confirm:
			m.Confirm, m.References = append(m.Confirm, *r.Attempt), append(m.References, r.Known)
		case r.Action == schema.ReleaseOwner:
			m.OwnerReleases = append(m.OwnerReleases, peer.OwnerRelease{Owner: *r.HolderUID, Ownee: *r.TargetUID})
		case r.HolderUID == nil:
			m.Abandon = append(append(m.Abandon, *r.Attempt), r.Earlier...)
		default:
			path, err := s.Names.FieldOf(ctx, s.Pool, *r.Field)
			if err != nil {
				return nil, err
			}
			m.Release = append(m.Release, peer.BlockadeKey{
				Attempt: *r.Attempt, HolderUID: *r.HolderUID, Path: path,
				TargetUID: *r.TargetUID,
			})
		}
	}
	if m.Scheduled, err = s.stillScheduled(ctx, scheduled); err != nil {
		return nil, err
	}
	if m.Delegable, err = s.delegable(ctx, deployment, m.Confirm); err != nil {
		return nil, err
	}
	m.Wanted, err = s.wanted(ctx, deployment, m.Confirm)
	return m, err
}

// Delivered removes the work of messages that the other deployment has accepted, and takes the delegations
// that it has granted.
func (s *Keeper) Delivered(ctx context.Context, m *peer.Messages) error {
	if m.Confirmed != nil && len(m.Confirmed.Delegated) > 0 {
		return s.takeDelegations(ctx, m)
	}
	return s.Finish(ctx, m.Seqs)
}
