package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/db-controller/db-controller/schema"
)

// walked is what a walk over all deployments found.
type walked struct {
	store *Store
	// going are the resources everywhere that the deletion removes; collected are those of them that go because they
	// lose their owners, and what follows them: who blocks one of these does not refuse the deletion, which lets it wait.
	going, collected map[PlanTarget]bool
	members          []walkedMember
	unsets           []walkedUnset
	blockers         []PlanBlocker
	// unasked are deployments that could not be asked.
	unasked   []schema.DeploymentID
	truncated bool
	// unknown are blockers of which nobody can say whether they go; judge finds them.
	unknown map[PlanTarget]bool
	ask     map[schema.DeploymentID][]PlanTarget
	// owners are the going ones that own something in a deployment. It is told of all of them each time, since a
	// resource goes only when all its owners do.
	owners map[schema.DeploymentID][]PlanTarget
}

type walkedMember struct {
	PlanMember
	deployment schema.DeploymentID
}

type walkedUnset struct {
	PlanUnset
	deployment schema.DeploymentID
}

func newWalk(s *Store) *walked {
	return &walked{
		store: s, going: map[PlanTarget]bool{}, collected: map[PlanTarget]bool{}, unknown: map[PlanTarget]bool{},
		ask: map[schema.DeploymentID][]PlanTarget{}, owners: map[schema.DeploymentID][]PlanTarget{},
	}
}

// take notes members of one deployment, and who has to be asked because of them.
func (w *walked) take(d schema.DeploymentID, members []PlanMember) {
	for _, m := range members {
		t := PlanTarget{d, m.UID}
		if w.going[t] {
			if m.Via.Path != OwnerPath && !w.collected[m.Via.Target] {
				w.cascades(t) // another way, which does not end at an owner
			}
			continue
		}
		w.going[t] = true
		w.collected[t] = m.Via.Path == OwnerPath || w.collected[m.Via.Target]
		w.members = append(w.members, walkedMember{m, d})
		for _, e := range m.Entries {
			w.ask[e] = append(w.ask[e], t)
		}
		for _, o := range m.Ownees {
			w.ask[o] = append(w.ask[o], t)
			w.owners[o] = append(w.owners[o], t)
		}
	}
}

// cascades notes that a member goes for certain, and with it what follows it by cascades.
func (w *walked) cascades(t PlanTarget) {
	if !w.collected[t] {
		return
	}
	w.collected[t] = false
	for _, m := range w.members {
		if m.Via.Target == t && m.Via.Path != OwnerPath {
			w.cascades(PlanTarget{m.deployment, m.UID})
		}
	}
}

// run follows the deletion over all deployments, each step one call a deployment. It is best effort: what changes
// afterwards, is too much, or cannot be asked, is handled when the cascade gets there.
func (w *walked) run(ctx context.Context, detailed bool) error {
	for len(w.ask) > 0 {
		var next schema.DeploymentID
		for next = range w.ask {
			break
		}
		targets := w.ask[next]
		delete(w.ask, next)
		for _, o := range w.owners[next] {
			if !slices.Contains(targets, o) {
				targets = append(targets, o)
			}
		}
		plan, err := w.askOne(ctx, next, PlanQuestion{Targets: targets, Limit: max(1, PlanLimit-len(w.going)), Detailed: detailed})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			w.unasked = append(w.unasked, next)
			continue
		}
		w.takePlan(next, plan)
		if len(w.going) >= PlanLimit {
			w.truncated = true
			break
		}
	}
	w.unasked = schema.SortedDeployments(w.unasked)
	return nil
}

func (w *walked) takePlan(d schema.DeploymentID, plan *Plan) {
	w.truncated = w.truncated || plan.Truncated
	for _, b := range plan.Blockers {
		b.deployment = d
		w.blockers = append(w.blockers, b)
	}
	for _, u := range plan.Unsets {
		w.unsets = append(w.unsets, walkedUnset{u, d})
	}
	w.take(d, plan.Members)
}

// askOne gives one deployment a part of the time that is left, so that one which does not answer is named, and the
// delete goes on.
func (w *walked) askOne(ctx context.Context, at schema.DeploymentID, q PlanQuestion) (*Plan, error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/4)
		defer cancel()
	}
	return w.store.peers.Plan(ctx, at, q)
}

