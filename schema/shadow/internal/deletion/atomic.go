package deletion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/attempt"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// An atomic deletion freezes its members level by level: the look-ahead asks each deployment to keep writers
// away from its members, and answers for frozen members do not change any more. The transaction that marks
// the root also decides the deletion, under the primary key of attempts; the ordinary cascade carries it out.
// (test/model/atomic)

var selectActiveRootsSQL = db.Codes(`SELECT s.id FROM ` + namedSQL + ` WHERE s.state = {active}`)

// freezeSlack is the time after the deadline of a delete before a participant asks for the decision.
const freezeSlack = 2 * time.Second

// repeatedFreezes is the number of times that a question is repeated whose answer was lost: it would abort
// the whole deletion.
const repeatedFreezes = 3

// atomic is a deletion that happens in all deployments or in none.
type atomic struct {
	*deletion
	frozen *frozen // nil until another deployment is concerned
}

// frozen are the members that an atomic deletion may have frozen.
type frozen struct {
	peer.Freeze
	peers peer.Planner
	began int64 // a number of the sequence mark from before it began

	mu sync.Mutex
	// epochs are the first epochs of the databases of participants, zero until one has answered; guarded by
	// mu.
	epochs map[schema.DeploymentID]uuid.UUID
}

// prepare freezes the roots, once: the try is repeated behind the freeze.
func (d *atomic) prepare(ctx context.Context) (again bool, err error) {
	if d.frozen != nil {
		return false, nil
	}
	return true, d.freeze(ctx)
}

func (d *atomic) freeze(ctx context.Context) error {
	s := d.store
	for _, w := range d.wanted {
		if s.rows.Of(w.kindID) != nil {
			return fmt.Errorf("%s is a row of an attached table: %w", w.Name, peer.ErrNotAtomic)
		}
	}
	epoch := s.gate.PresentEpoch()
	ids, err := d.activeRoots(ctx)
	if err != nil || len(ids) == 0 { // the next try finds that others have marked or removed them
		return err
	}
	deadline, _ := ctx.Deadline()
	f := &frozen{peers: s.Peers, began: s.Rollback.Seen.Load(), epochs: map[schema.DeploymentID]uuid.UUID{}}
	f.Freeze = peer.Freeze{
		Coordinator: s.Self, Epoch: epoch, Deletion: s.prepare.NewAttempt(), Root: d.first().Name,
		For: time.Until(deadline) + freezeSlack,
	}
	d.frozen, d.alone = f, true
	_, err = s.target.Freeze(ctx, target.Freezing{
		Freeze: &f.Freeze, Own: f.Epoch, Find: func(context.Context, pgx.Tx) ([]int64, error) { return ids, nil },
		Look: func(context.Context, pgx.Tx) (roots []target.Member, err error) {
			for _, id := range ids {
				roots = append(roots, target.Member{ID: id})
			}
			return roots, nil
		},
	})
	if db.HasCode(err, db.CodeLockNotAvailable) && ctx.Err() == nil { // nothing is frozen: it begins again
		d.frozen = nil
		return d.closeNamed(ctx)
	}
	crash.At("crash-atomic-frozen")
	return err
}

// first is the first resource that is deleted: those before it are missing, or in DELETING.
func (d *atomic) first() *wanted {
	return d.wanted[max(0, slices.IndexFunc(d.wanted, func(w *wanted) bool { return w.cause.RootUID != uuid.Nil }))]
}

