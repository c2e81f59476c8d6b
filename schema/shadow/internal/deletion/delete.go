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
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// DeleteRequest names the resource to delete. UID and Revision are preconditions.
type DeleteRequest struct {
	Name     string
	UID      uuid.UUID     // zero: any
	Revision peer.Revision // 0: any
	// AllowMissing: it is no error that there is no such resource.
	AllowMissing bool
	// Atomic: the deletion happens in all deployments or in none. It is refused while a deployment that it
	// reaches does not answer. The first request of several decides.
	Atomic bool
	// Retention: the deletion is atomic, and only scheduled: its resources are hidden for this time, and at
	// least for that of their kinds, until they are undeleted or removed. The first request of several
	// decides.
	Retention time.Duration
	// Now: the retention of the kinds does not count, and a scheduled deletion of the resource is carried
	// out, if the requests name all resources that it names.
	Now bool
	// MaxRemovals is the maximum number of resources that the delete removes, named resources included; 0: as
	// many as the rights of the person say; -1: any number.
	MaxRemovals int64
	// Actor is the caller's identity, such as user/alice. It is stored with the removal of every member.
	Actor string
	// RequestID, unless zero, is the caller's id of the request. The same id and request get the same answer.
	RequestID uuid.UUID
	// Call is the request id of the call, stored as the actor is; RequestID where it is zero.
	Call uuid.UUID

	// scheduled: the resource is in the scheduled deletion that is carried out.
	scheduled bool
}

const (
	namedSQL = `dbcontroller.shadow s JOIN unnest($1::int[], $2::text[]) AS i (kind_id, name) ON s.kind_id = i.kind_id AND s.name = i.name`

	lockRootsSQL = `
SELECT s.id, s.uid, s.kind_id, s.name, s.state, s.shard, s.revision, s.block_deletion, s.hidden, s.frozen FROM ` + namedSQL + ` ORDER BY s.id FOR UPDATE OF s`

	// A delete that waits behind many shared locks gives up soon, and closes its target to new references.
	shortWaitSQL = `SET LOCAL lock_timeout = '300ms'`
)

var byNames = cascade.Select(`SELECT s.id FROM ` + namedSQL)

// Delete deletes a resource with all cascades. Before it is refused, the blockades in its way are resolved:
// released blockades, and blockades of aborted attempts, do not block. It waits for undecided attempts until
// the deadline (default Config.Times.DeleteTimeout), as for a lock; meanwhile the resource takes no new
// references, so that a busy one can be deleted. A look-ahead over other deployments finds blockers of the
// cascade there. With a request id, the outcome is stored as by SaveRequested. When it fails with one of
// these errors, nothing has changed: *BlockedError, which names the blockers; *ProtectedError
// (block_deletion); ErrTooManyRemovals; *UnavailableError, when a blocker's deployment does not answer;
// ErrNotFound; ErrConflict; ErrDeleted.
func (s *Deleter) Delete(ctx context.Context, req DeleteRequest) (peer.DeleteResult, error) {
	results, err := s.DeleteAll(ctx, []DeleteRequest{req})
	if err != nil {
		return peer.DeleteResult{}, err
	}
	return results[0], nil
}

// DeleteAll is Delete of one or several resources in one transaction: all of them, or none. A holder of one
// of them that is deleted with another one does not block. The request id, the limit of removals, the actor
// and the call come from the first request. The results have the order of the requests; the first one has the
// deployments that could not be asked. The resource of a result has no body when there are several.
func (s *Deleter) DeleteAll(ctx context.Context, reqs []DeleteRequest) ([]peer.DeleteResult, error) {
	d := &deletion{}
	if reqs[0].RequestID == uuid.Nil {
		return s.delete(ctx, d, reqs)
	}
	type requested struct {
		Delete       string
		UID          uuid.UUID
		Revision     peer.Revision
		AllowMissing bool          `json:",omitempty"`
		MaxRemovals  int64         `json:",omitempty"`
		Atomic       bool          `json:",omitempty"`
		Retention    time.Duration `json:",omitempty"`
		Now          bool          `json:",omitempty"`
	}
	all := make([]requested, len(reqs))
	for i, r := range reqs {
		all[i] = requested{r.Name, r.UID, r.Revision, r.AllowMissing, r.MaxRemovals, r.Atomic, r.Retention, r.Now}
	}
	var content any = all
	if len(all) == 1 {
		content = all[0]
	}
	o, err := prepare.Once(ctx, s.DB, reqs[0].RequestID, content, func(id *prepare.Request) (prepare.Outcome, error) {
		d.request = id
		results, err := s.delete(ctx, d, reqs)
		return outcomeOf(results), err
	})
	switch {
	case err != nil:
		return nil, err
	case o.Deleted != nil:
		return []peer.DeleteResult{*o.Deleted}, nil
	}
	return o.DeletedAll, nil
}

