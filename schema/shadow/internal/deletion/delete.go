package deletion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/internal/trace"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/request"
)

// DeleteRequest names the resource to delete. UID and Revision are preconditions.
type DeleteRequest struct {
	Name     string
	UID      uuid.UUID     // zero: any
	Revision peer.Revision // 0: any
	// Actor is the caller's identity, such as user/alice. It is stored with the removal of every member.
	Actor string
	// RequestID, unless zero, is the caller's id of the request. The same id and request get the same answer.
	RequestID uuid.UUID
	// Call is the request id of the call, stored as the actor is; RequestID where it is zero.
	Call uuid.UUID
}

const (
	lockRootSQL = `
SELECT id, uid, kind_id, name, state, shard, revision, block_deletion, hidden FROM dbcontroller.shadow
WHERE kind_id = $1 AND name = $2 FOR UPDATE`

	rootSQL = `SELECT id FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2`

	// A delete that waits behind many shared locks gives up soon, and closes its target to new references.
	shortWaitSQL = `SET LOCAL lock_timeout = '300ms'`
)

var byName = cascade.Select(rootSQL)

// Delete deletes a resource with everything that cascades. Before it is refused, the blockades in its way are resolved:
// released ones, and those of aborted attempts, do not block. It waits for undecided attempts until the deadline (default
// Config.Times.DeleteTimeout), as for a lock; meanwhile the resource takes no new references, so that a busy one can be
// deleted. A look-ahead over other deployments finds blockers of the cascade there. With a request id, the outcome is
// stored as by SaveRequested. When it fails with one of these errors, nothing has changed: *BlockedError, which names
// the blockers; *ProtectedError (block_deletion); *UnavailableError, when a blocker's deployment does not answer;
// ErrNotFound; ErrConflict.
func (s *Deleter) Delete(ctx context.Context, req DeleteRequest) (peer.DeleteResult, error) {
	d := &deletion{}
	if req.RequestID == uuid.Nil {
		return s.delete(ctx, d, req)
	}
	content := struct {
		Delete   string
		UID      uuid.UUID
		Revision peer.Revision
	}{req.Name, req.UID, req.Revision}
	o, err := request.Once(ctx, s.DB, req.RequestID, content, func(id *request.Request) (request.Outcome, error) {
		d.request = id
		result, err := s.delete(ctx, d, req)
		return request.Outcome{Deleted: &result}, err
	})
	if err != nil || o.Deleted == nil {
		return peer.DeleteResult{}, err
	}
	return *o.Deleted, nil
}

// DeleteWithin is Delete in one transaction with an application's own statements, after the look-ahead. The request has no id. It
// fails with the errors of Delete, with those of the application's function, and with ErrTransaction.
func (s *Deleter) DeleteWithin(ctx context.Context, within *gate.Within, req DeleteRequest) (peer.DeleteResult, error) {
	inTx := func(ctx context.Context, _ feed.Topics, fn func(pgx.Tx) error) error {
		return s.gate.InTxWithin(ctx, within, db.AllFeeds, fn)
	}
	return s.delete(ctx, &deletion{inTx: inTx, last: db.Stay, within: true}, req)
}

func (s *Deleter) delete(ctx context.Context, d *deletion, req DeleteRequest) (peer.DeleteResult, error) {
	if d.inTx == nil {
		d.inTx, d.last = s.InTx, db.CommitWith
	}
	kindID, err := s.gate.KindOfName(ctx, req.Name)
	if err != nil {
		return peer.DeleteResult{}, err
	}
	ctx, cancel := peer.WithDefaultTimeout(ctx, s.Cfg.Times.DeleteTimeout)
	defer cancel()
	if err := s.rows.EnsureNamed(ctx, kindID, req.Name); err != nil {
		return peer.DeleteResult{}, err
	}
	d.store, d.req, d.kindID, d.closed = s, req, kindID, s.closing()
	d.pauses = retry.Backoff{First: 2 * time.Millisecond, Max: 100 * time.Millisecond}
	d.cause = &schema.Cause{
		ID: uuid.Must(uuid.NewV7()), Root: s.full(req.Name).String(), Actor: req.Actor, RequestID: cmp.Or(req.Call, req.RequestID), At: time.Now(),
		TraceParent: trace.Parent(ctx),
	}
	defer d.closed.End(ctx)
	return d.run(ctx)
}

// deletion is one delete in progress. It tries in one transaction, resolves obstacles outside of it, and tries again, until it is
// carried out, refused, or out of time.
type deletion struct {
	store   *Deleter
	req     DeleteRequest
	request *request.Request // nil without a request id
	// inTx runs a try in one transaction: the store's own, or one of an application.
	inTx func(ctx context.Context, touches feed.Topics, fn func(pgx.Tx) error) error
	// last sends the last statements of a try: with the commit, where that is the store's.
	last   db.Sender
	within bool // in the application's transaction
	kindID int32
	cause  *schema.Cause
	closed closer
	// ahead is the look-ahead for the next try; nil: look ahead first.
	ahead *lookAhead
	// undecided are the undecided blockades of the last look-ahead.
	undecided []blockade
	pauses    retry.Backoff
	obstacles int // tries that met an obstacle which no look-ahead had found, or whose blockades a look-ahead settled
}

