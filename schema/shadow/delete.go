package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema"
)

// DeleteRequest asks for one resource to be deleted; UID and Revision are for who wants only that one.
type DeleteRequest struct {
	Name     string
	UID      uuid.UUID // zero: any
	Revision Revision  // 0: any
	// Actor is who asks for it, such as user/alice: kept with all that is removed.
	Actor string
	// RequestID is what the caller calls the request, if anything: kept likewise. The same id and request get the same answer.
	RequestID uuid.UUID
}

// DeleteResult tells whether the resource is gone, or DELETING because others have to act first.
type DeleteResult struct {
	Removed bool
	// Unasked are deployments that could not be asked whether something there blocks what will cascade.
	Unasked []Unasked
	// Resource as it was marked; nil when removed.
	Resource *Resource
}

// maxClosing is how long a delete keeps new references away from its targets at most.
const maxClosing = 9 * time.Minute

const (
	lockRootSQL = `
SELECT id, uid, kind_id, name, state, shard, revision, block_deletion, hidden FROM dbcontroller.shadow
WHERE kind_id = $1 AND name = $2 FOR UPDATE`

	// Without those of the keys that are excused.
	selectBlockadesSQL = `
SELECT b.target_id, t.uid, b.attempt, b.holder_uid, b.field_id, b.deployment_id, b.holder_name, t.name, b.behaviour,
       b.expires_at IS NOT NULL, COALESCE(` + expiredSQL + `@ttl::interval), true)
FROM dbcontroller.blockade b JOIN dbcontroller.shadow t ON t.id = b.target_id
LEFT JOIN unnest(@attempts::uuid[], @holders::uuid[], @fields::int[]) AS e (attempt, holder_uid, field_id)
    ON e.attempt = b.attempt AND e.holder_uid = b.holder_uid AND e.field_id = b.field_id
WHERE b.target_id = ANY (@targets) AND e.attempt IS NULL ORDER BY b.target_id, b.holder_uid, b.field_id, b.attempt LIMIT @at_most`

	// closesSQL is of a row c of closing: it counts, and is not further ahead than it can be, since the clock went back.
	closesSQL      = `c.until > now() AND c.until <= ` + closesUntilSQL
	closesUntilSQL = `now() + interval '10 min'`

	// A row for each delete, so that none ends another's.
	closeTargetsSQL = `
INSERT INTO dbcontroller.closing (target_id, delete_id, until) SELECT id, $2, now() + $3 FROM unnest($1::bigint[]) AS id`

	openTargetsSQL = `DELETE FROM dbcontroller.closing WHERE target_id = ANY ($1) AND delete_id = $2`

	selectRootSQL = `SELECT id FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2`

	// So that a delete which waits behind many who share the lock can keep further ones away.
	shortWaitSQL = `SET LOCAL lock_timeout = '300ms'`
)

// Delete deletes a resource and what cascades with it. It is refused, changing nothing, with *BlockedError that names
// the holders in the way. Blockades that stand in the way are first asked about: what was let go meanwhile, or was
// never committed, does not block. What is undecided is waited for until the deadline (default
// Config.DeleteTimeout), as a lock would be; meanwhile the resource takes no new references, so that a busy one can be
// deleted at all. What the deletion will take along in other deployments is walked over first, so that a blocker there
// refuses it too. When an undecided holder's deployment does not answer: *UnavailableError. With a request id, what came of it is
// kept as with SaveRequested.
func (s *Store) Delete(ctx context.Context, req DeleteRequest) (DeleteResult, error) {
	if req.RequestID == uuid.Nil {
		return s.delete(ctx, nil, req)
	}
	content := struct {
		Delete   string
		UID      uuid.UUID
		Revision Revision
	}{req.Name, req.UID, req.Revision}
	o, err := s.requested(ctx, req.RequestID, content, func(id *request) (outcome, error) {
		result, err := s.delete(ctx, id, req)
		return outcome{Deleted: &result}, err
	})
	if err != nil || o.Deleted == nil {
		return DeleteResult{}, err
	}
	return *o.Deleted, nil
}

