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

// DeleteRequest names the resource to delete. UID and Revision are preconditions.
type DeleteRequest struct {
	Name     string
	UID      uuid.UUID // zero: any
	Revision Revision  // 0: any
	// Actor is the caller's identity, such as user/alice. It is stored with the removal of every member.
	Actor string
	// RequestID, unless zero, is the caller's id of the request, stored likewise. The same id and request get the same
	// answer.
	RequestID uuid.UUID
}

// DeleteResult reports whether the resource was removed, or is DELETING because other deployments have to act first.
type DeleteResult struct {
	Removed bool
	// Unasked are the deployments that could not be asked for blockers of the cascade.
	Unasked []Unasked
	// Resource is the marked resource; nil when removed.
	Resource *Resource
}

// maxClosing is the longest time for which a delete closes its targets to new references.
const maxClosing = 9 * time.Minute

const (
	lockRootSQL = `
SELECT id, uid, kind_id, name, state, shard, revision, block_deletion, hidden FROM dbcontroller.shadow
WHERE kind_id = $1 AND name = $2 FOR UPDATE`

	// The blockades of the targets, except the excused ones ($3 to $5).
	selectBlockadesSQL = `
SELECT b.target_id, t.uid, b.attempt, b.holder_uid, b.field_id, b.deployment_id, b.holder_name, t.name, b.behaviour,
       b.expires_at IS NOT NULL, COALESCE(` + expiredSQL + `@ttl::interval), true)
FROM dbcontroller.blockade b JOIN dbcontroller.shadow t ON t.id = b.target_id
LEFT JOIN unnest(@attempts::uuid[], @holders::uuid[], @fields::int[]) AS e (attempt, holder_uid, field_id)
    ON e.attempt = b.attempt AND e.holder_uid = b.holder_uid AND e.field_id = b.field_id
WHERE b.target_id = ANY (@targets) AND e.attempt IS NULL ORDER BY b.target_id, b.holder_uid, b.field_id, b.attempt LIMIT @at_most`

	// closesSQL is a condition on a row c of closing: it has not ended, and its end is not impossibly late because the
	// clock went back.
	closesSQL      = `c.until > now() AND c.until <= ` + closesUntilSQL
	closesUntilSQL = `now() + interval '10 min'`

	// One row for each delete, so that none ends the closing of another.
	closeTargetsSQL = `
INSERT INTO dbcontroller.closing (target_id, delete_id, until) SELECT id, $2, now() + $3 FROM unnest($1::bigint[]) AS id`

	openTargetsSQL = `DELETE FROM dbcontroller.closing WHERE target_id = ANY ($1) AND delete_id = $2`

	selectRootSQL = `SELECT id FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2`

	// A delete that waits behind many shared locks gives up soon, to close its target to further ones.
	shortWaitSQL = `SET LOCAL lock_timeout = '300ms'`
)

// Delete deletes a resource with everything that cascades. Before it is refused, the blockades in its way are resolved:
// released ones, and those of aborted attempts, do not block. It waits for undecided attempts until the deadline (default
// Config.DeleteTimeout), as for a lock; meanwhile the resource takes no new references, so that a busy one can be
// deleted. A look-ahead over other deployments finds blockers of the cascade there. With a request id, the outcome is
// stored as by SaveRequested. When it fails with one of these errors, nothing has changed: *BlockedError, which names
// the blockers; *ProtectedError (block_deletion); *UnavailableError, when a blocker's deployment does not answer;
// ErrNotFound; ErrConflict.
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

// gaveUp reports whether the deadline ended a try, which then has changed nothing: in a statement, or in the last
// question to another deployment.
func gaveUp(err error) bool {
	var unavailable *UnavailableError
	if errors.As(err, &unavailable) {
		another := func(u Unasked) bool { return u.Why != TimedOut }
		return len(unavailable.Unasked) > 0 && !slices.ContainsFunc(unavailable.Unasked, another)
	}
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnknown)
}

// obstacle is the reason for a look-ahead: the members here and their present blockers here. Only these can be excused.
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

// tooMany reports whether more blockers may exist than were read: then none is excused.
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

// full returns the full name of a resource of this deployment.
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

// asked is the result of resolving blockades.
type asked struct {
	// held are BLOCK blockades of existing references.
	held []blockade
	// undecided are blockades of attempts that may still commit.
	undecided []blockade
	// unanswered are the blockades of deployments that did not answer. They block, since they may be held.
	unanswered []blockade
	moved      bool // at least one blockade was settled
	unasked    []Unasked
}

// blockers returns the blockades that block, or may.
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

// askAll resolves blockades at all holders' deployments concurrently. Each call has half of the remaining time.
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
		err = fmt.Errorf("its answer has %d verdicts for %d questions", len(answers.Verdicts), len(questions))
	}
	if err != nil {
		return nil, err
	}
	return answers, s.Settle(ctx, holder, questions, answers)
}

// undecided returns the error of a delete that waited for undecided attempts until its deadline.
func (s *Store) undecided(name string, by []blockade) error {
	e := &BlockedError{Name: name, Deployment: s.self, Undecided: true}
	for _, b := range by {
		e.add(b.reference())
	}
	return e
}

// closing holds the targets that one delete has closed to new references.
type closing struct {
	id      uuid.UUID
	targets []int64
}

// closeTargets closes targets to new references until one second after the deadline. A target that is closed already
// keeps its end.
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
	// Not during recovery: nothing can be deleted then, and lost references have to be established again.
	if err := s.inTx(ctx, noFeed, func(tx pgx.Tx) error { return s.checkRecovered(ctx, tx) }); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if _, err := s.pool.Exec(ctx, closeTargetsSQL, more, closed.id, min(time.Until(deadline)+time.Second, maxClosing)); err != nil {
		return fmt.Errorf("close targets to new references: %w", err)
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
		return fmt.Errorf("close targets to new references: %w", err)
	}
	return s.closeTargets(ctx, closed, []int64{id})
}

func (s *Store) reopen(ctx context.Context, closed *closing) {
	if len(closed.targets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = s.pool.Exec(ctx, openTargetsSQL, closed.targets, closed.id) // on an error the closing ends by its time
}