// refuses tells whether a blocker, from outside the deletion, refuses it.
func (w *walked) refuses(b PlanBlocker) bool {
	return !w.going[b.holder()] && !w.collected[PlanTarget{b.deployment, b.TargetUID}]
}

// refusal is the error of a delete that somebody blocks, or that takes what is not to be deleted; or of which nobody
// can say whether somebody does.
func (w *walked) refusal(name string) error {
	protected := &ProtectedError{Name: name}
	for _, m := range w.members {
		if m.BlockDeletion && !w.collected[PlanTarget{m.deployment, m.UID}] {
			protected.By = append(protected.By, schema.FullName{Deployment: m.deployment, Name: m.Name})
		}
	}
	if len(protected.By) > 0 {
		return protected
	}
	blocked := &BlockedError{Name: name}
	named := map[Holder]bool{}
	var unknown []PlanTarget
	for _, b := range w.blockers {
		switch {
		case b.Undecided || !w.refuses(b) || named[b.Holder]:
		case w.unknown[b.holder()]:
			unknown = append(unknown, b.holder())
		default:
			named[b.Holder] = true
			if blocked.Total++; len(blocked.Holders) < MaxNamedHolders {
				blocked.Holders = append(blocked.Holders, b.Holder)
			}
		}
	}
	switch {
	case blocked.Total > 0:
		blocked.sort()
		return blocked
	case len(unknown) > 0:
		return w.unavailable(name)
	}
	return nil
}

func (w *walked) unavailable(name string) error {
	return fmt.Errorf("%s is referred to by resources of which it cannot be said whether they go with it: %w", name,
		&UnavailableError{Deployments: w.unasked, Err: errors.New("it did not answer what would be deleted there")})
}

// lookAhead is what a delete found out about the other deployments before it locks anything.
type lookAhead struct {
	// keys and blocks are the blockades, and the local references, of going ones that were there before the walk: they
	// and no others are excused.
	keys    keyColumns
	blocks  map[edge]bool
	unasked []schema.DeploymentID
}

// lookAhead walks over a deletion, starting from what it takes here. It fails with *BlockedError, *ProtectedError or
// *UnavailableError when it would be refused on the way.
func (s *Store) lookAhead(ctx context.Context, name string, from *obstacle) (*lookAhead, error) {
	w := newWalk(s)
	w.take(s.self, from.members)
	if len(from.later) > 0 {
		w.ask[s.self] = append(w.ask[s.self], from.later...)
	}
	if err := w.run(ctx, false); err != nil {
		return nil, err
	}
	holders := make([]PlanTarget, 0, len(from.blockades)+len(from.blocks)+len(w.blockers))
	for _, b := range from.blockades {
		holders = append(holders, PlanTarget{b.deployment, b.question.Key.HolderUID})
	}
	for _, b := range from.blocks {
		holders = append(holders, PlanTarget{s.self, b.uid})
	}
	for _, b := range w.blockers {
		holders = append(holders, b.holder())
	}
	if err := w.judge(ctx, holders); err != nil {
		return nil, err
	}
	l := &lookAhead{blocks: map[edge]bool{}, unasked: w.unasked}
	unknown := false
	for _, b := range from.blockades {
		k := b.question.Key
		holder := PlanTarget{b.deployment, k.HolderUID}
		unknown = unknown || !b.tentative && w.unknown[holder]
		if w.going[holder] {
			l.keys.attempts, l.keys.holders = append(l.keys.attempts, k.Attempt), append(l.keys.holders, k.HolderUID)
			l.keys.fields = append(l.keys.fields, b.fieldID)
		}
	}
	for _, b := range from.blocks {
		holder := PlanTarget{s.self, b.uid}
		unknown = unknown || w.unknown[holder]
		if w.going[holder] {
			l.blocks[b.edge] = true
		}
	}
	err := w.refusal(name)
	if err == nil && unknown {
		err = w.unavailable(name)
	}
	return l, err
}

// withoutExcused gives the local blockers that refuse a delete. Where there are too many to be sure, nobody is excused.
func (l *lookAhead) withoutExcused(blocks []outsider) []outsider {
	if l == nil || len(blocks) >= maxBlockers {
		return blocks
	}
	return slices.DeleteFunc(slices.Clone(blocks), func(o outsider) bool { return l.blocks[o.edge] })
}
