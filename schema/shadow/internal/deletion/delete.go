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
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
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

	// One row for each delete, so that none ends the closing of another.
	closeTargetsSQL = `
INSERT INTO dbcontroller.closing (target_id, delete_id, until) SELECT id, $2, now() + $3 FROM unnest($1::bigint[]) AS id`

	openTargetsSQL = `DELETE FROM dbcontroller.closing WHERE target_id = ANY ($1) AND delete_id = $2`

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
	return s.delete(ctx, &deletion{inTx: inTx, last: db.Stay}, req)
}

func (s *Deleter) delete(ctx context.Context, d *deletion, req DeleteRequest) (peer.DeleteResult, error) {
	if d.inTx == nil {
		d.inTx, d.last = s.InTx, db.CommitWith
	}
	kindID, err := s.KindOfName(ctx, req.Name)
	if err != nil {
		return peer.DeleteResult{}, err
	}
	ctx, cancel := peer.WithDefaultTimeout(ctx, s.Cfg.Times.DeleteTimeout)
	defer cancel()
	if err := s.ensureRow(ctx, kindID, req.Name); err != nil {
		return peer.DeleteResult{}, err
	}
	d.store, d.req, d.kindID, d.closed = s, req, kindID, &closing{id: uuid.New()}
	d.pauses = retry.Backoff{First: 2 * time.Millisecond, Max: 100 * time.Millisecond}
	d.cause = &schema.Cause{
		ID: uuid.Must(uuid.NewV7()), Root: s.full(req.Name).String(), Actor: req.Actor, RequestID: cmp.Or(req.Call, req.RequestID), At: time.Now(),
		TraceParent: trace.Parent(ctx),
	}
	defer s.reopen(ctx, d.closed)
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
	kindID int32
	cause  *schema.Cause
	closed *closing
	// ahead is the look-ahead for the next try; nil: look ahead first.
	ahead *lookAhead
	// undecided are the undecided blockades of the last look-ahead.
	undecided []blockade
	pauses    retry.Backoff
	obstacles int // tries that met an obstacle which no look-ahead had found, or whose blockades a look-ahead settled
}

