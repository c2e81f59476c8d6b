package deletion

import (
	"context"
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

// divide divides blockades into those of references, and those of proxies.
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

// recall decides about the rights in the way of a deletion. A right ends only when nothing else refuses: when each of its holders goes along.
// Then what is written afterwards has blockades of its own, and the proxy is excused with its holders.
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
				l.excuse(b)
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

// doubt makes the rights of deployments that did not answer unknown blockers: nothing may be left that was written under them.
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
func (s *Deleter) askRights(ctx context.Context, holder schema.DeploymentID, proxies []blockade, mode peer.RecallMode) (*peer.Answers, *peer.Recalled, error) {
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
	for i, a := range recalled.Answers {
		answers.Verdicts[i] = a.Verdict
	}
	return answers, recalled, s.target.Settle(ctx, holder, questions, answers)
}