func (s *Store) delete(ctx context.Context, id *request, req DeleteRequest) (DeleteResult, error) {
	kindID, err := s.kindOfName(ctx, req.Name)
	if err != nil {
		return DeleteResult{}, err
	}
	ctx, cancel := withDefaultTimeout(ctx, s.cfg.DeleteTimeout)
	defer cancel()
	d := &deletion{store: s, req: req, request: id, kindID: kindID, closed: &closing{id: uuid.New()}, cause: &schema.Cause{
		ID: uuid.Must(uuid.NewV7()), Root: s.full(req.Name).String(), Actor: req.Actor, RequestID: req.RequestID, At: time.Now(),
	}}
	defer s.reopen(ctx, d.closed)
	return d.run(ctx)
}

// deletion is one delete under way. It tries (one transaction); what stands in the way is looked at without one; and it tries
// again, until it is carried out, refused, or its time is over.
type deletion struct {
	store   *Store
	req     DeleteRequest
	request *request // nil without a request id
	kindID  int32
	cause   *schema.Cause
	closed  *closing
	// ahead is the look-ahead that the next try goes by; nil when there has to be another one.
	ahead *lookAhead
	// undecided are the blockades that were undecided when the deletion was looked ahead last.
	undecided []blockade
	obstacles int // tries that met something which a look-ahead had not found, or has settled
}

func (d *deletion) run(ctx context.Context) (DeleteResult, error) {
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		result, found, err := d.try(ctx)
		switch {
		case hasCode(err, codeLockNotAvailable) && ctx.Err() == nil:
			err = d.store.closeRoot(ctx, d.closed, d.kindID, d.req.Name)
		case err == nil && found == nil:
			return result, nil
		case err == nil:
			err = d.giveWay(ctx, found, wait)
		default:
			err = d.whyNot(err)
		}
		if err != nil {
			return result, err
		}
	}
}