func (d *deletion) run(ctx context.Context) (peer.DeleteResult, error) {
	for {
		t, err := d.try(ctx)
		switch {
		case db.HasCode(err, db.CodeLockNotAvailable) && ctx.Err() == nil:
			err = d.closed.CloseNamed(ctx, d.kindID, d.req.Name)
		case err == nil && t.found == nil:
			return t.result, nil
		case err == nil:
			err = d.giveWay(ctx, t.found)
		default:
			err = d.whyNot(err)
		}
		if err != nil {
			return peer.DeleteResult{}, err
		}
	}
}

// giveWay resolves the obstacle of a try: it looks ahead, waits for undecided attempts, and closes the targets when new
// references arrive as fast as old ones are settled.
func (d *deletion) giveWay(ctx context.Context, found *obstacle) error {
	late := d.ahead != nil // the obstacle arrived after the look-ahead
	if err := d.lookAhead(ctx, found); err != nil {
		return err
	}
	waits, moved := len(d.undecided) > 0, d.ahead.moved
	if !waits && !moved && !late {
		return nil
	}
	// Once is chance; twice, new references come as fast as old ones are settled.
	if d.obstacles++; d.obstacles > 1 || !moved {
		if err := d.closed.Close(ctx, found.targets); err != nil && ctx.Err() == nil {
			return err
		}
	}
	switch {
	case moved:
		d.ahead = nil // the settled references may lead to other deployments
	case waits:
		d.ahead = nil // excused blockers may have changed meanwhile
		if d.pauses.Wait(ctx) != nil {
			return d.store.undecided(d.req.Name, d.undecided)
		}
	}
	return nil
}

func (d *deletion) lookAhead(ctx context.Context, found *obstacle) (err error) {
	if d.ahead, err = d.store.lookAhead(ctx, d.req.Name, found); err != nil {
		return d.whyNot(err)
	}
	d.undecided = d.ahead.undecided
	return nil
}

// whyNot replaces an error that followed from waiting by one that names the undecided blockers.
func (d *deletion) whyNot(err error) error {
	if len(d.undecided) > 0 && peer.GaveUp(err) {
		return d.store.undecided(d.req.Name, d.undecided)
	}
	return err
}

// undecided returns the error of a delete that waited for undecided attempts until its deadline.
func (s *Deleter) undecided(name string, by []blockade) error {
	e := &peer.BlockedError{Name: name, Deployment: s.Self, Undecided: true}
	for _, b := range by {
		e.Add(b.reference())
	}
	return e
}

var (
	// errObstacle rolls a try back.
	errObstacle = errors.New("obstacle")
	// errMarked is about a root in DELETING.
	errMarked = errors.New("marked already")
)

// trial is one try of a delete: the result, or the obstacle in its way.
type trial struct {
	of     *deletion
	result peer.DeleteResult
	found  *obstacle
}

// try is the whole delete in one transaction: first the lock, then the checks, then the mark. It changes nothing when it
// finds an obstacle. Tries that come at the same time share transactions.
func (d *deletion) try(ctx context.Context) (*trial, error) {
	t := &trial{of: d}
	if err := d.store.run(ctx, t); err != nil {
		return nil, err
	}
	if t.found == nil {
		d.store.Log.Debug("a delete is decided", zap.String("name", d.req.Name), zap.Bool("removed", t.result.Removed), zap.Stringer("deletion", d.cause.ID), requestid.Field(ctx))
		crash.At("crash-delete-committed")
	}
	return t, nil
}

// alone runs a try in a transaction of its own.
func (t *trial) alone(ctx context.Context) error {
	d := t.of
	err := d.inTx(ctx, db.ChangeFeed, func(tx pgx.Tx) (err error) {
		t.begin() // forget an earlier try
		root := &plan.Member{}
		t.found, err = d.carryOut(ctx, tx, root, &t.result)
		switch {
		case errors.Is(err, errMarked):
			err = d.again(ctx, tx, root, &t.result)
		case err == nil && t.found != nil:
			err = errObstacle
		}
		return err
	})
	if errors.Is(err, errObstacle) {
		err = nil
	}
	return err
}

func (t *trial) begin() {
	t.result, t.found = peer.DeleteResult{}, nil
	if t.of.ahead != nil {
		t.result.Unasked = t.of.ahead.unasked
	}
}