// activeRoots returns the ids of the roots that are to be frozen. Others have no part in the deletion, or
// make the next try fail.
func (d *atomic) activeRoots(ctx context.Context) ([]int64, error) {
	kinds, names := d.keys()
	rows, err := d.store.Pool.Query(ctx, selectActiveRootsSQL, kinds, names)
	if err != nil {
		return nil, fmt.Errorf("read the roots of an atomic deletion: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("read the roots of an atomic deletion: %w", err)
	}
	return ids, nil
}

// walk begins with the roots, which are frozen. The other members in this database are frozen by a question
// to this deployment: until then they may drop their references, and are no members any more.
func (d *atomic) walk(from *obstacle, _ bool) *plan.Walk {
	self := d.store.Self
	w := plan.NewWalk(self, d.frozen, false)
	w.MindAll, w.NameLeaves, w.Strict = from.tooMany(), true, true
	roots := slices.DeleteFunc(slices.Clone(from.members), func(m peer.PlanMember) bool {
		return !slices.ContainsFunc(d.wanted, func(w *wanted) bool { return w.cause.RootUID == m.UID })
	})
	w.Begin(roots)
	if len(from.members)+len(from.later) > 1 { // a root alone has no other members here
		for _, m := range roots {
			w.Follow(self, peer.PlanTarget{Deployment: self, UID: m.UID})
		}
	}
	return w
}

// Plan asks a deployment to freeze its members. It is the peer of a look-ahead.
func (f *frozen) Plan(ctx context.Context, at schema.DeploymentID, q peer.PlanQuestion) (*peer.Plan, error) {
	freeze := f.Freeze
	f.mu.Lock()
	freeze.ParticipantEpoch = f.epochs[at]
	f.epochs[at] = freeze.ParticipantEpoch // it may freeze, whatever it answers
	f.mu.Unlock()
	q.Freeze = &freeze
	answer, err := f.peers.Plan(ctx, at, q)
	pauses := retry.Backoff{First: 20 * time.Millisecond, Max: 100 * time.Millisecond}
	for range repeatedFreezes {
		if err == nil || pauses.Wait(ctx) != nil {
			break
		}
		answer, err = f.peers.Plan(ctx, at, q)
	}
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch first := f.epochs[at]; {
	case first == uuid.Nil:
		f.epochs[at] = answer.Epoch
	case first != answer.Epoch: // it may have lost frozen members
		return nil, fmt.Errorf("its database was restored or failed over during the deletion: %w", peer.ErrRecovering)
	}
	return answer, nil
}

// Trace is no part of an atomic deletion: a look-ahead that is not complete refuses it.
func (f *frozen) Trace(context.Context, schema.DeploymentID, []uuid.UUID) (map[uuid.UUID]peer.Trace, error) {
	return nil, peer.ErrNotAtomic
}

// refusal also refuses what the walk has not reached.
func (d *atomic) refusal(_ context.Context, w *plan.Walk, waits bool) error {
	if waits {
		return nil
	}
	return cmp.Or(w.Refusal(d.name()), whole(w, d.name()))
}

// whole refuses an atomic deletion whose look-ahead was not complete.
func whole(w *plan.Walk, name string) error {
	switch {
	case w.NotAtomic != "":
		return fmt.Errorf("%s: %s: %w", name, w.NotAtomic, peer.ErrNotAtomic)
	case w.Truncated: // first: at the limit some deployments are not asked
		return fmt.Errorf("%s reaches %d resources, or more: %w", name, peer.PlanLimit, peer.ErrNotAtomic)
	case len(w.Unasked) > 0:
		e := &peer.UnavailableError{Unasked: w.Unasked}
		for _, u := range w.Unasked {
			e.Deployments = append(e.Deployments, u.Deployment)
		}
		return fmt.Errorf("%s cannot be deleted in all deployments or none for now: %w", name, e)
	}
	return nil
}

var errLost = errors.New(
	"a deployment that the deletion reaches was restored, failed over, or was decommissioned meanwhile")

// A participant that has begun a new epoch, or that was decommissioned, may have lost members that were
// frozen.
const selectLostSQL = `
SELECT EXISTS (
    SELECT FROM unnest($1::int[], $2::uuid[]) AS i (id, epoch) JOIN dbcontroller.deployment d USING (id)
    WHERE d.epoch > i.epoch OR EXISTS (SELECT FROM dbcontroller.decommissioned x WHERE x.deployment_id = d.id)
)`

// carryOut decides the deletion COMMITTED, with the marks, or schedules it. Participants keep their members
// frozen until the cascade marks them.
func (d *atomic) carryOut(ctx context.Context, tx pgx.Tx, decided cascade.Decision, also *pgx.Batch,
	last db.Sender,
) error {
	var at []int32
	if d.frozen != nil { // otherwise no other deployment is concerned
		var err error
		if at, err = d.checkFrozen(ctx, tx, decided); err != nil {
			return err
		}
	}
	if d.retention > 0 {
		return d.schedule(ctx, tx, at, decided, also, last)
	}
	if d.scheduled != uuid.Nil {
		if err := d.endScheduled(ctx, tx, also); err != nil {
			return err
		}
	}
	if d.frozen != nil {
		d.decide(also, at)
	}
	return d.store.cascade.CarryOutAnd(ctx, tx, decided, also, last)
}

// checkFrozen checks that all members are frozen and that no participant may have lost any. It returns the
// participants.
func (d *atomic) checkFrozen(ctx context.Context, tx pgx.Tx, decided cascade.Decision) (at []int32, err error) {
	s, f := d.store, d.frozen
	at, epochs, err := f.participants(ctx, s.DB)
	if err != nil {
		return nil, err
	}
	var lost bool
	b := &pgx.Batch{}
	s.gate.CheckPeerEpoch(tx, b, s.SelfID, f.Epoch, f.Epoch) // the process may survive a failover
	left := target.QueueNotFrozen(b, f.Deletion, slices.Collect(maps.Keys(decided.Closure.Members)))
	b.Queue(selectLostSQL, at, epochs).QueryRow(func(row pgx.Row) error { return row.Scan(&lost) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	switch {
	case *left > 0:
		return nil, fmt.Errorf("%w: %d of its resources are not frozen any more", peer.ErrAborted, *left)
	case lost:
		return nil, fmt.Errorf("%w: %w", peer.ErrAborted, errLost)
	}
	return at, nil
}

// decide adds the decision, and its confirms.
func (d *atomic) decide(also *pgx.Batch, at []int32) {
	s, f := d.store, d.frozen
	write.QueueDecision(also, f.began, f.Deletion)
	d.queueConfirms(also, f.Deletion, at, 0)
	target.QueueCommitted(also, f.Deletion, s.SelfID)
}

// queueConfirms adds a message of a deletion to each participant as work.
func (d *atomic) queueConfirms(b *pgx.Batch, deletion peer.AttemptID, at []int32, established int32) {
	shards, references := make([]int16, len(at)), make([]int32, len(at))
	deletions := make([]peer.AttemptID, len(at))
	for i := range at {
		shards[i], deletions[i], references[i] = int16(schema.Shard(d.wanted[0].Name)), deletion, established
	}
	b.Queue(write.ConfirmWorkSQL, shards, at, deletions, references)
}

// participants returns the other deployments that may have frozen members, with their epochs.
func (f *frozen) participants(ctx context.Context, d *db.DB) (at []int32, epochs []uuid.UUID, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, epoch := range f.epochs {
		if id == d.Self {
			continue
		}
		n, err := d.Names.Deployment(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		at, epochs = append(at, n), append(epochs, epoch)
	}
	return at, epochs, nil
}

// ended opens what is frozen if the deletion was not carried out: it has failed, or others have taken all of
// its roots.
func (d *atomic) ended(ctx context.Context, results []peer.DeleteResult, err error) ([]peer.DeleteResult, error) {
	switch {
	case d.frozen == nil:
	case err != nil:
		return d.abort(ctx, err)
	case d.retention > 0 && slices.ContainsFunc(results, func(r peer.DeleteResult) bool {
		return r.Resource != nil && !r.Resource.PurgeAt.IsZero()
	}):
	case !slices.ContainsFunc(d.wanted, func(w *wanted) bool {
		return slices.ContainsFunc(results, func(r peer.DeleteResult) bool { return r.Deletion == w.cause.ID })
	}):
		_, _ = d.abort(ctx, nil)
	}
	return results, err
}

// abort decides the deletion ABORTED after an error, and opens its members again, unless it has committed and
// the answer was lost.
func (d *atomic) abort(ctx context.Context, cause error) ([]peer.DeleteResult, error) {
	s, f := d.store, d.frozen
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	at, _, err := f.participants(ctx, s.DB)
	var committed bool
	if err == nil {
		committed, err = attempt.Abort(ctx, s.attempts, f.Deletion, at)
	}
	switch {
	case err != nil:
		s.Log.Warn("cannot record that an atomic deletion is aborted; its participants ask for the decision",
			zap.String("name", d.name()), zap.Stringer("deletion", f.Deletion), zap.Error(err), requestid.Field(ctx))
		return nil, cause
	case committed: // the results are lost with the answer to the commit
		return nil, cause
	}
	if err := s.target.Release(ctx, s.Self, f.Epoch, nil, []peer.AttemptID{f.Deletion}); err != nil {
		s.Log.Debug("the resources of an aborted deletion are opened when they expire", zap.Error(err),
			requestid.Field(ctx))
	}
	if errors.Is(cause, peer.ErrUnknown) || db.Violates(cause, "attempt_pkey") {
		cause = fmt.Errorf("%w: a participant asked for the decision before it was made", peer.ErrAborted)
	}
	return nil, write.Undecided(ctx, s.DB, cause)
}
