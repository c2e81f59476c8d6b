package deletion

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// The blockades of the targets, except the excused ones.
const selectBlockadesSQL = `
SELECT b.target_id, t.uid, b.attempt, b.holder_uid, b.field_id, b.deployment_id, b.holder_name, t.name, b.behaviour,
       b.expires_at IS NOT NULL, COALESCE(` + db.ExpiredSQL + `@ttl::interval), true),
       EXISTS (SELECT FROM dbcontroller.decommissioned d WHERE d.deployment_id = b.deployment_id)
FROM dbcontroller.blockade b JOIN dbcontroller.shadow t ON t.id = b.target_id
LEFT JOIN unnest(@attempts::uuid[], @holders::uuid[], @fields::int[]) AS e (attempt, holder_uid, field_id)
    ON e.attempt = b.attempt AND e.holder_uid = b.holder_uid AND e.field_id = b.field_id
WHERE b.target_id = ANY (@targets) AND e.attempt IS NULL ORDER BY b.target_id, b.holder_uid, b.field_id, b.attempt LIMIT @at_most`

// lookAhead is the result of a look-ahead: the blockers that a delete may ignore, and the blockers that it
// has to wait for.
type lookAhead struct {
	// keys and blocks are the excused blockades and local references: their holders are removed by the same
	// deletion, and they existed before the walk. No others are excused, but those of holders in DELETING:
	// leaving.
	keys    excused
	blocks  map[plan.Edge]bool
	leaving excused
	unasked []peer.Unasked
	// members is the number of members here, and removed the number of all members that the walk found; more:
	// there may be more. An exact look-ahead counts each member once.
	members int
	removed int
	more    bool
	// undecided are blockades here whose attempts may still commit; moved reports that others were settled.
	undecided []blockade
	moved     bool
}

// obstacle is the reason for a look-ahead: the members here and their present blockers here. Only these can
// be excused.
type obstacle struct {
	// targets are the targets of the blockades.
	targets   []int64
	blockades []blockade
	members   []peer.PlanMember
	later     []peer.PlanTarget // members with holders here that act later
	// blocks are the local references that block members, and blockers the same for messages.
	blocks   []plan.Outsider
	blockers []peer.PlanBlocker
}

// tooMany reports whether more blockers may exist than were read: then none is excused.
func (o *obstacle) tooMany() bool {
	return len(o.blockades) >= peer.PlanLimit || len(o.blocks) >= plan.MaxBlockers
}

type blockade struct {
	targetID   int64
	question   peer.Question
	target     schema.FullName
	holder     schema.FullName
	deployment schema.DeploymentID
	behaviour  schema.Behaviour
	tentative  bool
	// It has expired, and its deployment has not confirmed it.
	unconfirmed bool
	passes      bool // its deployment is decommissioned: it is about to be removed
	fieldID     int32
	depID       int32
}

func (b blockade) holderResource() peer.PlanTarget {
	return peer.PlanTarget{Deployment: b.deployment, UID: b.question.Key.HolderUID}
}

func holdersOf(blockades []blockade) (holders []peer.PlanTarget) {
	for _, b := range blockades {
		holders = append(holders, b.holderResource())
	}
	return holders
}

// ofRight reports whether it is the blockade of a proxy, which stands for all references under a right.
func (b blockade) ofRight() bool { return b.question.Key.OfRight() }

// excused are keys of blockades that a delete ignores, without the targets.
type excused struct{ db.KeyColumns }

func (e *excused) add(b blockade) {
	k := b.question.Key
	e.Attempts, e.Holders, e.Fields = append(e.Attempts, k.Attempt), append(e.Holders, k.HolderUID),
		append(e.Fields, b.fieldID)
}

func (e excused) and(more excused) excused {
	e.Attempts, e.Holders = slices.Concat(e.Attempts, more.Attempts), slices.Concat(e.Holders, more.Holders)
	e.Fields = slices.Concat(e.Fields, more.Fields)
	return e
}

