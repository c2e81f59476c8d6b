package shadow

import (
	"context"
	"slices"

	"go.uber.org/zap"
)

// lookAhead is the result of a look-ahead: the blockers that a delete may ignore, and those that it has to wait for.
type lookAhead struct {
	// keys and blocks are the excused blockades and local references: their holders are removed by the same deletion, and
	// they existed before the walk. No others are excused.
	keys    keyColumns
	blocks  map[edge]bool
	unasked []Unasked
	// undecided are blockades here whose attempts may still commit; moved reports that others were settled.
	undecided []blockade
	moved     bool
}

func (l *lookAhead) notAsked() []Unasked {
	if l == nil {
		return nil
	}
	return l.unasked
}

// lookAhead walks over the deployments that a deletion reaches, starting from its members here, and resolves the
// blockades here that are not excused. It fails with *BlockedError, *ProtectedError or *UnavailableError when the delete
// is refused.
func (s *Store) lookAhead(ctx context.Context, name string, from *obstacle) (*lookAhead, error) {
	w := newWalk(s.self, s.peers, false)
	w.mindAll = from.tooMany()
	w.begin(from.members)
	for _, t := range from.later {
		w.follow(s.self, t)
	}
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	for _, b := range from.blockers {
		w.block(b)
	}
	holders := w.holders()
	for _, b := range from.blockades {
		holders = append(holders, PlanTarget{b.deployment, b.question.Key.HolderUID})
	}
	if err := w.judge(ctx, holders); err != nil {
		return nil, err
	}
	l := &lookAhead{blocks: map[edge]bool{}}
	for _, b := range from.blocks {
		l.blocks[b.edge] = w.goes(PlanTarget{s.self, b.uid}) && !w.mindAll
	}
	if err := s.askBlockades(ctx, w, l, from.blockades); err != nil || l.moved {
		return l, err
	}
	l.unasked = w.unasked
	if len(l.undecided) == 0 { // otherwise the look-ahead is repeated, and logs then
		for _, u := range w.unasked {
			s.log.Warn("cannot ask a deployment for the part of a deletion there",
				zap.String("name", name), zap.Stringer("deployment", u.Deployment), zap.Error(u))
		}
	}
	return l, w.refusal(name)
}

// askBlockades excuses the blockades here whose holders go, and asks about the others.
func (s *Store) askBlockades(ctx context.Context, w *planWalk, l *lookAhead, blockades []blockade) error {
	stays := slices.DeleteFunc(slices.Clone(blockades), func(b blockade) bool {
		goes := w.goes(PlanTarget{b.deployment, b.question.Key.HolderUID}) && !w.mindAll
		if goes {
			k := b.question.Key
			l.keys.attempts, l.keys.holders = append(l.keys.attempts, k.Attempt), append(l.keys.holders, k.HolderUID)
			l.keys.fields = append(l.keys.fields, b.fieldID)
		}
		return goes
	})
	asked := s.askAll(ctx, stays)
	for _, b := range asked.blockers() {
		w.block(b)
	}
	w.unasked = sortUnasked(append(w.unasked, asked.unasked...))
	l.moved, l.undecided = asked.moved, asked.undecided
	return ctx.Err()
}

// holders returns the holders of the blockers.
func (w *planWalk) holders() []PlanTarget {
	var out []PlanTarget
	for _, b := range w.inOrder() {
		out = append(out, b.holder())
	}
	return out
}
