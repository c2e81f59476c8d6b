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

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/crash"
)

// DeleteRequest asks for one resource to be deleted; UID and Revision are for who wants only that one.
type DeleteRequest struct {
	Name     string
	UID      uuid.UUID // zero: any
	Revision Revision  // 0: any
	// Actor is who asks for it, such as user/alice, and RequestID what the caller calls the request, if anything: both are
	// kept with all that is removed.
	Actor     string
	RequestID uuid.UUID
}

// DeleteResult tells whether the resource is gone, or DELETING because others have to act first.
type DeleteResult struct {
	Removed bool
	// Unasked are deployments that could not be asked whether something there blocks what will cascade.
	Unasked []schema.DeploymentID
	// Resource as it was marked; nil when removed.
	Resource *Resource
}

// maxAsked is how many blockades a delete asks about at a time.
const maxAsked = 1000

const (
	lockRootSQL = `
SELECT id, uid, kind_id, name, state, shard, revision, block_deletion, hidden FROM dbcontroller.shadow
WHERE kind_id = $1 AND name = $2 FOR UPDATE`

	// Without those of the keys that are excused.
	selectBlockadesSQL = `
SELECT b.target_id, t.uid, b.attempt, b.holder_uid, b.field_id, b.deployment_id, b.holder_name, t.name, b.behaviour,
       b.expires_at IS NOT NULL, COALESCE(b.expires_at <= now(), true)
FROM dbcontroller.blockade b JOIN dbcontroller.shadow t ON t.id = b.target_id
LEFT JOIN unnest($3::uuid[], $4::uuid[], $5::int[]) AS e (attempt, holder_uid, field_id)
    ON e.attempt = b.attempt AND e.holder_uid = b.holder_uid AND e.field_id = b.field_id
WHERE b.target_id = ANY ($1) AND e.attempt IS NULL LIMIT $2`

	countBlockingSQL = `SELECT count(*) FROM dbcontroller.blockade WHERE target_id = ANY ($1) AND behaviour = 1`

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
// refuses it too. When an undecided holder's deployment does not answer: *UnavailableError.
func (s *Store) Delete(ctx context.Context, req DeleteRequest) (DeleteResult, error) {
	v, err := s.current()
	if err != nil {
		return DeleteResult{}, err
	}
	kind, err := v.model.KindOf(req.Name)
	if err != nil {
		return DeleteResult{}, &InvalidError{Err: err}
	}
	kindID, err := s.names.kind(ctx, kind.ID)
	if err != nil {
		return DeleteResult{}, err
	}
	ctx, cancel := withDefaultTimeout(ctx, s.cfg.DeleteTimeout)
	defer cancel()
	closed := &closing{id: uuid.New()}
	defer s.reopen(ctx, closed)
	cause := &schema.Cause{
		ID: uuid.Must(uuid.NewV7()), Root: schema.FullName{Deployment: s.self, Name: req.Name}.String(),
		Actor: req.Actor, RequestID: req.RequestID, At: time.Now(),
	}
	var ahead *lookAhead
	var last *obstacle // of the last try that came to an end
	obstacles, blocked := 0, false
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		result, obstacle, err := s.tryDelete(ctx, kindID, req, cause, ahead)
		if hasCode(err, codeLockNotAvailable) && ctx.Err() == nil {
			if err := s.keepAwayFromRoot(ctx, closed, kindID, req.Name); err != nil {
				return result, err
			}
			continue
		}
		if errors.Is(err, errNeedsLookAhead) {
			if ahead, err = s.lookAhead(ctx, req.Name, obstacle); err != nil {
				return result, err
			}
			continue
		}
		if ahead != nil {
			result.Unasked = ahead.unasked
		}
		if last != nil && gaveUp(err) {
			return result, s.blocked(req.Name, last.blockades, 0, true)
		}
		if err != nil || obstacle == nil {
			return result, err
		}
		last = obstacle
		moved, err := s.clear(ctx, req.Name, obstacle)
		if moved {
			ahead = nil // what was settled may be followed elsewhere
		}
		if errors.As(err, new(*BlockedError)) && !blocked {
			// Once more, with a new look ahead: what was asked about has settled what the deletion itself removes.
			blocked, ahead = true, nil
			continue
		}
		if gaveUp(err) {
			return result, s.blocked(req.Name, last.blockades, 0, true)
		}
		if err != nil {
			return result, err
		}
		// Once is chance; twice, new references come as fast as old ones are settled.
		if obstacles++; obstacles > 1 || !moved {
			if err := s.keepAway(ctx, closed, obstacle.targets); err != nil && ctx.Err() == nil {
				return result, err
			}
		}
		if moved && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return result, s.blocked(req.Name, obstacle.blockades, 0, true)
		case <-time.After(wait):
			ahead = nil // whom it excused may have been changed meanwhile
		}
	}
}