// giveWay does what a try that met an obstacle has to wait for: it looks ahead, keeps new references away where they come as
// fast as old ones are settled, and waits for attempts that are undecided.
func (d *deletion) giveWay(ctx context.Context, found *obstacle, wait time.Duration) error {
	late := d.ahead != nil // what is found came after the look-ahead
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
		d.ahead = nil // what was settled may be followed elsewhere
	case waits:
		d.ahead = nil // whom it excused may have been changed meanwhile
		select {
		case <-ctx.Done():
			return d.store.undecided(d.req.Name, d.undecided)
		case <-time.After(wait):
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

// whyNot names who is undecided instead of an error that comes of having waited for them.
func (d *deletion) whyNot(err error) error {
	if len(d.undecided) > 0 && gaveUp(err) {
		return d.store.undecided(d.req.Name, d.undecided)
	}
	return err
}

// gaveUp tells whether patience ended in the middle of a try, which then has changed nothing: also when the last question had no
// time any more.
func gaveUp(err error) bool {
	var unavailable *UnavailableError
	if errors.As(err, &unavailable) {
		another := func(u Unasked) bool { return u.Why != TimedOut }
		return len(unavailable.Unasked) > 0 && !slices.ContainsFunc(unavailable.Unasked, another)
	}
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnknown)
}

// obstacle is why a delete has to be looked ahead: what goes here, and who blocks it here now. Only those can be excused.
type obstacle struct {
	// targets are those of the blockades.
	targets   []int64
	blockades []blockade
	members   []PlanMember
	later     []PlanTarget // members with holders here that act later
	// blocks are the local references that block members, and blockers the same for messages.
	blocks   []outsider
	blockers []PlanBlocker
}

// tooMany reports whether there may be more than was read: then nobody is excused.
func (o *obstacle) tooMany() bool {
	return len(o.blockades) >= PlanLimit || len(o.blocks) >= maxBlockers
}

type blockade struct {
	targetID   int64
	question   Question
	target     schema.FullName
	holder     schema.FullName
	deployment schema.DeploymentID
	behaviour  schema.Behaviour
	tentative  bool
	fieldID    int32
	depID      int32
}

// errObstacle rolls a try back.
var errObstacle = errors.New("obstacle")

// try is the whole delete in one transaction: first the lock, then the checks, then the mark. It changes nothing when it
// returns an obstacle.
func (d *deletion) try(ctx context.Context) (result DeleteResult, found *obstacle, err error) {
	s := d.store
	err = s.inTx(ctx, allFeeds, func(tx pgx.Tx) error {
		result, found = DeleteResult{Unasked: d.ahead.notAsked()}, nil // of an earlier try
		if _, err := tx.Exec(ctx, shortWaitSQL); err != nil {
			return err
		}
		root, err := s.lockRoot(ctx, tx, d.kindID, d.req)
		if err != nil {
			return err
		}
		if root.state == Active {
			if result.Removed, found, err = d.carryOut(ctx, tx, root); err != nil {
				return err
			}
			if found != nil {
				return errObstacle
			}
		}
		if !result.Removed {
			result.Resource, err = s.get(ctx, tx, d.kindID, d.req.Name)
			if errors.Is(err, ErrNotFound) { // its kind hides it from now on
				result.Removed, err = true, nil
			}
		}
		if err != nil {
			return err
		}
		return d.request.record(ctx, tx, outcome{Deleted: &result})
	})
	if errors.Is(err, errObstacle) {
		err = nil
	}
	if err == nil && found == nil {
		crash.At("crash-delete-committed")
	}
	return result, found, err
}

// carryOut removes or marks the root, which is locked, with what goes with it; or returns what has to be looked at before.
func (d *deletion) carryOut(ctx context.Context, tx pgx.Tx, root *member) (removed bool, found *obstacle, err error) {
	s := d.store
	d.cause.RootUID = root.uid
	root.why = reason{how: Requested, cause: d.cause}
	decided, err := s.decideOn(ctx, tx, []*member{root})
	if err != nil {
		return false, nil, err
	}
	if protected := decided.verdict.protected; len(protected) > 0 {
		return false, nil, &ProtectedError{Name: d.req.Name, By: s.fullNames(protected)}
	}
	enough, err := s.lookAheadComplete(ctx, tx, decided, d.ahead)
	if err != nil {
		return false, nil, err
	}
	if !enough {
		found, err = s.beforeLookAhead(ctx, tx, decided)
		return false, found, err
	}
	return slices.Contains(decided.verdict.remove, root.id), nil, s.carryOut(ctx, tx, decided)
}

func (s *Store) lockRoot(ctx context.Context, tx pgx.Tx, kindID int32, req DeleteRequest) (*member, error) {
	root := &member{}
	var revision Revision
	var hidden bool
	err := tx.QueryRow(ctx, lockRootSQL, kindID, req.Name).Scan(&root.id, &root.uid, &root.kind, &root.name, &root.state, &root.shard, &revision, &root.protected, &hidden)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || hidden:
		return nil, fmt.Errorf("%s: %w", req.Name, ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", req.Name, err)
	case req.UID != uuid.Nil && req.UID != root.uid:
		return nil, fmt.Errorf("%s: %w with uid %s", req.Name, ErrNotFound, req.UID)
	case req.Revision != 0 && req.Revision != revision && root.state == Active:
		return nil, fmt.Errorf("%s: %w: it is at revision %d, not %d", req.Name, ErrConflict, revision, req.Revision)
	}
	return root, nil
}

func (s *Store) fullNames(members []*member) []schema.FullName {
	names := make([]schema.FullName, len(members))
	for i, m := range members {
		names[i] = s.full(m.name)
	}
	return names
}

// full is the full name of a resource of this deployment.
func (s *Store) full(name string) schema.FullName {
	return schema.FullName{Deployment: s.self, Name: name}
}

// lookedFarEnough reports whether nothing has to be asked before the delete is carried out: nothing of it is elsewhere and
// nobody blocks it, or the look-ahead has excused all who do.
func (s *Store) lookAheadComplete(ctx context.Context, tx pgx.Tx, d decision, ahead *lookAhead) (bool, error) {
	b, v := d.bonds, d.verdict
	if ahead == nil {
		return len(b.entered)+len(b.owns)+len(v.notify)+len(v.blocks)+len(v.blockaded) == 0, nil
	}
	if slices.ContainsFunc(v.blocks, func(o outsider) bool { return !ahead.blocks[o.edge] }) {
		return false, nil
	}
	if len(v.blockaded) == 0 {
		return true, nil
	}
	left, err := s.obstacle(ctx, tx, v.blockaded, 1, ahead)
	return err == nil && len(left.blockades) == 0, err
}

func (s *Store) obstacle(ctx context.Context, tx pgx.Tx, targets []int64, limit int, ahead *lookAhead) (*obstacle, error) {
	o := &obstacle{targets: targets}
	var k keyColumns
	if ahead != nil {
		k = ahead.keys
	}
	rows, err := tx.Query(ctx, selectBlockadesSQL, named{
		"targets": targets, "at_most": limit, "attempts": k.attempts, "holders": k.holders, "fields": k.fields, "ttl": s.cfg.TentativeTTL,
	})
	if err != nil {
		return nil, fmt.Errorf("read blockades: %w", err)
	}
	o.blockades, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (b blockade, err error) {
		k := &b.question.Key
		err = row.Scan(&b.targetID, &k.TargetUID, &k.Attempt, &k.HolderUID, &b.fieldID, &b.depID, &b.holder.Name, &b.target.Name, &b.behaviour, &b.tentative, &b.question.Expired)
		return b, err
	})
	if err != nil {
		return nil, fmt.Errorf("read blockades: %w", err)
	}
	for i := range o.blockades {
		b := &o.blockades[i]
		if b.deployment, err = s.names.deploymentOf(ctx, tx, b.depID); err != nil {
			return nil, err
		}
		if b.question.Key.Path, err = s.names.fieldOf(ctx, tx, b.fieldID); err != nil {
			return nil, err
		}
		b.holder.Deployment, b.target.Deployment = b.deployment, s.self
	}
	return o, nil
}

