package deletion

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
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// DeleteRequest names the resource to delete. UID and Revision are preconditions.
type DeleteRequest struct {
	Name     string
	UID      uuid.UUID     // zero: any
	Revision peer.Revision // 0: any
	// Actor is the caller's identity, such as user/alice. It is stored with the removal of every member.
	Actor string
	// RequestID, unless zero, is the caller's id of the request, stored likewise. The same id and request get the same
	// answer.
	RequestID uuid.UUID
}

const (
	lockRootSQL = `
SELECT id, uid, kind_id, name, state, shard, revision, block_deletion, hidden FROM dbcontroller.shadow
WHERE kind_id = $1 AND name = $2 FOR UPDATE`

	// The blockades of the targets, except the excused ones ($3 to $5).
	selectBlockadesSQL = `
SELECT b.target_id, t.uid, b.attempt, b.holder_uid, b.field_id, b.deployment_id, b.holder_name, t.name, b.behaviour,
       b.expires_at IS NOT NULL, COALESCE(` + db.ExpiredSQL + `@ttl::interval), true)
FROM dbcontroller.blockade b JOIN dbcontroller.shadow t ON t.id = b.target_id
LEFT JOIN unnest(@attempts::uuid[], @holders::uuid[], @fields::int[]) AS e (attempt, holder_uid, field_id)
    ON e.attempt = b.attempt AND e.holder_uid = b.holder_uid AND e.field_id = b.field_id
WHERE b.target_id = ANY (@targets) AND e.attempt IS NULL ORDER BY b.target_id, b.holder_uid, b.field_id, b.attempt LIMIT @at_most`

	// One row for each delete, so that none ends the closing of another.
	closeTargetsSQL = `
INSERT INTO dbcontroller.closing (target_id, delete_id, until) SELECT id, $2, now() + $3 FROM unnest($1::bigint[]) AS id`

	openTargetsSQL = `DELETE FROM dbcontroller.closing WHERE target_id = ANY ($1) AND delete_id = $2`

	selectRootSQL = `SELECT id FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2`

	// A delete that waits behind many shared locks gives up soon, and closes its target to new references.
	shortWaitSQL = `SET LOCAL lock_timeout = '300ms'`
)

// Delete deletes a resource with everything that cascades. Before it is refused, the blockades in its way are resolved:
// released ones, and those of aborted attempts, do not block. It waits for undecided attempts until the deadline (default
// Config.Times.DeleteTimeout), as for a lock; meanwhile the resource takes no new references, so that a busy one can be
// deleted. A look-ahead over other deployments finds blockers of the cascade there. With a request id, the outcome is
// stored as by SaveRequested. When it fails with one of these errors, nothing has changed: *BlockedError, which names
// the blockers; *ProtectedError (block_deletion); *UnavailableError, when a blocker's deployment does not answer;
// ErrNotFound; ErrConflict.
func (s *Deleter) Delete(ctx context.Context, req DeleteRequest) (peer.DeleteResult, error) {
	if req.RequestID == uuid.Nil {
		return s.delete(ctx, nil, req)
	}
	content := struct {
		Delete   string
		UID      uuid.UUID
		Revision peer.Revision
	}{req.Name, req.UID, req.Revision}
	o, err := write.Requested(ctx, s.write, req.RequestID, content, func(id *write.Request) (write.Outcome, error) {
		result, err := s.delete(ctx, id, req)
		return write.Outcome{Deleted: &result}, err
	})
	if err != nil || o.Deleted == nil {
		return peer.DeleteResult{}, err
	}
	return *o.Deleted, nil
}

func (s *Deleter) delete(ctx context.Context, id *write.Request, req DeleteRequest) (peer.DeleteResult, error) {
	kindID, err := s.KindOfName(ctx, req.Name)
	if err != nil {
		return peer.DeleteResult{}, err
	}
	ctx, cancel := db.WithDefaultTimeout(ctx, s.Cfg.Times.DeleteTimeout)
	defer cancel()
	d := &deletion{store: s, req: req, request: id, kindID: kindID, pauses: retry.Backoff{First: 2 * time.Millisecond, Max: 100 * time.Millisecond}, closed: &closing{id: uuid.New()}, cause: &schema.Cause{
		ID: uuid.Must(uuid.NewV7()), Root: s.full(req.Name).String(), Actor: req.Actor, RequestID: req.RequestID, At: time.Now(),
	}}
	defer s.reopen(ctx, d.closed)
	return d.run(ctx)
}

// deletion is one delete in progress. It tries in one transaction, resolves obstacles outside of it, and tries again, until it is
// carried out, refused, or out of time.
type deletion struct {
	store   *Deleter
	req     DeleteRequest
	request *write.Request // nil without a request id
	kindID  int32
	cause   *schema.Cause
	closed  *closing
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
	if len(d.undecided) > 0 && db.GaveUp(err) {
		return d.store.undecided(d.req.Name, d.undecided)
	}
	return err
}