// gaveUp tells whether patience ended in the middle of a try, which then has changed nothing.
func gaveUp(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnknown) && !errors.As(err, new(*UnavailableError))
}

// obstacle is what refused a delete.
type obstacle struct {
	targets   []int64
	blockades []blockade
	total     int // of those that block
	// With errNeedsLookAhead: what goes here, and who blocks it here.
	members []PlanMember
	blocks  []outsider
	later   []PlanTarget // members with holders here that act later
}

type blockade struct {
	targetID   int64
	question   Question
	target     string
	holder     schema.FullName
	deployment schema.DeploymentID
	behaviour  schema.Behaviour
	tentative  bool
	fieldID    int32
	depID      int32
}

// tryDelete is the whole delete in one transaction: first the lock, then the checks, then the mark.
func (s *Store) tryDelete(ctx context.Context, kindID int32, req DeleteRequest, cause *schema.Cause, ahead *lookAhead) (DeleteResult, *obstacle, error) {
	var (
		result DeleteResult
		found  *obstacle
	)
	errObstacle := errors.New("obstacle")
	err := s.inTx(ctx, allFeeds, func(tx pgx.Tx) error {
		result, found = DeleteResult{}, nil // of an earlier try
		if _, err := tx.Exec(ctx, shortWaitSQL); err != nil {
			return err
		}
		root, err := s.lockRoot(ctx, tx, kindID, req)
		if err != nil {
			return err
		}
		if root.state == Active {
			cause.RootUID = root.uid
			root.why = reason{how: Requested, cause: cause}
			c, err := s.expand(ctx, tx, []*member{root})
			if err != nil {
				return err
			}
			b, err := readBonds(ctx, tx, c)
			if err != nil {
				return err
			}
			v := decide(c, b)
			if len(v.protected) > 0 {
				return &ProtectedError{Name: req.Name, By: s.fullNames(v.protected)}
			}
			if len(b.entered)+len(b.owns)+len(v.notify) > 0 && ahead == nil {
				if found, err = s.beforeLookAhead(ctx, tx, c, v); err != nil {
					return err
				}
				return errNeedsLookAhead
			}
			if blocks := ahead.withoutExcused(v.blocks); len(blocks) > 0 {
				return s.localHolders(ctx, tx, req.Name, blocks)
			}
			if len(v.blockaded) > 0 {
				if found, err = s.obstacle(ctx, tx, v.blockaded, maxAsked, ahead); err != nil {
					return err
				}
				if len(found.blockades) > 0 {
					return errObstacle
				}
				found = nil // all of them go with this deletion; it waits for them
			}
			if err := s.carryOut(ctx, tx, c, v); err != nil {
				return err
			}
			result.Removed = slices.Contains(v.remove, root.id)
		}
		if !result.Removed {
			result.Resource, err = s.get(ctx, tx, kindID, req.Name)
			if errors.Is(err, ErrNotFound) { // its kind hides it from now on
				result.Removed, err = true, nil
			}
		}
		return err
	})
	if errors.Is(err, errObstacle) {
		err = nil
	}
	if err == nil && found == nil {
		crash.At("crash-delete-committed")
	}
	return result, found, err
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
		return nil, fmt.Errorf("%s: %w: it is at revision %d, not %d", req.Name, ErrMoved, revision, req.Revision)
	}
	return root, nil
}

func (s *Store) fullNames(members []*member) []schema.FullName {
	names := make([]schema.FullName, len(members))
	for i, m := range members {
		names[i] = schema.FullName{Deployment: s.self, Name: m.name}
	}
	return names
}

func (s *Store) localHolders(ctx context.Context, tx pgx.Tx, name string, by []outsider) error {
	blocked := &BlockedError{Name: name, Total: len(by)}
	for _, o := range by[:min(len(by), MaxNamedHolders)] {
		path, err := s.names.fieldOf(ctx, tx, o.fieldID)
		if err != nil {
			return err
		}
		blocked.Holders = append(blocked.Holders, Holder{Name: schema.FullName{Deployment: s.self, Name: o.name}, Path: path})
	}
	return blocked
}

func (s *Store) obstacle(ctx context.Context, tx pgx.Tx, targets []int64, limit int, ahead *lookAhead) (*obstacle, error) {
	o := &obstacle{targets: targets}
	var k keyColumns
	if ahead != nil {
		k = ahead.keys
	}
	rows, err := tx.Query(ctx, selectBlockadesSQL, targets, limit, k.attempts, k.holders, k.fields)
	if err != nil {
		return nil, fmt.Errorf("read blockades: %w", err)
	}
	o.blockades, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (b blockade, err error) {
		k := &b.question.Key
		err = row.Scan(&b.targetID, &k.TargetUID, &k.Attempt, &k.HolderUID, &b.fieldID, &b.depID, &b.holder.Name, &b.target, &b.behaviour, &b.tentative, &b.question.Expired)
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
		b.holder.Deployment = b.deployment
	}
	return o, tx.QueryRow(ctx, countBlockingSQL, targets).Scan(&o.total)
}