// beforeLookAhead reads what a deletion takes here, which other deployments have to act because of it, and who blocks
// it now: only those can be excused later.
func (s *Store) beforeLookAhead(ctx context.Context, tx pgx.Tx, d decision) (*obstacle, error) {
	c, v := d.closure, d.verdict
	o, err := s.obstacle(ctx, tx, v.blockaded, PlanLimit, nil)
	if err != nil {
		return nil, err
	}
	p := &planning{store: s, plan: &Plan{}}
	if err := p.members(ctx, tx, c.ids(), nil); err != nil {
		return nil, err
	}
	o.members, o.blocks = p.plan.Members, v.blocks
	for _, id := range v.notify {
		o.later = append(o.later, PlanTarget{s.self, c.members[id].uid})
	}
	for _, b := range v.blocks {
		path, err := s.names.fieldOf(ctx, tx, b.fieldID)
		if err != nil {
			return nil, err
		}
		t := c.members[b.targetID]
		o.blockers = append(o.blockers, PlanBlocker{
			Holder: Holder{Name: s.full(b.name), Path: path, Target: s.full(t.name)}, UID: b.uid, TargetUID: t.uid,
		})
	}
	return o, nil
}

// asked is what came of asking about blockades.
type asked struct {
	// held are blocking ones that hold.
	held []blockade
	// undecided may still commit.
	undecided []blockade
	// unanswered are those of deployments that did not answer. They count, and nobody can say whether they hold.
	unanswered []blockade
	moved      bool // something was settled
	unasked    []Unasked
}

// blockers are who blocks, or may.
func (a *asked) blockers() []PlanBlocker {
	var out []PlanBlocker
	for _, b := range a.held {
		out = append(out, b.blocker(false, false))
	}
	for _, b := range a.undecided {
		out = append(out, b.blocker(true, false))
	}
	for _, b := range a.unanswered {
		out = append(out, b.blocker(b.tentative, true))
	}
	return out
}

