// Package rights is the holder's side of rights to block resources of other deployments without asking: it
// acquires them, answers when they are recalled, and returns unneeded rights. A right is the reference of a
// proxy, which is established, confirmed, resolved and released as any other. Statements ask for rights
// before they write rows of attached tables (requests.go).
package rights

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// Rights of one deployment.
type Rights struct {
	*db.DB
	gate     *gate.Gate
	rows     *rows.Rows
	preparer *prepare.Preparer
	attempts *attempt.Attempts

	mu    sync.Mutex
	later map[int64]time.Time // by target: when a refused right is asked for again; guarded by mu
}

// New returns the Rights of a database, which uses the given rooms.
func New(g *gate.Gate, rs *rows.Rows, p *prepare.Preparer, a *attempt.Attempts) *Rights {
	return &Rights{DB: g.DB, gate: g, rows: rs, preparer: p, attempts: a, later: map[int64]time.Time{}}
}

const (
	selectAcquiredSQL = `
SELECT f.id, f.uid, f.turn, f.kind_id, f.name, false FROM dbcontroller.foreign_target f
WHERE f.id = ANY ($1) AND NOT (` + db.BlockRightCountsSQL + `) ORDER BY f.id`

	// After the version's lock: a process without rights that joins meanwhile is visible, or waits. A
	// statement may still share the lost right of an epoch before: its rows are compared, and not covered by
	// the new one.
	takeableSQL = `
SELECT f.id FROM unnest($1::bigint[], $2::bigint[]) AS i (id, turn) JOIN dbcontroller.foreign_target f ON f.id = i.id AND f.turn = i.turn
WHERE ` + db.AllDelegateSQL + ` AND (NOT $3 OR f.block_epoch IS NULL OR f.id IN (SELECT a.id FROM dbcontroller.foreign_target a WHERE a.id = ANY ($1) AND a.block_epoch IS NOT NULL FOR UPDATE SKIP LOCKED))`

	takeBlockRightSQL = `UPDATE dbcontroller.foreign_target SET block_attempt = $2, block_epoch = $3, block_own = $4, latest = nextval('dbcontroller.object_id') WHERE id = ANY ($1)`

	// The right itself comes with the answer to the confirm.
	askActingRightSQL = `UPDATE dbcontroller.foreign_target SET acting_attempt = $2 WHERE id = ANY ($1)`
)

// The proxy's blockade of an attempt is released as any other blockade.
var (
	releaseProxySQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, holder_uid, field_id, target_uid)
SELECT {release}, (f.id % 64)::smallint, f.deployment_id, $2, f.uid, $3, f.uid FROM dbcontroller.foreign_target f WHERE f.id = ANY ($1)`)

	// The proxies that new ones replace.
	releaseProxiesSQL = db.Codes(`
INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, holder_uid, field_id, target_uid)
SELECT {release}, (f.id % 64)::smallint, f.deployment_id, f.block_attempt, f.uid, $2, f.uid FROM dbcontroller.foreign_target f
WHERE f.id = ANY ($1) AND f.block_attempt IS NOT NULL`)
)

// rightRequest is a target that this deployment wants the right to block.
type rightRequest struct {
	ID   int64
	UID  uuid.UUID
	Turn int64
	Kind int32
	Name string

	Unused bool // it was asked for, and no row and no body here uses it
}

// pauseOfRefused is the time until a refused right is asked for again.
const pauseOfRefused = time.Minute

// Acquire asks a deployment for the rights to block some targets. A right that is refused, or whose call
// fails, is asked for again later: references are written by asking meanwhile.
func (s *Rights) Acquire(ctx context.Context, at schema.DeploymentID, ids []int64) error {
	rows, err := s.Pool.Query(ctx, selectAcquiredSQL, s.due(ids))
	if err != nil {
		return fmt.Errorf("read targets: %w", err)
	}
	requests, err := pgx.CollectRows(rows, pgx.RowToStructByPos[rightRequest])
	if err != nil {
		return fmt.Errorf("read targets: %w", err)
	}
	for _, w := range requests {
		if err := s.acquireByNumber(ctx, at, w); err != nil {
			s.putOff(w.ID)
			s.Log.Debug("the right to block a resource is not given, asking for each reference",
				zap.Stringer("deployment", at), zap.String("name", w.Name), zap.Error(err))
		}
	}
	return nil
}

// acquireByNumber asks for the right to block a target that many references block, unless it is a row of a
// table: the statement that deletes it could not recall the right. Rights that rows need are returned as soon
// as no row needs them.
func (s *Rights) acquireByNumber(ctx context.Context, at schema.DeploymentID, w rightRequest) error {
	v, err := s.Current()
	if err != nil {
		return err
	}
	kind, err := s.Names.KindOf(ctx, s.Pool, w.Kind)
	if err != nil || v.Model.Tabled(kind) {
		return errors.Join(err, errNotTaken)
	}
	return s.acquire(ctx, at, []rightRequest{w}, schema.Block, false)
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

// acquire asks for a right to each of some targets by one attempt, as a write does: it is established, and
// committed with the decision on the attempt. The right to act is there when the attempt is confirmed: its
// reference becomes an entry. The rights that can be taken are taken; the blockades of the others are
// released. unused: no row and no body here uses the rights to block yet. Their blockades stay tentative
// until one does, and the deployment of the targets asks about them.
func (s *Rights) acquire(ctx context.Context, at schema.DeploymentID, requests []rightRequest,
	behaviour schema.Behaviour, unused bool,
) error {
	v, err := s.Current()
	if err != nil {
		return err
	}
	refs := make([]peer.EstablishReference, len(requests))
	for i, w := range requests {
		kind, err := s.Names.KindOf(ctx, s.Pool, w.Kind)
		if err != nil || !v.Model.Delegable(kind) {
			return errors.Join(err, errNotTaken)
		}
		refs[i] = peer.EstablishReference{
			HolderUID: w.UID, HolderKind: kind.Kind, HolderName: w.Name, Path: peer.RightPath,
			TargetKind: kind.Kind, TargetName: w.Name, TargetUID: w.UID, Behaviour: behaviour,
		}
	}
	deployment, err := s.Names.Deployment(ctx, at)
	if err != nil {
		return err
	}
	g := granting{
		requests: requests, behaviour: behaviour, unused: unused, deployment: deployment,
		began: s.Rollback.Seen.Load(), own: s.gate.PresentEpoch(), attempt: s.preparer.NewAttempt(),
	}
	answer, err := s.Peers.Establish(ctx, at, g.attempt, refs)
	if err != nil {
		return err // a blockade that may exist there is resolved when it expires
	}
	g.theirs = answer.Epoch
	if err := s.take(ctx, &g); err != nil {
		return errors.Join(err, attempt.AbandonAt(ctx, s.attempts, g.attempt, deployment))
	}
	return nil
}

// granting is an attempt for rights.
type granting struct {
	requests    []rightRequest
	behaviour   schema.Behaviour
	unused      bool
	deployment  int32
	attempt     peer.AttemptID
	theirs, own uuid.UUID // the epochs of the answer and of the question
	began       int64
}

// take stores the rights that an attempt has established to rows of foreign_target that still have the turn
// of the question. It waits for no statement that shares such a row, unless that shares a lost right: then
// the right is not taken.
func (s *Rights) take(ctx context.Context, g *granting) error {
	field, err := s.Names.Field(ctx, peer.RightPath)
	if err != nil {
		return err
	}
	ids, turns := make([]int64, len(g.requests)), make([]int64, len(g.requests))
	for i, w := range g.requests {
		ids[i], turns[i] = w.ID, w.Turn
	}
	err = s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		view := gate.CommitView{Present: s.gate.Present(tx)}
		var taken []int64
		b := &pgx.Batch{}
		b.Queue(db.EndingLockTimeoutSQL)
		b.Queue(gate.ShareVersionSQL, gate.VersionLock)
		b.Queue(gate.SelectNowSQL, []int32{g.deployment}, []uuid.UUID{g.theirs}).QueryRow(view.Scan)
		b.Queue(db.LockGrantsSQL, ids)
		b.Queue(takeableSQL, ids, turns, g.behaviour == schema.Block).Query(func(rows pgx.Rows) (err error) {
			taken, err = pgx.CollectRows(rows, pgx.RowTo[int64])
			return err
		})
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if len(taken) == 0 || !view.InEpoch(g.own) || len(view.Decommissioned) > 0 || view.TooLate(g.attempt) {
			return errNotTaken
		}
		b = &pgx.Batch{}
		write.QueueDecision(b, g.began, g.attempt)
		if g.behaviour == schema.Block {
			b.Queue(releaseProxiesSQL, taken, field)
			b.Queue(takeBlockRightSQL, taken, g.attempt, g.theirs, g.own)
		} else {
			b.Queue(askActingRightSQL, taken, g.attempt)
		}
		if !g.unused {
			b.Queue(write.ConfirmWorkSQL, []int16{int16(taken[0] % schema.RingSize)}, []int32{g.deployment},
				[]peer.AttemptID{g.attempt}, []int32{int32(len(ids))}) //nolint:gosec // bounded by the request
		}
		if left := slices.DeleteFunc(ids, func(id int64) bool { return slices.Contains(taken, id) }); len(left) > 0 {
			b.Queue(releaseProxySQL, left, g.attempt, field)
		}
		b.Queue(db.DoneEndingSQL, taken) // of a process that died
		return tx.SendBatch(ctx, b).Close()
	})
	return write.Undecided(ctx, s.DB, err)
}
