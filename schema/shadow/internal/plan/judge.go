package plan

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// MaxTraced is the maximum number of resources that a delete traces in order to judge blockers.
const MaxTraced = 50_000

// Judge decides, after an incomplete walk (it reached its limit, or a deployment did not answer), which of the blocking holders the
// deletion removes too: it traces them upwards until it finds a member. A holder is unknown when a deployment on its way does not
// answer, or the limit of traces is reached; an unknown holder is neither excused nor a known blocker.
func (w *Walk) Judge(ctx context.Context, holders []peer.PlanTarget) error {
	if !w.Truncated && len(w.Unasked) == 0 {
		return nil // the walk was complete
	}
	up := map[peer.PlanTarget]peer.Trace{}
	frontier := map[schema.DeploymentID][]uuid.UUID{}
	seen := map[peer.PlanTarget]bool{}
	visit := func(t peer.PlanTarget) {
		if !seen[t] && !w.Goes(t) && !w.silent[t.Deployment] && len(seen) < MaxTraced {
			seen[t] = true
			frontier[t.Deployment] = append(frontier[t.Deployment], t.UID)
		}
	}
	for _, h := range holders {
		visit(h)
	}
	for len(frontier) > 0 {
		asked := w.traceAll(ctx, frontier)
		frontier = map[schema.DeploymentID][]uuid.UUID{}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, a := range asked {
			if a.traces == nil {
				w.silent[a.from] = true
				w.Unasked = append(w.Unasked, a.unasked)
				continue
			}
			for uid, trace := range a.traces {
				up[peer.PlanTarget{Deployment: a.from, UID: uid}] = trace
				for _, t := range trace.Cascades {
					if t.Deployment != a.from { // the answer is transitive inside its database
						visit(t)
					}
				}
			}
		}
	}
	w.Unasked = peer.SortUnasked(w.Unasked)
	for _, h := range holders {
		w.judgeOne(h, up, seen)
	}
	return nil
}

type tracedAt struct {
	from    schema.DeploymentID
	traces  map[uuid.UUID]peer.Trace
	unasked peer.Unasked
}

// traceAll asks deployments concurrently, with half of the remaining time for each.
func (w *Walk) traceAll(ctx context.Context, uids map[schema.DeploymentID][]uuid.UUID) []tracedAt {
	var out []tracedAt
	var mu sync.Mutex // of out
	var wg sync.WaitGroup
	free := make(chan struct{}, maxAsking)
	for d, uids := range uids {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			began := time.Now()
			ctx, cancel := peer.InPart(ctx, 1, 2)
			defer cancel()
			a := tracedAt{from: d}
			traces, err := w.peers.Trace(ctx, d, uids)
			if err != nil {
				a.unasked = peer.NotAsked(ctx, d, began, err)
			} else if a.traces = traces; traces == nil {
				a.traces = map[uuid.UUID]peer.Trace{}
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, a)
		})
	}
	wg.Wait()
	return out
}

func (w *Walk) judgeOne(h peer.PlanTarget, up map[peer.PlanTarget]peer.Trace, seen map[peer.PlanTarget]bool) {
	if w.Goes(h) {
		return
	}
	unknown := false
	been := map[peer.PlanTarget]bool{h: true}
	for way := []peer.PlanTarget{h}; len(way) > 0; {
		t := way[0]
		way = way[1:]
		if w.Goes(t) {
			w.excused[h] = true
			return
		}
		unknown = unknown || w.silent[t.Deployment]
		for _, owner := range up[t].Owners {
			unknown = unknown || w.Goes(owner) || w.silent[owner.Deployment]
		}
		for _, next := range up[t].Cascades {
			// Only targets in other deployments: a trace is transitive inside its database.
			unknown = unknown || next.Deployment != t.Deployment && !seen[next] && !w.Goes(next)
			if !been[next] {
				been[next] = true
				way = append(way, next)
			}
		}
	}
	if unknown || !seen[h] {
		w.Unknown[h] = true
	}
}

// Goes reports whether the walk found that the deletion removes a resource.
func (w *Walk) Goes(t peer.PlanTarget) bool { return w.members[t] != nil || w.excused[t] }

// Holders returns the holders of the blockers.
func (w *Walk) Holders() []peer.PlanTarget {
	var out []peer.PlanTarget
	for _, b := range w.InOrder() {
		out = append(out, b.HolderResource())
	}
	return out
}

// Refuses reports whether a blocker outside the deletion refuses it. A blocker of a member that is only collected refuses
// nothing: that member waits for it.
func (w *Walk) Refuses(b peer.PlanBlocker) bool {
	if m := w.members[b.Target()]; m != nil && !m.certain {
		return false
	}
	return !w.Goes(b.HolderResource()) || w.MindAll && b.Holder.Target.Deployment == w.self
}

// InOrder returns the blockers, sorted by the names of their holders.
func (w *Walk) InOrder() []peer.PlanBlocker {
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
func (w *Walk) Refusal(name string) error {
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
func (w *Walk) unavailable(name string, by []peer.PlanBlocker) error {
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