// obstacle is the reason for a look-ahead: the members here and their present blockers here. Only these can be excused.
type obstacle struct {
	// targets are those of the blockades.
	targets   []int64
	blockades []blockade
	members   []peer.PlanMember
	later     []peer.PlanTarget // members with holders here that act later
	// blocks are the local references that block members, and blockers the same for messages.
	blocks   []cascade.Outsider
	blockers []peer.PlanBlocker
}

// tooMany reports whether more blockers may exist than were read: then none is excused.
func (o *obstacle) tooMany() bool {
	return len(o.blockades) >= peer.PlanLimit || len(o.blocks) >= cascade.MaxBlockers
}

type blockade struct {
	targetID   int64
	question   peer.Question
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
func (d *deletion) try(ctx context.Context) (result peer.DeleteResult, found *obstacle, err error) {
	s := d.store
	err = s.InTx(ctx, db.AllFeeds, func(tx pgx.Tx) error {
		result, found = peer.DeleteResult{Unasked: d.ahead.notAsked()}, nil // forget an earlier try
		if _, err := tx.Exec(ctx, shortWaitSQL); err != nil {
			return err
		}
		root, err := s.lockRoot(ctx, tx, d.kindID, d.req)
		if err != nil {
			return err
		}
		if root.State == peer.Active {
			if result.Removed, found, err = d.carryOut(ctx, tx, root); err != nil {
				return err
			}
			if found != nil {
				return errObstacle
			}
		}
		if !result.Removed {
			result.Resource, err = read.LookUp(ctx, s.DB, tx, d.kindID, d.req.Name)
			if errors.Is(err, peer.ErrNotFound) { // its kind hides it from now on
				result.Removed, err = true, nil
			}
		}
		if err != nil {
			return err
		}
		return d.request.Record(ctx, tx, write.Outcome{Deleted: &result})
	})
	if errors.Is(err, errObstacle) {
		err = nil
	}
	if err == nil && found == nil {
		crash.At("crash-delete-committed")
	}
	return result, found, err
}

// carryOut removes or marks the root, which is locked, with the other members; or returns the obstacle that has to be resolved
// first.
func (d *deletion) carryOut(ctx context.Context, tx pgx.Tx, root *cascade.Member) (removed bool, found *obstacle, err error) {
	s := d.store
	d.cause.RootUID = root.UID
	root.Why = cascade.Reason{How: peer.Requested, Cause: d.cause}
	decided, err := s.cascade.DecideOn(ctx, tx, []*cascade.Member{root})
	if err != nil {
		return false, nil, err
	}
	if protected := decided.Verdict.Protected; len(protected) > 0 {
		return false, nil, &peer.ProtectedError{Name: d.req.Name, By: s.fullNames(protected)}
	}
	enough, err := s.lookAheadComplete(ctx, tx, decided, d.ahead)
	if err != nil {
		return false, nil, err
	}
	if !enough {
		found, err = s.beforeLookAhead(ctx, tx, decided)
		return false, found, err
	}
	return slices.Contains(decided.Verdict.Remove, root.ID), nil, s.cascade.CarryOut(ctx, tx, decided)
}

func (s *Deleter) lockRoot(ctx context.Context, tx pgx.Tx, kindID int32, req DeleteRequest) (*cascade.Member, error) {
	root := &cascade.Member{}
	var revision peer.Revision
	var hidden bool
	err := tx.QueryRow(ctx, lockRootSQL, kindID, req.Name).Scan(&root.ID, &root.UID, &root.Kind, &root.Name, &root.State, &root.Shard, &revision, &root.Protected, &hidden)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || hidden:
		return nil, fmt.Errorf("%s: %w", req.Name, peer.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", req.Name, err)
	case req.UID != uuid.Nil && req.UID != root.UID:
		return nil, fmt.Errorf("%s: %w with uid %s", req.Name, peer.ErrNotFound, req.UID)
	case req.Revision != 0 && req.Revision != revision && root.State == peer.Active:
		return nil, fmt.Errorf("%s: %w: it is at revision %d, not %d", req.Name, peer.ErrConflict, revision, req.Revision)
	}
	return root, nil
}

func (s *Deleter) fullNames(members []*cascade.Member) []schema.FullName {
	names := make([]schema.FullName, len(members))
	for i, m := range members {
		names[i] = s.full(m.Name)
	}
	return names
}

// full returns the full name of a resource of this deployment.
func (s *Deleter) full(name string) schema.FullName {
	return schema.FullName{Deployment: s.Self, Name: name}
}

// lookAheadComplete reports whether the delete can be carried out without further questions: no other deployment is concerned and
// no holder blocks it, or the look-ahead has excused every blocker.
func (s *Deleter) lookAheadComplete(ctx context.Context, tx pgx.Tx, d cascade.Decision, ahead *lookAhead) (bool, error) {
	b, v := d.Bonds, d.Verdict
	if ahead == nil {
		return len(b.Entered)+len(b.Owns)+len(v.Notify)+len(v.Blocks)+len(v.Blockaded) == 0, nil
	}
	if slices.ContainsFunc(v.Blocks, func(o cascade.Outsider) bool { return !ahead.blocks[o.Edge] }) {
		return false, nil
	}
	if len(v.Blockaded) == 0 {
		return true, nil
	}
	left, err := s.obstacle(ctx, tx, v.Blockaded, 1, ahead)
	return err == nil && len(left.blockades) == 0, err
}

func (s *Deleter) obstacle(ctx context.Context, tx pgx.Tx, targets []int64, limit int, ahead *lookAhead) (*obstacle, error) {
	o := &obstacle{targets: targets}
	var k db.KeyColumns
	if ahead != nil {
		k = ahead.keys
	}
	rows, err := tx.Query(ctx, selectBlockadesSQL, db.Named{
		"targets": targets, "at_most": limit, "attempts": k.Attempts, "holders": k.Holders, "fields": k.Fields, "ttl": s.Cfg.Times.TentativeTTL,
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
		if b.deployment, err = s.Names.DeploymentOf(ctx, tx, b.depID); err != nil {
			return nil, err
		}
		if b.question.Key.Path, err = s.Names.FieldOf(ctx, tx, b.fieldID); err != nil {
			return nil, err
		}
		b.holder.Deployment, b.target.Deployment = b.deployment, s.Self
	}
	return o, nil
}

// beforeLookAhead reads the members here, the deployments that have to act because of them, and the present blockers here: later
// blockers are never excused.
func (s *Deleter) beforeLookAhead(ctx context.Context, tx pgx.Tx, d cascade.Decision) (*obstacle, error) {
	c, v := d.Closure, d.Verdict
	o, err := s.obstacle(ctx, tx, v.Blockaded, peer.PlanLimit, nil)
	if err != nil {
		return nil, err
	}
	p := &planning{store: s, plan: &peer.Plan{}}
	if err := p.members(ctx, tx, c.IDs(), nil); err != nil {
		return nil, err
	}
	o.members, o.blocks = p.plan.Members, v.Blocks
	for _, id := range v.Notify {
		o.later = append(o.later, peer.PlanTarget{Deployment: s.Self, UID: c.Members[id].UID})
	}
	for _, b := range v.Blocks {
		path, err := s.Names.FieldOf(ctx, tx, b.FieldID)
		if err != nil {
			return nil, err
		}
		t := c.Members[b.TargetID]
		o.blockers = append(o.blockers, peer.PlanBlocker{
			Holder: peer.Holder{Name: s.full(b.Name), Path: path, Target: s.full(t.Name)}, UID: b.UID, TargetUID: t.UID,
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
	unasked    []peer.Unasked
}

// blockers returns the blockades that block, or may.
func (a *asked) blockers() []peer.PlanBlocker {
	var out []peer.PlanBlocker
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

func (b blockade) blocker(undecided, unreachable bool) peer.PlanBlocker {
	return peer.PlanBlocker{
		Holder: b.reference(), UID: b.question.Key.HolderUID, TargetUID: b.question.Key.TargetUID,
		Undecided: undecided, Unreachable: unreachable,
	}
}

func (b blockade) reference() peer.Holder {
	return peer.Holder{Name: b.holder, Path: b.question.Key.Path, Target: b.target}
}

// askAll resolves blockades at all holders' deployments concurrently. Each call has half of the remaining time.
func (s *Deleter) askAll(ctx context.Context, blockades []blockade) *asked {
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
			ctx, cancel := peer.InPart(ctx, 1, 2)
			defer cancel()
			answers, err := s.ask(ctx, deployment, blockades)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				a.unasked = append(a.unasked, peer.NotAsked(ctx, deployment, began, err))
			}
			for i, b := range blockades {
				switch {
				case err != nil:
					a.unanswered = append(a.unanswered, b)
				case answers.Verdicts[i] == peer.Undecided:
					a.undecided = append(a.undecided, b)
				case answers.Verdicts[i] == peer.Held && b.behaviour == schema.Block:
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

func (s *Deleter) ask(ctx context.Context, holder schema.DeploymentID, blockades []blockade) (*peer.Answers, error) {
	questions := make([]peer.Question, len(blockades))
	for i, b := range blockades {
		questions[i] = b.question
	}
	answers, err := s.Peers.Resolve(ctx, holder, questions)
	if err == nil && len(answers.Verdicts) != len(questions) {
		err = fmt.Errorf("its answer has %d verdicts for %d questions", len(answers.Verdicts), len(questions))
	}
	if err != nil {
		return nil, err
	}
	return answers, s.target.Settle(ctx, holder, questions, answers)
}

// undecided returns the error of a delete that waited for undecided attempts until its deadline.
func (s *Deleter) undecided(name string, by []blockade) error {
	e := &peer.BlockedError{Name: name, Deployment: s.Self, Undecided: true}
	for _, b := range by {
		e.Add(b.reference())
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
	if err := s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error { return s.gate.CheckRecovered(ctx, tx) }); err != nil {
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
	err := s.Pool.QueryRow(ctx, selectRootSQL, kindID, name).Scan(&id)
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