// outcomeOf is stored with a request.
func outcomeOf(results []peer.DeleteResult) prepare.Outcome {
	if len(results) == 1 {
		return prepare.Outcome{Deleted: &results[0]}
	}
	return prepare.Outcome{DeletedAll: results}
}

// DeleteIn is Delete in one transaction with an application's own statements, after the look-ahead. The
// request has no id. It fails with the errors of Delete, with the errors of the application's function, and
// with ErrTransaction.
func (s *Deleter) DeleteIn(ctx context.Context, within *gate.UserTransaction,
	req DeleteRequest,
) (peer.DeleteResult, error) {
	inTx := func(ctx context.Context, _ feed.Topics, fn func(pgx.Tx) error) error {
		return s.gate.InUserTransaction(ctx, within, db.AllFeeds, fn)
	}
	results, err := s.delete(ctx, &deletion{inTx: inTx, last: db.Stay, within: true}, []DeleteRequest{req})
	if err != nil {
		return peer.DeleteResult{}, err
	}
	return results[0], nil
}

func (s *Deleter) delete(ctx context.Context, d *deletion, reqs []DeleteRequest) ([]peer.DeleteResult, error) {
	if d.inTx == nil {
		d.inTx, d.last = s.InTx, db.CommitWith
	}
	ctx, cancel := peer.WithDefaultTimeout(ctx, s.Cfg.Times.DeleteTimeout)
	defer cancel()
	if err := s.want(ctx, d, reqs); err != nil {
		return nil, err
	}
	d.limit = limit(cmp.Or(reqs[0].MaxRemovals, peer.PersonFrom(ctx).MaxRemovals, anyNumber))
	first, keys := reqs[0], make([]rows.Key, len(reqs))
	for i, w := range d.wanted {
		keys[i] = rows.Key{Kind: w.kindID, Name: w.Name}
		w.cause = &schema.Cause{
			ID: uuid.Must(uuid.NewV7()), Root: s.full(w.Name).String(), Actor: first.Actor,
			RequestID: cmp.Or(first.Call, first.RequestID), At: time.Now(),
			TraceParent: trace.Parent(ctx),
		}
	}
	if err := s.rows.EnsureNamed(ctx, keys...); err != nil {
		return nil, err
	}
	d.store, d.closed = s, newClosing(s.gate)
	d.pauses = retry.Backoff{First: 2 * time.Millisecond, Max: 100 * time.Millisecond}
	defer d.closed.end(ctx)
	results, err := d.run(ctx)
	results, err = d.manner.ended(ctx, results, err)
	if errors.Is(err, peer.ErrDeleted) && first.Now && d.scheduled == uuid.Nil {
		return s.carryOutNow(ctx, d, reqs)
	}
	return results, err
}

// want finds the kinds of the resources. Each is named once.
func (s *Deleter) want(ctx context.Context, d *deletion, reqs []DeleteRequest) error {
	first := reqs[0]
	atomically := first.Atomic || first.Retention > 0 || d.scheduled != uuid.Nil
	d.retention = first.Retention
	seen := map[string]bool{}
	for _, req := range reqs {
		if seen[req.Name] {
			return &peer.InvalidError{Resource: "name", Err: fmt.Errorf("%s is named twice", req.Name)}
		}
		seen[req.Name] = true
		kindID, err := s.gate.KindOfName(ctx, req.Name)
		if err != nil {
			return err
		}
		d.wanted = append(d.wanted, &wanted{DeleteRequest: req, kindID: kindID})
		kind, err := s.Version.Load().Model.KindOf(req.Name)
		if err != nil {
			continue
		}
		atomically = atomically || kind.DeletesAtomically
		if !first.Now && d.scheduled == uuid.Nil && kind.Retention > 0 {
			atomically, d.retention = true, max(d.retention, kind.Retention)
		}
	}
	d.alone = d.retention > 0 || d.scheduled != uuid.Nil
	d.manner = inTurn{d}
	if !atomically {
		return nil
	}
	d.manner = &atomic{deletion: d}
	if d.within {
		return &peer.InvalidError{
			Resource: reqs[0].Name,
			Err: errors.New(
				"an atomic deletion cannot be a part of a transaction of an application: delete the resource outside of one"),
		}
	}
	return nil
}