// beforeLookAhead reads what a deletion takes here, which other deployments have to act because of it, and who blocks
// it now: only those can be excused later.
func (s *Store) beforeLookAhead(ctx context.Context, tx pgx.Tx, c *closure, v verdict) (*obstacle, error) {
	o, err := s.obstacle(ctx, tx, v.blockaded, PlanLimit, nil)
	if err != nil {
		return nil, err
	}
	p := &planning{store: s, plan: &Plan{}}
	err = p.members(ctx, tx, c.ids())
	o.members, o.blocks = p.plan.Members, v.blocks
	for _, id := range v.notify {
		o.later = append(o.later, PlanTarget{s.self, c.members[id].uid})
	}
	return o, err
}

// clear asks the holders' deployments what became of the blockades, outside any transaction, and settles what they
// say. It tells whether anything moved; it fails when a holder really refers, or cannot be asked.
func (s *Store) clear(ctx context.Context, name string, o *obstacle) (moved bool, err error) {
	asked := s.askAll(ctx, o)
	if len(asked.held) > 0 {
		return false, s.blocked(name, asked.held, o.total, false)
	}
	if len(asked.unreachable) == 0 || asked.moved || ctx.Err() != nil {
		return asked.moved, nil
	}
	e := &UnavailableError{}
	for d, err := range asked.unreachable {
		e.Deployments, e.Err = append(e.Deployments, d), err
	}
	e.Deployments = schema.SortedDeployments(e.Deployments)
	return false, fmt.Errorf("%s may be referred to by resources that cannot be asked: %w", name, e)
}

// asked is what came of asking about blockades.
type asked struct {
	// held are blocking ones that hold, and confirmed ones that cannot be asked about.
	held []blockade
	// undecided may still commit, or could not be asked about.
	undecided   []blockade
	moved       bool // something was settled
	unreachable map[schema.DeploymentID]error
}

// askAll asks every holders' deployment at the same time.
func (s *Store) askAll(ctx context.Context, o *obstacle) *asked {
	by := map[schema.DeploymentID][]blockade{}
	for _, b := range o.blockades {
		by[b.deployment] = append(by[b.deployment], b)
	}
	a := &asked{unreachable: map[schema.DeploymentID]error{}}
	var wg sync.WaitGroup
	var mu sync.Mutex // of a
	for deployment, blockades := range by {
		wg.Go(func() {
			answers, err := s.ask(ctx, deployment, blockades)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				a.unreachable[deployment] = err
			}
			for i, b := range blockades {
				switch {
				case err != nil && !b.tentative:
					a.held = append(a.held, b) // confirmed counts, whether or not its holder can be asked
				case err != nil || answers.Verdicts[i] == Undecided:
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

func (s *Store) blocked(name string, by []blockade, total int, undecided bool) error {
	e := &BlockedError{Name: name, Total: max(total, len(by)), Undecided: undecided}
	for _, b := range by[:min(len(by), MaxNamedHolders)] {
		e.Holders = append(e.Holders, Holder{Name: b.holder, Path: b.question.Key.Path})
	}
	e.sort()
	return e
}

// closing is what one delete keeps new references away from.
type closing struct {
	id      uuid.UUID
	targets []int64
}

// keepAway closes targets to new references, once each, until a little after the deadline.
func (s *Store) keepAway(ctx context.Context, closed *closing, targets []int64) error {
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
	if err := s.inTx(ctx, noFeed, func(tx pgx.Tx) error { return s.settled(ctx, tx) }); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if _, err := s.pool.Exec(ctx, closeTargetsSQL, more, closed.id, time.Until(deadline)+time.Second); err != nil {
		return fmt.Errorf("keep new references away: %w", err)
	}
	closed.targets = append(closed.targets, more...)
	return nil
}

func (s *Store) keepAwayFromRoot(ctx context.Context, closed *closing, kindID int32, name string) error {
	var id int64
	err := s.pool.QueryRow(ctx, selectRootSQL, kindID, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep new references away: %w", err)
	}
	return s.keepAway(ctx, closed, []int64{id})
}

func (s *Store) reopen(ctx context.Context, closed *closing) {
	if len(closed.targets) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = s.pool.Exec(ctx, openTargetsSQL, closed.targets, closed.id) // ends by itself as well
}