// carryOut reads and locks the root, and removes or marks it with the other members; or returns the obstacle that has to be resolved first.
func (d *deletion) carryOut(ctx context.Context, tx pgx.Tx, root *plan.Member, result *peer.DeleteResult) (found *obstacle, err error) {
	s, b := d.store, &pgx.Batch{}
	member, unfit := d.queueRoot(b, root)
	seen := s.cascade.QueueSight(tx, b, byName, d.kindID, d.req.Name)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("%s: %w", d.req.Name, err)
	}
	switch {
	case *unfit != nil && seen.Recovered.Behind: // the name may be of another kind
		return nil, fmt.Errorf("%w: the deployment switched its version", peer.ErrAborted)
	case *unfit != nil:
		return nil, fmt.Errorf("%s: %w", d.req.Name, *unfit)
	}
	if root.State != peer.Active {
		return nil, errMarked
	}
	decided, found, err := d.decide(ctx, tx, root, seen, member)
	if err != nil || found != nil {
		return found, err
	}
	b = &pgx.Batch{}
	result.Deletion, result.Removed = d.cause.ID, slices.Contains(decided.Verdict.Remove, root.ID)
	if result.Removed {
		d.request.Queue(b, request.Outcome{Deleted: result})
		return nil, s.cascade.CarryOutAnd(ctx, tx, decided, b, d.last)
	}
	kind, err := s.Names.KindOf(ctx, tx, root.Kind)
	if err != nil {
		return nil, err
	}
	marked := read.QueueLookUp(b, root.Kind, kind.Kind, root.Name)
	if d.request == nil {
		err = s.cascade.CarryOutAnd(ctx, tx, decided, b, d.last)
		result.Resource, result.Removed = *marked, *marked == nil // its kind hides it from now on
		return nil, err
	}
	if err := s.cascade.CarryOutAnd(ctx, tx, decided, b, db.Stay); err != nil {
		return nil, err
	}
	result.Resource, result.Removed = *marked, *marked == nil
	b = &pgx.Batch{}
	d.request.Queue(b, request.Outcome{Deleted: result})
	return nil, d.last(ctx, tx, b)
}

// decide decides about the locked root with its other members. It returns the obstacle that has to be resolved before the decision is carried out.
func (d *deletion) decide(ctx context.Context, tx pgx.Tx, root *plan.Member, seen *cascade.Sight, member *[]read.Member) (decided cascade.Decision, found *obstacle, err error) {
	s := d.store
	d.cause.RootUID = root.UID
	root.Why = plan.Reason{How: peer.Requested, Cause: d.cause}
	if decided, err = s.cascade.DecideBy(ctx, tx, []*plan.Member{root}, seen); err != nil {
		return decided, nil, err
	}
	protected := &peer.ProtectedError{Name: d.req.Name}
	for _, m := range decided.Verdict.Protected {
		protected.By = append(protected.By, s.full(m.Name))
	}
	if len(protected.By) > 0 {
		return decided, nil, protected
	}
	enough, err := s.lookAheadComplete(ctx, tx, decided, d.ahead)
	if err == nil && !enough {
		found, err = s.beforeLookAhead(ctx, tx, decided, member)
	}
	return decided, found, err
}

// again answers a delete of a resource that is marked.
func (d *deletion) again(ctx context.Context, tx pgx.Tx, root *plan.Member, result *peer.DeleteResult) (err error) {
	if result.Deletion, err = read.DeletionOf(ctx, tx, root.Name, root.UID); err != nil {
		return err
	}
	kind, err := d.store.Names.KindOf(ctx, tx, root.Kind)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	marked := read.QueueLookUp(b, root.Kind, kind.Kind, root.Name)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	result.Resource = *marked
	b = &pgx.Batch{}
	d.request.Queue(b, request.Outcome{Deleted: result})
	return d.last(ctx, tx, b)
}

// queueRoot locks the root, and reads it for a look-ahead unless that was made, in a batch of statements. unfit is why the root does not fit
// the request, if it does not.
func (d *deletion) queueRoot(b *pgx.Batch, root *plan.Member) (member *[]read.Member, unfit *error) {
	req := d.req
	unfit = new(error)
	b.Queue(shortWaitSQL)
	b.Queue(lockRootSQL, d.kindID, req.Name).QueryRow(func(row pgx.Row) error {
		revision, err := scanRoot(row, root)
		if errors.Is(err, pgx.ErrNoRows) {
			*unfit, err = peer.ErrNotFound, nil
		} else if err == nil {
			*unfit = req.fits(root, revision)
		}
		return err
	})
	if d.ahead == nil {
		member = read.Queued[read.Member](b, read.NamedMemberSQL, d.kindID, req.Name)
	}
	return member, unfit
}

func scanRoot(row pgx.Row, root *plan.Member) (revision peer.Revision, err error) {
	err = row.Scan(&root.ID, &root.UID, &root.Kind, &root.Name, &root.State, &root.Shard, &revision, &root.Protected, &root.Hidden)
	return revision, err
}

// fits checks the preconditions of a delete.
func (req DeleteRequest) fits(root *plan.Member, revision peer.Revision) error {
	switch {
	case root.Hidden:
		return peer.ErrNotFound
	case req.UID != uuid.Nil && req.UID != root.UID:
		return fmt.Errorf("%w with uid %s", peer.ErrNotFound, req.UID)
	case req.Revision != 0 && req.Revision != revision && root.State == peer.Active:
		return fmt.Errorf("%w: it is at revision %d, not %d", peer.ErrConflict, revision, req.Revision)
	}
	return nil
}

// full returns the full name of a resource of this deployment.
func (s *Deleter) full(name string) schema.FullName {
	return schema.FullName{Deployment: s.Self, Name: name}
}