func (d *deletion) run(ctx context.Context) (peer.DeleteResult, error) {
	for {
		result, found, err := d.try(ctx)
		switch {
		case db.HasCode(err, db.CodeLockNotAvailable) && ctx.Err() == nil:
			err = d.store.closeRoot(ctx, d.closed, d.kindID, d.req.Name)
		case err == nil && found == nil:
			return result, nil
		case err == nil:
			err = d.giveWay(ctx, found)
		default:
			err = d.whyNot(err)
		}
		if err != nil {
			return result, err
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
		if err := d.store.closeTargets(ctx, d.closed, found.targets); err != nil && ctx.Err() == nil {
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

// try is the whole delete in one transaction: first the lock, then the checks, then the mark. It changes nothing when it
// returns an obstacle.
func (d *deletion) try(ctx context.Context) (result peer.DeleteResult, found *obstacle, err error) {
	err = d.inTx(ctx, db.ChangeFeed, func(tx pgx.Tx) (err error) {
		result, found = peer.DeleteResult{}, nil // forget an earlier try
		if d.ahead != nil {
			result.Unasked = d.ahead.unasked
		}
		root := &plan.Member{}
		found, err = d.carryOut(ctx, tx, root, &result)
		switch {
		case errors.Is(err, errMarked):
			err = d.again(ctx, tx, root, &result)
		case err == nil && found != nil:
			err = errObstacle
		}
		return err
	})
	if errors.Is(err, errObstacle) {
		err = nil
	}
	if err == nil && found == nil {
		d.store.Log.Debug("a delete is decided", zap.String("name", d.req.Name), zap.Bool("removed", result.Removed), zap.Stringer("deletion", d.cause.ID), requestid.Field(ctx))
		crash.At("crash-delete-committed")
	}
	return result, found, err
}

const deletionOfSQL = `
SELECT x.deletion_id FROM dbcontroller.removal r JOIN dbcontroller.cause x ON x.id = r.cause_id WHERE r.name = $1 AND r.uid = $2`

// deletionOf returns the deletion that has marked a resource; zero when its record is too old.
func deletionOf(ctx context.Context, tx pgx.Tx, root *plan.Member) (id uuid.UUID, err error) {
	err = tx.QueryRow(ctx, deletionOfSQL, root.Name, root.UID).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return id, err
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
	d.cause.RootUID = root.UID
	root.Why = plan.Reason{How: peer.Requested, Cause: d.cause}
	decided, err := s.cascade.DecideBy(ctx, tx, []*plan.Member{root}, seen)
	if err != nil {
		return nil, err
	}
	protected := &peer.ProtectedError{Name: d.req.Name}
	for _, m := range decided.Verdict.Protected {
		protected.By = append(protected.By, s.full(m.Name))
	}
	if len(protected.By) > 0 {
		return nil, protected
	}
	enough, err := s.lookAheadComplete(ctx, tx, decided, d.ahead)
	if err != nil {
		return nil, err
	}
	if !enough {
		return s.beforeLookAhead(ctx, tx, decided, member)
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

// again answers a delete of a resource that is marked.
func (d *deletion) again(ctx context.Context, tx pgx.Tx, root *plan.Member, result *peer.DeleteResult) (err error) {
	if result.Deletion, err = deletionOf(ctx, tx, root); err != nil {
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
func (d *deletion) queueRoot(b *pgx.Batch, root *plan.Member) (member *[]memberRow, unfit *error) {
	req := d.req
	unfit = new(error)
	b.Queue(shortWaitSQL)
	b.Queue(lockRootSQL, d.kindID, req.Name).QueryRow(func(row pgx.Row) error {
		var revision peer.Revision
		err := row.Scan(&root.ID, &root.UID, &root.Kind, &root.Name, &root.State, &root.Shard, &revision, &root.Protected, &root.Hidden)
		switch {
		case errors.Is(err, pgx.ErrNoRows) || err == nil && root.Hidden:
			*unfit = peer.ErrNotFound
		case err != nil:
			return err
		case req.UID != uuid.Nil && req.UID != root.UID:
			*unfit = fmt.Errorf("%w with uid %s", peer.ErrNotFound, req.UID)
		case req.Revision != 0 && req.Revision != revision && root.State == peer.Active:
			*unfit = fmt.Errorf("%w: it is at revision %d, not %d", peer.ErrConflict, revision, req.Revision)
		}
		return nil
	})
	if d.ahead == nil {
		member = queued[memberRow](b, planRootSQL, d.kindID, req.Name)
	}
	return member, unfit
}

// queued adds a statement to a batch. Its rows are set when the batch has been sent.
func queued[T any](b *pgx.Batch, sql string, args ...any) *[]T {
	found := new([]T)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
	return found
}

// full returns the full name of a resource of this deployment.
func (s *Deleter) full(name string) schema.FullName {
	return schema.FullName{Deployment: s.Self, Name: name}
}

// closing holds the targets that one delete has closed to new references.
type closing struct {
	id      uuid.UUID
	targets []int64
}

// closeTargets closes targets to new references until one second after the deadline. A target that is closed already
// keeps its end.
func (s *Deleter) closeTargets(ctx context.Context, closed *closing, targets []int64) error {
	var more []int64
	for _, id := range targets {
		if !slices.Contains(closed.targets, id) {
			more = append(more, id)
		}
	}
	if len(more) == 0 {
		return nil
	}
	// Not during recovery: nothing can be deleted then, and lost references have to be established again.
	err := s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		recovered := s.gate.QueueRecovered(tx, b)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		return recovered.Check(ctx)
	})
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if _, err := s.Pool.Exec(ctx, closeTargetsSQL, more, closed.id, min(time.Until(deadline)+time.Second, target.MaxClosing)); err != nil {
		return fmt.Errorf("close targets to new references: %w", err)
	}
	closed.targets = append(closed.targets, more...)
	return nil
}

func (s *Deleter) closeRoot(ctx context.Context, closed *closing, kindID int32, name string) error {
	var id int64
	err := s.Pool.QueryRow(ctx, rootSQL, kindID, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("close targets to new references: %w", err)
	}
	return s.closeTargets(ctx, closed, []int64{id})
}

func (s *Deleter) reopen(ctx context.Context, closed *closing) {
	if len(closed.targets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = s.Pool.Exec(ctx, openTargetsSQL, closed.targets, closed.id) // on an error the closing ends by its time
}

// ensureRow gives the row of an attached table a shadow: most rows have none, because nobody refers to them.
func (s *Deleter) ensureRow(ctx context.Context, kindID int32, name string) error {
	if s.rows.Of(kindID) == nil {
		return nil
	}
	return s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error {
		_, err := s.rows.Ensure(ctx, tx, []rows.Key{{Kind: kindID, Name: name}})
		return err
	})
}