func (b blockade) blocker(undecided, unreachable bool) PlanBlocker {
	return PlanBlocker{
		Holder: b.reference(), UID: b.question.Key.HolderUID, TargetUID: b.question.Key.TargetUID,
		Undecided: undecided, Unreachable: unreachable,
	}
}

func (b blockade) reference() Holder {
	return Holder{Name: b.holder, Path: b.question.Key.Path, Target: b.target}
}

// askAll asks every holders' deployment at the same time. Who does not answer takes half of the time that is left.
func (s *Store) askAll(ctx context.Context, blockades []blockade) *asked {
	by := map[schema.DeploymentID][]blockade{}
	for _, b := range blockades {
		by[b.deployment] = append(by[b.deployment], b)
	}
	a := &asked{}
	var wg sync.WaitGroup
	var mu sync.Mutex // of a
	for deployment, blockades := range by {
		wg.Go(func() {
			began := time.Now()
			ctx, cancel := inPart(ctx, 1, 2)
			defer cancel()
			answers, err := s.ask(ctx, deployment, blockades)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				a.unasked = append(a.unasked, notAsked(ctx, deployment, began, err))
			}
			for i, b := range blockades {
				switch {
				case err != nil:
					a.unanswered = append(a.unanswered, b)
				case answers.Verdicts[i] == Undecided:
					a.undecided = append(a.undecided, b)
				case answers.Verdicts[i] == Held && b.behaviour == schema.Block:
					a.held = append(a.held, b)
				default:
					a.moved = true
				}
			}
		})
	}
	wg.Wait()
	return a
}

func (s *Store) ask(ctx context.Context, holder schema.DeploymentID, blockades []blockade) (*Answers, error) {
	questions := make([]Question, len(blockades))
	for i, b := range blockades {
		questions[i] = b.question
	}
	answers, err := s.peers.Resolve(ctx, holder, questions)
	if err == nil && len(answers.Verdicts) != len(questions) {
		err = errors.New("it answered another number of questions than it was asked")
	}
	if err != nil {
		return nil, err
	}
	return answers, s.Settle(ctx, holder, questions, answers)
}

// undecided is the error of a delete whose patience has ended.
func (s *Store) undecided(name string, by []blockade) error {
	e := &BlockedError{Name: name, Deployment: s.self, Undecided: true}
	for _, b := range by {
		e.add(b.reference())
	}
	return e
}

// closing is what one delete keeps new references away from.
type closing struct {
	id      uuid.UUID
	targets []int64
}

// keepAway closes targets to new references, once each, until a little after the deadline.
func (s *Store) closeTargets(ctx context.Context, closed *closing, targets []int64) error {
	var more []int64
	for _, id := range targets {
		if !slices.Contains(closed.targets, id) {
			more = append(more, id)
		}
	}
	if len(more) == 0 {
		return nil
	}
	// While nothing is deleted anyway, what was lost has to be established again.
	if err := s.inTx(ctx, noFeed, func(tx pgx.Tx) error { return s.checkRecovered(ctx, tx) }); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if _, err := s.pool.Exec(ctx, closeTargetsSQL, more, closed.id, min(time.Until(deadline)+time.Second, maxClosing)); err != nil {
		return fmt.Errorf("keep new references away: %w", err)
	}
	closed.targets = append(closed.targets, more...)
	return nil
}

func (s *Store) closeRoot(ctx context.Context, closed *closing, kindID int32, name string) error {
	var id int64
	err := s.pool.QueryRow(ctx, selectRootSQL, kindID, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep new references away: %w", err)
	}
	return s.closeTargets(ctx, closed, []int64{id})
}

func (s *Store) reopen(ctx context.Context, closed *closing) {
	if len(closed.targets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = s.pool.Exec(ctx, openTargetsSQL, closed.targets, closed.id) // ends by itself as well
}
