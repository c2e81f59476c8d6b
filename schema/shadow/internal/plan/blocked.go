package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// Refuses reports whether a blocker outside the deletion refuses it. A blocker of a member that is only collected refuses
// nothing: that member waits for it.
func (w *PlanWalk) Refuses(b peer.PlanBlocker) bool {
	if m := w.members[b.Target()]; m != nil && !m.certain {
		return false
	}
	return !w.Goes(b.HolderResource()) || w.MindAll && b.Holder.Target.Deployment == w.self
}

// InOrder returns the blockers, sorted by the names of their holders.
func (w *PlanWalk) InOrder() []peer.PlanBlocker {
	out := make([]peer.PlanBlocker, 0, len(w.blockers))
	for _, b := range w.blockers {
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b peer.PlanBlocker) int {
		return cmp.Or(strings.Compare(a.Holder.Name.String(), b.Holder.Name.String()), strings.Compare(a.Holder.Path, b.Holder.Path),
			strings.Compare(a.Holder.Target.String(), b.Holder.Target.String()), compareTargets(a.Target(), b.Target()), compareTargets(a.HolderResource(), b.HolderResource()))
	})
	return out
}

// Refusal returns the error of a delete with blockers, with members that have block_deletion, or with blockers about which no
// deployment could answer. Plans and deletes share it.
func (w *PlanWalk) Refusal(name string) error {
	protected := &peer.ProtectedError{Name: name}
	for _, m := range w.order {
		if m.BlockDeletion && m.certain {
			protected.By = append(protected.By, schema.FullName{Deployment: m.at.Deployment, Name: m.Name})
		}
	}
	if len(protected.By) > 0 {
		return protected
	}
	blocked := &peer.BlockedError{Name: name, Deployment: w.self, AtLeast: w.Truncated || w.MindAll}
	var unknown []peer.PlanBlocker
	for _, b := range w.InOrder() {
		// Undecided blockades in other deployments are decided before the cascade arrives there.
		undecided := b.Undecided && (!b.Unreachable || b.Holder.Target.Deployment != w.self)
		switch {
		case undecided || !w.Refuses(b):
		case b.Undecided || w.Unknown[b.HolderResource()]:
			unknown = append(unknown, b)
		default: // a confirmed blockade counts until its holder's deployment reports "gone"
			if blocked.Add(b.Holder); b.Unreachable {
				blocked.Unanswered = append(blocked.Unanswered, b.Holder.Name.Deployment)
			}
		}
	}
	blocked.Unanswered = schema.SortedDeployments(blocked.Unanswered)
	switch {
	case blocked.Total > 0:
		return blocked
	case len(unknown) > 0:
		return w.unavailable(name, unknown)
	}
	return nil
}

// unavailable is the error of a delete of which only unknown blockers are left: it is not known whether they still refer, or are
// removed as well. It names the deployments that did not answer (I13).
func (w *PlanWalk) unavailable(name string, by []peer.PlanBlocker) error {
	e := &peer.UnavailableError{Unasked: slices.Clone(w.Unasked)}
	for _, b := range by {
		silent := func(u peer.Unasked) bool { return u.Deployment == b.Holder.Name.Deployment }
		if b.Unreachable && !slices.ContainsFunc(e.Unasked, silent) { // another deployment could not ask it
			e.Unasked = append(e.Unasked, peer.Unasked{
				Deployment: b.Holder.Name.Deployment, Why: peer.Unreachable, Detail: "it did not answer " + b.Holder.Target.Deployment.String(),
			})
		}
	}
	if len(e.Unasked) == 0 { // the limit of a trace was reached
		for _, b := range by {
			e.Unasked = append(e.Unasked, peer.Unasked{Deployment: b.Holder.Name.Deployment, Why: peer.LimitReached})
		}
	}
	e.Unasked = peer.SortUnasked(e.Unasked)
	for _, u := range e.Unasked {
		e.Deployments = append(e.Deployments, u.Deployment)
	}
	more := ""
	if len(by) > 1 {
		more = fmt.Sprintf(" and %d more", len(by)-1)
	}
	return fmt.Errorf("%s cannot be deleted for now: it is unknown whether %s (%s)%s refers to %s, or would be deleted as well: %w",
		name, by[0].Holder.Name, by[0].Holder.Path, more, by[0].Holder.Target, e)
}
