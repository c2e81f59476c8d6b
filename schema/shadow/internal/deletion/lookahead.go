package deletion

import (
	"context"
	"slices"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

// lookAhead is the result of a look-ahead: the blockers that a delete may ignore, and those that it has to wait for.
type lookAhead struct {
	// keys and blocks are the excused blockades and local references: their holders are removed by the same deletion, and
	// they existed before the walk. No others are excused.
	keys    db.KeyColumns
	blocks  map[cascade.Edge]bool
	unasked []peer.Unasked
	// undecided are blockades here whose attempts may still commit; moved reports that others were settled.
	undecided []blockade
	moved     bool
}

func (l *lookAhead) notAsked() []peer.Unasked {
	if l == nil {
		return nil
	}
	return l.unasked
}

// lookAhead walks over the deployments that a deletion reaches, starting from its members here, and resolves the
// blockades here that are not excused. It fails with *BlockedError, *ProtectedError or *UnavailableError when the delete
// is refused.
func (s *Deleter) lookAhead(ctx context.Context, name string, from *obstacle) (*lookAhead, error) {
	w := plan.NewWalk(s.Self, s.Peers, false)
	w.MindAll = from.tooMany()
	w.Begin(from.members)
	for _, t := range from.later {
		w.Follow(s.Self, t)
	}
	if err := w.Run(ctx); err != nil {
		return nil, err
	}
	for _, b := range from.blockers {
		w.Block(b)
	}
	holders := w.Holders()
	for _, b := range from.blockades {
		holders = append(holders, peer.PlanTarget{Deployment: b.deployment, UID: b.question.Key.HolderUID})
	}
	if err := w.Judge(ctx, holders); err != nil {
		return nil, err
	}
	l := &lookAhead{blocks: map[cascade.Edge]bool{}}
	for _, b := range from.blocks {
		l.blocks[b.Edge] = w.Goes(peer.PlanTarget{Deployment: s.Self, UID: b.UID}) && !w.MindAll
	}
	if err := s.askBlockades(ctx, w, l, from.blockades); err != nil || l.moved {
		return l, err
	}
	l.unasked = w.Unasked
	if len(l.undecided) == 0 { // otherwise the look-ahead is repeated, and logs then
		for _, u := range w.Unasked {
			s.Log.Warn("cannot ask a deployment for the part of a deletion there",
				zap.String("name", name), zap.Stringer("deployment", u.Deployment), zap.Error(u))
		}
	}
	return l, w.Refusal(name)
}

// askBlockades excuses the blockades here whose holders the deletion removes, and resolves the others.
func (s *Deleter) askBlockades(ctx context.Context, w *plan.PlanWalk, l *lookAhead, blockades []blockade) error {
	stays := slices.DeleteFunc(slices.Clone(blockades), func(b blockade) bool {
		goes := w.Goes(peer.PlanTarget{Deployment: b.deployment, UID: b.question.Key.HolderUID}) && !w.MindAll
		if goes {
			k := b.question.Key
			l.keys.Attempts, l.keys.Holders = append(l.keys.Attempts, k.Attempt), append(l.keys.Holders, k.HolderUID)
			l.keys.Fields = append(l.keys.Fields, b.fieldID)
		}
		return goes
	})
	asked := s.askAll(ctx, stays)
	for _, b := range asked.blockers() {
		w.Block(b)
	}
	w.Unasked = peer.SortUnasked(append(w.Unasked, asked.unasked...))
	l.moved, l.undecided = asked.moved, asked.undecided
	return ctx.Err()
}