// lookAhead walks over the deployments that a deletion reaches, starting from its members here, and resolves
// the blockades here that are not excused. An exact look-ahead asks for the uid of each member; another one
// takes the number of leaves. It fails with *BlockedError, *ProtectedError or *UnavailableError when the
// delete is refused, and with ErrNotAtomic.
func (s *Deleter) lookAhead(ctx context.Context, from *obstacle, by manner, exact bool) (*lookAhead, error) {
	l := &lookAhead{blocks: map[plan.Edge]bool{}, members: len(from.members)}
	own, proxies := divide(from.blockades)
	w := by.walk(from, exact)
	err := w.Run(ctx)
	if err == nil && w.AskForNames() {
		err = w.Run(ctx)
	}
	if err != nil {
		return nil, err
	}
	for _, b := range from.blockers {
		w.Block(b)
	}
	rights := s.askAll(ctx, proxies, peer.RecallIfFree)
	if rights.moved {
		l.moved, l.undecided = true, rights.undecided
		return l, ctx.Err()
	}
	if err := w.Judge(ctx, holdersOf(slices.Concat(own, rights.held))); err != nil {
		return nil, err
	}
	for _, b := range from.blocks {
		l.blocks[b.Edge] = w.Goes(peer.PlanTarget{Deployment: s.Self, UID: b.UID}) && !w.MindAll
	}
	if err := s.askBlockades(ctx, w, l, own); err != nil || l.moved {
		return l, err
	}
	if err := s.recall(ctx, w, l, proxies, rights); err != nil || l.moved {
		return l, err
	}
	l.unasked, l.removed, l.more = w.Unasked, w.Size(), w.Truncated
	return l, by.refusal(ctx, w, len(l.undecided) > 0)
}

// askBlockades excuses the blockades here whose holders the deletion removes, and resolves the others.
func (s *Deleter) askBlockades(ctx context.Context, w *plan.Walk, l *lookAhead, blockades []blockade) error {
	stays := slices.DeleteFunc(slices.Clone(blockades), func(b blockade) bool {
		goes := w.Goes(b.holderResource()) && !w.MindAll
		if goes {
			l.keys.add(b)
		}
		return goes
	})
	asked := s.askAll(ctx, stays, peer.RecallLooks)
	for _, b := range asked.blockers() {
		w.Block(b)
	}
	for _, b := range asked.leaving {
		l.leaving.add(b)
	}
	w.Unasked = peer.SortUnasked(append(w.Unasked, asked.unasked...))
	// Without the blockades of holders in DELETING, the next look-ahead reads others, and may read all of
	// them.
	l.moved, l.undecided = asked.moved || w.MindAll && len(asked.leaving) > 0, asked.undecided
	return ctx.Err()
}

// lookAheadComplete reports whether the delete can be carried out without further questions: no other
// deployment is concerned and no holder blocks it, or the look-ahead has excused every blocker.
func (s *Deleter) lookAheadComplete(ctx context.Context, tx pgx.Tx, d cascade.Decision, ahead *lookAhead,
	leaving excused,
) (bool, error) {
	b, v := d.Bonds, d.Verdict
	if ahead == nil {
		return len(b.Entered)+len(b.Owns)+len(v.Notify)+len(v.Blocks)+len(v.Blockaded) == 0, nil
	}
	if slices.ContainsFunc(v.Blocks, func(o plan.Outsider) bool { return !ahead.blocks[o.Edge] }) {
		return false, nil
	}
	if len(v.Blockaded) == 0 {
		return true, nil
	}
	left, err := s.obstacle(ctx, tx, v.Blockaded, 1, leaving.and(ahead.keys))
	return err == nil && len(left.blockades) == 0, err
}

func (s *Deleter) obstacle(ctx context.Context, tx pgx.Tx, targets []int64, limit int, but excused) (*obstacle, error) {
	b := &pgx.Batch{}
	found := s.queueBlockades(b, targets, limit, but)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read blockades: %w", err)
	}
	return s.obstacleOf(ctx, tx, targets, *found)
}

// queueBlockades reads the blockades of targets in a batch of statements, but excused ones.
func (s *Deleter) queueBlockades(batch *pgx.Batch, targets []int64, limit int, but excused) *[]blockade {
	found := new([]blockade)
	batch.Queue(selectBlockadesSQL, db.Named{
		"targets": targets, "at_most": limit, "attempts": but.Attempts, "holders": but.Holders, "fields": but.Fields,
		"ttl": s.Tuning.Load().TentativeTTL,
	}).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, scanBlockade)
		return err
	})
	return found
}

func scanBlockade(row pgx.CollectableRow) (b blockade, err error) {
	k := &b.question.Key
	err = row.Scan(&b.targetID, &k.TargetUID, &k.Attempt, &k.HolderUID, &b.fieldID, &b.depID, &b.holder.Name,
		&b.target.Name, &b.behaviour, &b.tentative, &b.question.Expired, &b.passes)
	b.unconfirmed = b.tentative && b.question.Expired
	return b, err
}

// obstacleOf returns blockades as an obstacle, with the names in them.
func (s *Deleter) obstacleOf(ctx context.Context, q db.Querier, targets []int64,
	found []blockade,
) (o *obstacle, err error) {
	o = &obstacle{targets: targets, blockades: found}
	for i := range o.blockades {
		b := &o.blockades[i]
		if b.deployment, err = s.Names.DeploymentOf(ctx, q, b.depID); err != nil {
			return nil, err
		}
		if b.question.Key.Path, err = s.Names.FieldOf(ctx, q, b.fieldID); err != nil {
			return nil, err
		}
		b.holder.Deployment, b.target.Deployment = b.deployment, s.Self
	}
	return o, nil
}