// wanted is a resource that is to be deleted.
type wanted struct {
	DeleteRequest
	kindID int32
	cause  *schema.Cause
}

// deletion is one delete in progress. It tries in one transaction, resolves obstacles outside of it, and
// tries again, until it is carried out, refused, or out of time.
type deletion struct {
	store   *Deleter
	wanted  []*wanted        // one, or several, of which all or none are deleted
	request *prepare.Request // nil without a request id
	limit   limit
	// inTx runs a try in one transaction: the store's own, or one of an application.
	inTx func(ctx context.Context, touches feed.Topics, fn func(pgx.Tx) error) error
	// last sends the last statements of a try: with the commit, where that is the store's.
	last   db.Sender
	within bool // in the application's transaction
	closed *closing
	// alone: each try has a transaction of its own, which shares the version from its beginning: a new epoch
	// of another deployment, or its decommissioning, waits for it, or is visible to it.
	alone  bool
	manner manner
	// retention is the time until the deletion is carried out; 0: it is carried out now.
	retention time.Duration
	// scheduled is the scheduled deletion that is carried out; zero: none.
	scheduled peer.AttemptID
	// ahead is the look-ahead for the next try; nil: look ahead first.
	ahead *lookAhead
	// leaving are the blockades that look-aheads found to be of holders in DELETING: they are so for good.
	leaving excused
	// undecided are the undecided blockades of the last look-ahead.
	undecided []blockade
	pauses    retry.Backoff
	obstacles int // tries that met an obstacle which no look-ahead had found, or whose blockades a look-ahead settled
}

// name is the name of the resource in messages; of several, their names.
func (d *deletion) name() string {
	name := d.wanted[0].Name
	for _, w := range d.wanted[1:min(len(d.wanted), maxNamed)] {
		name += ", " + w.Name
	}
	if more := len(d.wanted) - maxNamed; more > 0 {
		name += fmt.Sprintf(" and %d more", more)
	}
	return name
}

// maxNamed is the number of resources that a message names.
const maxNamed = 3

// keys are the columns by which the resources are found.
func (d *deletion) keys() (kinds []int32, names []string) {
	for _, w := range d.wanted {
		kinds, names = append(kinds, w.kindID), append(names, w.Name)
	}
	return kinds, names
}

func (d *deletion) closeNamed(ctx context.Context) error {
	for _, w := range d.wanted {
		if err := d.closed.closeNamed(ctx, w.kindID, w.Name); err != nil {
			return err
		}
	}
	return nil
}

func (d *deletion) run(ctx context.Context) ([]peer.DeleteResult, error) {
	for {
		t, err := d.try(ctx)
		switch {
		case db.HasCode(err, db.CodeLockNotAvailable) && ctx.Err() == nil:
			err = d.closeNamed(ctx)
		case err == nil && t.found == nil:
			return t.results, nil
		case err == nil:
			err = d.resolveObstacle(ctx, t.found)
		default:
			err = d.explainTimeout(err)
		}
		if err != nil {
			return nil, err
		}
	}
}

// resolveObstacle resolves the obstacle of a try: it looks ahead, waits for undecided attempts, and closes
// the targets when new references arrive as fast as old ones are settled.
func (d *deletion) resolveObstacle(ctx context.Context, found *obstacle) error {
	if again, err := d.manner.prepare(ctx); err != nil || again {
		return err
	}
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
		if err := d.closed.close(ctx, found.targets); err != nil && ctx.Err() == nil {
			return err
		}
	}
	switch {
	case moved:
		d.ahead = nil // the settled references may lead to other deployments
	case waits:
		d.ahead = nil // excused blockers may have changed meanwhile
		if d.pauses.Wait(ctx) != nil {
			return d.store.undecided(d.name(), d.undecided)
		}
	}
	return nil
}

func (d *deletion) lookAhead(ctx context.Context, found *obstacle) (err error) {
	if d.ahead, err = d.store.lookAhead(ctx, found, d.manner, d.limit != anyNumber); err != nil {
		return d.explainTimeout(d.ofSeveral(err))
	}
	d.leaving = d.leaving.and(d.ahead.leaving)
	if d.undecided = d.ahead.undecided; len(d.undecided) > 0 || d.ahead.moved {
		return nil // the look-ahead is repeated
	}
	err = d.limit.allows(d.ahead.removed, d.ahead.more)
	if err == nil && d.limit != anyNumber && len(d.ahead.unasked) > 0 {
		err = fmt.Errorf(
			"the resources that the delete removes cannot be counted, and max_removals limits their number: %w",
			&peer.UnavailableError{Unasked: d.ahead.unasked})
	}
	return err
}

