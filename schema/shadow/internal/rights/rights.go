// Package rights is the holder's side of rights to block resources of other deployments without asking: it acquires them, answers when
// they are recalled, and returns unneeded rights. A right is the reference of a proxy, which is established, confirmed,
// resolved and released as any other.
package rights

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/attempt"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// Rights of one deployment.
type Rights struct {
	*db.DB
	gate     *gate.Gate
	preparer *prepare.Preparer
	attempts *attempt.Attempts

	mu    sync.Mutex
	later map[int64]time.Time // by target: when a refused right is asked for again; guarded by mu
}

// New joins the parts.
func New(g *gate.Gate, p *prepare.Preparer, a *attempt.Attempts) *Rights {
	return &Rights{DB: g.DB, gate: g, preparer: p, attempts: a, later: map[int64]time.Time{}}
}

const (
	selectAcquiredSQL = `
SELECT f.id, f.uid, f.turn, f.kind_id, f.name FROM dbcontroller.foreign_target f
WHERE f.id = ANY ($1) AND NOT (` + db.BlockRightCountsSQL + `) ORDER BY f.id`

	// After the version's lock: a process without rights that joins meanwhile is visible, or waits.
	selectTurnSQL = `SELECT turn, block_attempt, ` + db.AllDelegateSQL + ` FROM dbcontroller.foreign_target WHERE id = $1`

	takeBlockRightSQL = `UPDATE dbcontroller.foreign_target SET block_attempt = $2, block_epoch = $3, block_own = $4 WHERE id = $1`

	// The right itself comes with the answer to the confirm.
	askActingRightSQL = `UPDATE dbcontroller.foreign_target SET acting_attempt = $2 WHERE id = $1`
)

// The proxy's blockade of an attempt is released as that of any other reference.
var releaseProxySQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, holder_uid, field_id, target_uid)
SELECT {release}, (f.id % 64)::smallint, f.deployment_id, $2, f.uid, $3, f.uid FROM dbcontroller.foreign_target f WHERE f.id = $1`)

// wish is a target that this deployment wants the right to block.
type wish struct {
	ID   int64
	UID  uuid.UUID
	Turn int64
	Kind int32
	Name string
}

// pauseOfRefused is the time until a refused right is asked for again.
const pauseOfRefused = time.Minute

// Acquire asks a deployment for the rights to block some targets. A right that is refused, or whose call fails, is asked for again later: references are
// written by asking meanwhile.
func (s *Rights) Acquire(ctx context.Context, at schema.DeploymentID, ids []int64) error {
	rows, err := s.Pool.Query(ctx, selectAcquiredSQL, s.due(ids))
	if err != nil {
		return fmt.Errorf("read targets: %w", err)
	}
	wishes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[wish])
	if err != nil {
		return fmt.Errorf("read targets: %w", err)
	}
	for _, w := range wishes {
		if err := s.acquireByNumber(ctx, at, w); err != nil {
			s.putOff(w.ID)
			s.Log.Debug("the right to block a resource is not given, asking for each reference", zap.Stringer("deployment", at), zap.String("name", w.Name), zap.Error(err))
		}
	}
	return nil
}

// acquireByNumber asks for the right to block a target that many references block, unless it is a row of a table: the statement that deletes
// it could not recall the right. Rights that strict tables ask for are returned as soon as no row needs them.
func (s *Rights) acquireByNumber(ctx context.Context, at schema.DeploymentID, w wish) error {
	v, err := s.Current()
	if err != nil {
		return err
	}
	kind, err := s.Names.KindOf(ctx, s.Pool, w.Kind)
	if err != nil || v.Model.Tabled(kind) {
		return errors.Join(err, errNotTaken)
	}
	return s.acquire(ctx, at, w, schema.Block)
}

// due returns the targets that were not refused lately.
func (s *Rights) due(ids []int64) (due []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if time.Now().After(s.later[id]) {
			due = append(due, id)
		}
	}
	return due
}

func (s *Rights) putOff(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.later) > 10_000 {
		clear(s.later)
	}
	s.later[id] = time.Now().Add(pauseOfRefused)
}

// errNotTaken: the target was closed, or a database failed over, after the question.
var errNotTaken = errors.New("the answer came too late")

// acquire writes the reference of the proxy as an exact write does: it is established, and committed with the decision on its attempt. That
// of the right to act becomes an entry when it is confirmed.
func (s *Rights) acquire(ctx context.Context, at schema.DeploymentID, w wish, behaviour schema.Behaviour) error {
	v, err := s.Current()
	if err != nil {
		return err
	}
	kind, err := s.Names.KindOf(ctx, s.Pool, w.Kind)
	if err != nil || !v.Model.Delegable(kind) {
		return errors.Join(err, errNotTaken)
	}
	deployment, err := s.Names.Deployment(ctx, at)
	if err != nil {
		return err
	}
	began, epoch, id := s.Rollback.Seen.Load(), s.gate.PresentEpoch(), s.preparer.NewAttempt()
	answer, err := s.Peers.Establish(ctx, at, id, []peer.EstablishReference{{
		HolderUID: w.UID, HolderKind: kind.Kind, HolderName: w.Name, Path: peer.RightPath,
		TargetKind: kind.Kind, TargetName: w.Name, TargetUID: w.UID, Behaviour: behaviour,
	}})
	if err != nil {
		return err // a blockade that may exist there is resolved when it expires
	}
	err = s.take(ctx, deployment, w, behaviour, answer.Epoch, epoch, began, id)
	if err != nil {
		return errors.Join(err, attempt.AbandonAt(ctx, s.attempts, id, deployment))
	}
	return nil
}

func (s *Rights) take(ctx context.Context, deployment int32, w wish, behaviour schema.Behaviour, theirs, own uuid.UUID, began int64, id peer.AttemptID) error {
	if _, err := s.Pool.Exec(ctx, db.BeginEndingSQL, []int64{w.ID}); err != nil { // writers under the other right share the row
		return err
	}
	field, err := s.Names.Field(ctx, peer.RightPath)
	if err != nil {
		return err
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		view := gate.CommitView{Present: s.gate.Present(tx)}
		var turn int64
		var earlier *uuid.UUID
		var known bool
		b := &pgx.Batch{}
		b.Queue(db.EndingLockTimeoutSQL)
		b.Queue(gate.ShareVersionSQL, gate.VersionLock)
		b.Queue(gate.SelectNowSQL, []int32{deployment}, []uuid.UUID{theirs}).QueryRow(view.Scan)
		b.Queue(db.LockRightsSQL, []int64{w.ID})
		b.Queue(selectTurnSQL, w.ID).QueryRow(func(row pgx.Row) error { return row.Scan(&turn, &earlier, &known) })
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if turn != w.Turn || !known || !view.InEpoch(own) || len(view.Decommissioned) > 0 || view.TooLate(id) {
			return errNotTaken
		}
		b = &pgx.Batch{}
		write.QueueDecision(b, began, id)
		if behaviour == schema.Block {
			b.Queue(takeBlockRightSQL, w.ID, id, theirs, own)
		} else {
			b.Queue(askActingRightSQL, w.ID, id)
		}
		b.Queue(write.ConfirmWorkSQL, []int16{int16(w.ID % schema.RingSize)}, []int32{deployment}, []peer.AttemptID{id}, []int32{1})
		if earlier != nil && behaviour == schema.Block {
			b.Queue(releaseProxySQL, w.ID, earlier, field)
		}
		b.Queue(db.DoneEndingSQL, []int64{w.ID})
		return tx.SendBatch(ctx, b).Close()
	})
	return write.Undecided(ctx, s.DB, err)
}