// beforeLookAhead reads the members here, the deployments that have to act because of them, and the present
// blockers here: later blockers are never excused.
func (s *Deleter) beforeLookAhead(ctx context.Context, tx pgx.Tx, d cascade.Decision, member *[]read.Member,
	leaving excused,
) (*obstacle, error) {
	c, v := d.Closure, d.Verdict
	o, members := &obstacle{}, member
	if len(v.Blockaded) > 0 {
		var err error
		if o, err = s.obstacle(ctx, tx, v.Blockaded, peer.PlanLimit, leaving); err != nil {
			return nil, err
		}
	}
	if members == nil || len(c.Members) > 1 {
		b := &pgx.Batch{}
		members = read.Queued[read.Member](b, read.MembersSQL, slices.Sorted(maps.Keys(c.Members)))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return nil, err
		}
	}
	p := &planning{store: s, plan: &peer.Plan{}}
	if err := p.add(ctx, tx, *members, nil); err != nil {
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

// add adds resources to the plan.
func (p *planning) add(ctx context.Context, q db.Querier, found []read.Member, vias map[int64][]peer.Via) error {
	s := p.store
	for _, r := range found {
		m := peer.PlanMember{
			UID: r.UID, Name: r.Name, Vias: vias[r.ID], BlockDeletion: r.BlockDeletion,
			Finalizers: r.Finalizers,
		}
		kind, err := s.Names.KindOf(ctx, q, r.Kind)
		if err != nil {
			return err
		}
		m.Kind = kind.Kind
		if m.Entries, err = s.DeploymentsOf(ctx, q, r.Entries); err != nil {
			return err
		}
		if m.Ownees, err = s.DeploymentsOf(ctx, q, r.Ownees); err != nil {
			return err
		}
		p.plan.Members = append(p.plan.Members, m)
	}
	return nil
}

// asked is the result of resolving blockades.
type asked struct {
	// held are BLOCK blockades of existing references.
	held []blockade
	// leaving are BLOCK blockades of references that holders in DELETING keep until they are removed: a
	// delete is not refused for them, and its resource waits in DELETING.
	leaving []blockade
	// undecided are blockades of attempts that may still commit.
	undecided []blockade
	// unanswered are the blockades of deployments that did not answer. They block, since they may be held.
	unanswered []blockade
	moved      bool // at least one blockade was settled
	more       bool // rights have more holders than held names
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
		Undecided: undecided, Unreachable: unreachable, Unconfirmed: b.unconfirmed,
	}
}

func (b blockade) reference() peer.Holder {
	return peer.Holder{Name: b.holder, Path: b.question.Key.Path, Target: b.target}
}