// limit is the maximum number of resources that a delete removes. Resources that join the deletion in other
// deployments after the look-ahead do not count: the limit protects from mistakes, and locks nothing.
type limit int64

// anyNumber is no limit.
const anyNumber = -1

// allows refuses a delete that removes too many resources. more: there may be more than their number, and
// unknown is not absent.
func (l limit) allows(removed int, more bool) error {
	if l == anyNumber || int64(removed) <= int64(l) && !more {
		return nil
	}
	orMore := ""
	if more {
		orMore = " or more"
	}
	return fmt.Errorf("the delete removes %d resources%s, %d are allowed: %w", removed, orMore, l,
		peer.ErrTooManyRemovals)
}

// ofSeveral says in a refusal that the resource is one of several.
func (d *deletion) ofSeveral(err error) error {
	var blocked *peer.BlockedError
	if errors.As(err, &blocked) {
		blocked.Several = len(d.wanted) > 1
	}
	return err
}

// explainTimeout replaces an error that followed from waiting by an error with the undecided blockers.
func (d *deletion) explainTimeout(err error) error {
	if len(d.undecided) > 0 && peer.GaveUp(err) {
		return d.store.undecided(d.name(), d.undecided)
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

// errObstacle rolls a try back.
var errObstacle = errors.New("obstacle")

// try is one try of a delete: the results, or the obstacle in its way.
type try struct {
	of      *deletion
	results []peer.DeleteResult // of each resource
	found   *obstacle
}

// try is the whole delete in one transaction: first the lock, then the checks, then the mark. It changes
// nothing when it finds an obstacle. Tries that come at the same time share transactions.
func (d *deletion) try(ctx context.Context) (*try, error) {
	t := &try{of: d}
	if err := t.together(ctx); err != nil {
		return nil, err
	}
	if t.found == nil {
		d.store.Log.Debug("a delete is decided", zap.String("name", d.name()),
			zap.Bool("removed", t.results[0].Removed), zap.Stringer("deletion", d.wanted[0].cause.ID),
			requestid.Field(ctx))
		crash.At("crash-delete-committed")
	}
	return t, nil
}

// alone runs a try in a transaction of its own.
func (t *try) alone(ctx context.Context) error {
	err := t.of.inTx(ctx, db.ChangeFeed, func(tx pgx.Tx) (err error) {
		t.begin() // forget an earlier try
		if t.found, err = t.carryOut(ctx, tx); err == nil && t.found != nil {
			err = errObstacle
		}
		return err
	})
	if errors.Is(err, errObstacle) {
		err = nil
	}
	return err
}

func (t *try) begin() {
	t.results, t.found = make([]peer.DeleteResult, len(t.of.wanted)), nil
	if t.of.ahead != nil {
		t.results[0].Unasked = t.of.ahead.unasked
	}
}

// carryOut reads and locks the roots, and removes or marks them with the other members; or returns the
// obstacle that has to be resolved first. A root in DELETING is no part of it: its deletion goes on.
func (t *try) carryOut(ctx context.Context, tx pgx.Tx) (found *obstacle, err error) {
	d := t.of
	roots, seen, member, err := d.lock(ctx, tx)
	if err != nil {
		return nil, err
	}
	var active []*plan.Member
	marks := &marks{scheduled: d.retention > 0}
	for i, root := range roots {
		switch {
		case root == nil:
			t.results[i].Removed = true
		case root.State == peer.Active:
			active = append(active, root)
		default:
			marks.of = append(marks.of, i)
		}
	}
	if err := t.earlier(ctx, tx, roots, marks.of); err != nil {
		return nil, err
	}
	if len(active) == 0 {
		return nil, t.finish(ctx, tx, roots, marks, func(also *pgx.Batch, last db.Sender) error {
			return last(ctx, tx, also)
		})
	}
	decided, found, err := d.decide(ctx, tx, active, seen, member)
	if err != nil || found != nil {
		return found, err
	}
	for i, root := range roots {
		if root == nil || root.State != peer.Active {
			continue
		}
		if d.retention == 0 {
			t.results[i].Deletion, t.results[i].Removed = d.wanted[i].cause.ID,
				slices.Contains(decided.Verdict.Remove, root.ID)
		}
		if !t.results[i].Removed {
			marks.of = append(marks.of, i)
		}
	}
	return nil, t.finish(ctx, tx, roots, marks, func(also *pgx.Batch, last db.Sender) error {
		return d.manner.carryOut(ctx, tx, decided, also, last)
	})
}

// earlier sets the deletions of roots that are in DELETING.
func (t *try) earlier(ctx context.Context, tx pgx.Tx, roots []*plan.Member, of []int) error {
	if len(of) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	for _, i := range of {
		read.QueueDeletionOf(b, roots[i].Name, roots[i].UID, &t.results[i].Deletion)
	}
	return tx.SendBatch(ctx, b).Close()
}

// marks are the resources that a delete leaves in DELETING, by their places among the roots, and the function
// that reads them back.
type marks struct {
	of   []int
	read []func() *peer.Resource
	// scheduled: they are ACTIVE, and hidden.
	scheduled bool
}

var selectHiddenSQL = db.Codes(
	`SELECT id FROM dbcontroller.shadow WHERE id = ANY ($1) AND hidden AND state = {deleting}`)

// queueMarks reads the resource that a delete leaves in DELETING. Of several only the names are told: their
// bodies have no bound together.
func (d *deletion) queueMarks(ctx context.Context, tx pgx.Tx, b *pgx.Batch, roots []*plan.Member, m *marks) error {
	var ids []int64
	var hidden []int64
	for _, i := range m.of {
		root := roots[i]
		kind, err := d.store.Names.KindOf(ctx, tx, root.Kind)
		if err != nil {
			return err
		}
		if len(roots) == 1 {
			found := read.QueueLookUp(b, root.Kind, kind.Kind, root.Name)
			m.read = append(m.read, func() *peer.Resource { return *found })
			continue
		}
		ids = append(ids, root.ID)
		named := &peer.Resource{Name: root.Name, UID: root.UID, Kind: d.store.KindNow(kind.Kind), State: peer.Deleting}
		if m.scheduled && root.State == peer.Active {
			named.State, named.DeletedAt = peer.Active, time.Now()
			named.PurgeAt = named.DeletedAt.Add(d.retention)
		}
		m.read = append(m.read, func() *peer.Resource {
			if slices.Contains(hidden, root.ID) {
				return nil
			}
			return named
		})
	}
	if len(ids) > 0 {
		b.Queue(selectHiddenSQL, ids).Query(func(found pgx.Rows) (err error) {
			hidden, err = pgx.CollectRows(found, pgx.RowTo[int64])
			return err
		})
	}
	return nil
}

// finish carries a delete out, reads the resources that it leaves in DELETING, and stores the outcome of the
// request, with the last statements of the transaction.
func (t *try) finish(ctx context.Context, tx pgx.Tx, roots []*plan.Member, m *marks,
	carryOut func(also *pgx.Batch, last db.Sender) error,
) error {
	d, b := t.of, &pgx.Batch{}
	if err := d.queueMarks(ctx, tx, b, roots, m); err != nil {
		return err
	}
	if d.request == nil || len(m.of) == 0 { // the outcome is known
		d.request.Queue(b, outcomeOf(t.results))
		err := carryOut(b, d.last)
		t.take(roots, m)
		return err
	}
	if err := carryOut(b, db.Stay); err != nil {
		return err
	}
	t.take(roots, m)
	b = &pgx.Batch{}
	d.request.Queue(b, outcomeOf(t.results))
	return d.last(ctx, tx, b)
}

// take sets the results of resources in DELETING. One that its kind hides from now on is removed for its
// caller.
func (t *try) take(roots []*plan.Member, m *marks) {
	for n, i := range m.of {
		t.results[i].Resource = m.read[n]()
		t.results[i].Removed = t.results[i].Resource == nil && roots[i].State == peer.Active
	}
}

// decide decides about the locked roots with their other members. It returns the obstacle that has to be
// resolved before the decision is carried out.
func (d *deletion) decide(ctx context.Context, tx pgx.Tx, roots []*plan.Member, seen *cascade.LockedRows,
	member *[]read.Member,
) (decided cascade.Decision, found *obstacle, err error) {
	s := d.store
	for _, root := range roots {
		cause := d.causeOf(root)
		cause.RootUID = root.UID
		root.Why = plan.Reason{How: peer.Requested, Cause: cause}
	}
	if decided, err = s.cascade.DecideBy(ctx, tx, roots, seen); err != nil {
		return decided, nil, err
	}
	protected := &peer.ProtectedError{Name: d.name()}
	for _, m := range decided.Verdict.Protected {
		protected.By = append(protected.By, s.full(m.Name))
	}
	if len(protected.By) > 0 {
		return decided, nil, protected
	}
	enough, err := s.lookAheadComplete(ctx, tx, decided, d.ahead, d.leaving)
	// The look-ahead has counted fewer members here, and the others with them.
	grown := d.limit != anyNumber && d.ahead != nil && len(decided.Closure.Members) > d.ahead.members
	switch {
	case err != nil:
	case !enough || grown:
		found, err = s.beforeLookAhead(ctx, tx, decided, member, d.leaving)
	default:
		err = d.limit.allows(len(decided.Closure.Members), false)
	}
	return decided, found, err
}

func (d *deletion) causeOf(root *plan.Member) *schema.Cause {
	return d.wanted[slices.IndexFunc(d.wanted, func(w *wanted) bool {
		return w.kindID == root.Kind && w.Name == root.Name
	})].cause
}

// lock locks the roots, which it returns in the order of the request, nil for a missing one that may be
// missing, and reads a single one for a look-ahead unless that was made. It fails when one does not fit its
// request.
func (d *deletion) lock(ctx context.Context,
	tx pgx.Tx,
) (roots []*plan.Member, seen *cascade.LockedRows, member *[]read.Member, err error) {
	kinds, names := d.keys()
	b, revisions := &pgx.Batch{}, make([]peer.Revision, len(names))
	roots = make([]*plan.Member, len(names))
	if d.alone {
		b.Queue(gate.ShareVersionSQL, gate.VersionLock)
	}
	b.Queue(shortWaitSQL)
	b.Queue(lockRootsSQL, kinds, names).Query(func(found pgx.Rows) error {
		for found.Next() {
			root := &plan.Member{}
			revision, err := scanRoot(found, root)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(d.wanted, func(w *wanted) bool {
				return w.kindID == root.Kind && w.Name == root.Name
			})
			roots[i], revisions[i] = root, revision
		}
		return found.Err()
	})
	if d.ahead == nil && len(names) == 1 {
		member = read.Queued[read.Member](b, read.NamedMembersSQL, kinds, names)
	}
	seen = d.store.cascade.QueueLockedRows(tx, b, byNames, kinds, names)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", d.name(), err)
	}
	for i, w := range d.wanted {
		unfit := peer.ErrNotFound
		if roots[i] != nil {
			unfit = w.fits(roots[i], revisions[i])
		}
		switch {
		case unfit != nil && seen.Recovered.Behind: // the name may be of another kind
			return nil, nil, nil, fmt.Errorf("%w: the deployment switched its version", peer.ErrAborted)
		case w.AllowMissing && errors.Is(unfit, peer.ErrNotFound):
			roots[i] = nil
		case errors.Is(unfit, peer.ErrDeleted):
			return nil, nil, nil, fmt.Errorf("%s %w", w.Name, unfit)
		case unfit != nil:
			return nil, nil, nil, fmt.Errorf("%s: %w", w.Name, unfit)
		}
	}
	return roots, seen, member, nil
}

func scanRoot(row pgx.Row, root *plan.Member) (revision peer.Revision, err error) {
	err = row.Scan(&root.ID, &root.UID, &root.Kind, &root.Name, &root.State, &root.Shard, &revision, &root.Protected,
		&root.Hidden, &root.Frozen)
	return revision, err
}

// fits checks the preconditions of a delete.
func (req DeleteRequest) fits(root *plan.Member, revision peer.Revision) error {
	switch {
	case root.Hidden && root.State != peer.Active:
		return peer.ErrNotFound
	case req.UID != uuid.Nil && req.UID != root.UID:
		return fmt.Errorf("%w with uid %s", peer.ErrNotFound, req.UID)
	case root.Hidden && !req.scheduled:
		return peer.ErrDeleted
	case req.Revision != 0 && req.Revision != revision && root.State == peer.Active:
		return fmt.Errorf("%w: it is at revision %d, not %d", peer.ErrConflict, revision, req.Revision)
	}
	return nil
}

// full returns the full name of a resource of this deployment.
func (s *Deleter) full(name string) schema.FullName {
	return schema.FullName{Deployment: s.Self, Name: name}
}