// askAll resolves blockades at all holders' deployments concurrently, and recalls the rights among them. Each
// call has half of the remaining time. Blockades of decommissioned deployments are waited for, without a
// question.
func (s *Deleter) askAll(ctx context.Context, blockades []blockade, mode peer.RecallMode) *asked {
	type asking struct {
		deployment schema.DeploymentID
		rights     bool
	}
	a := &asked{}
	by := map[asking][]blockade{}
	for _, b := range blockades {
		if b.passes {
			a.undecided = append(a.undecided, b)
			continue
		}
		k := asking{b.deployment, b.ofRight()}
		by[k] = append(by[k], b)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex // of a
	for k, blockades := range by {
		wg.Go(func() {
			began := time.Now()
			ctx, cancel := peer.InPart(ctx, 1, 2)
			defer cancel()
			var answers *peer.Answers
			var recalled *peer.Recalled
			var err error
			if k.rights {
				answers, recalled, err = s.askRights(ctx, k.deployment, blockades, mode)
			} else {
				answers, err = s.ask(ctx, k.deployment, blockades)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				a.unasked = append(a.unasked, peer.NotAsked(ctx, k.deployment, began, err))
				a.unanswered = append(a.unanswered, blockades...)
				return
			}
			for i, b := range blockades {
				a.take(b, answers.Verdicts[i], recalled.Of(i))
			}
		})
	}
	wg.Wait()
	return a
}

// take adds a verdict. A right that stands is held by the resources that refer under it.
func (a *asked) take(b blockade, v peer.Verdict, under *peer.RecallAnswer) {
	switch {
	case v == peer.Undecided:
		a.undecided = append(a.undecided, b)
	case v == peer.Held && under != nil:
		a.more = a.more || under.More
		for _, h := range under.Holders {
			if h.Leaving {
				a.leaving = append(a.leaving, b.heldBy(h))
			} else {
				a.held = append(a.held, b.heldBy(h))
			}
		}
	case v == peer.Held && b.behaviour == schema.Block:
		a.held = append(a.held, b)
	case v == peer.Leaving && b.behaviour == schema.Block:
		a.leaving = append(a.leaving, b)
	default:
		a.moved = true
	}
}

func (s *Deleter) ask(ctx context.Context, holder schema.DeploymentID, blockades []blockade) (*peer.Answers, error) {
	questions := questionsOf(blockades)
	answers, err := s.Peers.Resolve(ctx, holder, questions)
	if err == nil && len(answers.Verdicts) != len(questions) {
		err = fmt.Errorf("its answer has %d verdicts for %d questions", len(answers.Verdicts), len(questions))
	}
	if err != nil {
		return nil, err
	}
	return answers, s.target.Settle(ctx, holder, questions, answers)
}

func questionsOf(blockades []blockade) []peer.Question {
	questions := make([]peer.Question, len(blockades))
	for i, b := range blockades {
		questions[i] = b.question
	}
	return questions
}

// divide divides blockades into blockades of references and blockades of proxies.
func divide(blockades []blockade) (own, proxies []blockade) {
	for _, b := range blockades {
		if b.ofRight() {
			proxies = append(proxies, b)
		} else {
			own = append(own, b)
		}
	}
	return own, proxies
}

// heldBy returns the blockade that a reference under the right would have if it were established by itself.
func (b blockade) heldBy(h peer.RecalledHolder) blockade {
	b.question.Key.HolderUID, b.question.Key.Path = h.UID, h.Path
	b.holder.Name, b.tentative = h.Name, false
	return b
}

// recall decides about the rights in the way of a deletion. A right ends only when nothing else refuses: when
// each of its holders goes along. Then references that are written afterwards have blockades of their own,
// and the proxy is excused with its holders.
func (s *Deleter) recall(ctx context.Context, w *plan.Walk, l *lookAhead, proxies []blockade, rights *asked) error {
	if len(proxies) == 0 {
		return nil
	}
	if goAlong(w, rights) {
		rights = s.askAll(ctx, proxies, peer.RecallEnds)
		if l.moved = rights.moved; l.moved {
			return ctx.Err()
		}
		if goAlong(w, rights) {
			for _, b := range proxies {
				l.keys.add(b)
			}
			return ctx.Err()
		}
	}
	rights.doubt()
	for _, b := range rights.blockers() {
		w.Block(b)
	}
	w.Truncated = w.Truncated || rights.more
	w.Unasked = peer.SortUnasked(append(w.Unasked, rights.unasked...))
	l.undecided = append(l.undecided, rights.undecided...)
	return ctx.Err()
}

// doubt makes the rights of deployments that did not answer unknown blockers: nothing may be left that was
// written under them.
func (a *asked) doubt() {
	for i := range a.unanswered {
		a.unanswered[i].tentative = a.unanswered[i].tentative || a.unanswered[i].ofRight()
	}
}

// goAlong reports whether all that was written under rights is known, and removed by the same deletion.
func goAlong(w *plan.Walk, rights *asked) bool {
	if w.MindAll || rights.more || len(rights.undecided)+len(rights.unanswered) > 0 {
		return false
	}
	return !slices.ContainsFunc(rights.held, func(b blockade) bool { return !w.Goes(b.holderResource()) })
}

// askRights recalls rights, and settles the verdicts.
func (s *Deleter) askRights(ctx context.Context, holder schema.DeploymentID, proxies []blockade,
	mode peer.RecallMode,
) (*peer.Answers, *peer.Recalled, error) {
	questions := questionsOf(proxies)
	asked := make([]peer.Recall, len(proxies))
	for i, q := range questions {
		asked[i] = peer.Recall{Question: q, Mode: mode}
	}
	recalled, err := s.Peers.Recall(ctx, holder, asked)
	if err == nil && len(recalled.Answers) != len(asked) {
		err = fmt.Errorf("its answer has %d verdicts for %d rights", len(recalled.Answers), len(asked))
	}
	if err != nil {
		return nil, nil, err
	}
	answers := &peer.Answers{Epoch: recalled.Epoch, Verdicts: make([]peer.Verdict, len(asked))}
	settled := &peer.Answers{Epoch: recalled.Epoch, Verdicts: make([]peer.Verdict, len(asked))}
	for i, a := range recalled.Answers {
		answers.Verdicts[i], settled.Verdicts[i] = a.Verdict, a.Verdict
		if a.Verdict == peer.Held && len(a.Holders) == 0 { // a right that nothing uses is not confirmed by a question
			settled.Verdicts[i] = peer.Undecided
		}
	}
	return answers, recalled, s.target.Settle(ctx, holder, questions, settled)
}
