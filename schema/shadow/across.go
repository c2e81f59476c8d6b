package shadow

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// maxAsking is the number of deployments that are asked at the same time.
const maxAsking = 32

// maxPatience is how long a level waits for slow deployments. Their calls go on; the answers join a later level.
const maxPatience = time.Second

// walkPeers are asked in a walk: what a deletion takes along there, and what resources there would be deleted with.
type walkPeers interface {
	Plan(ctx context.Context, at schema.DeploymentID, q PlanQuestion) (*Plan, error)
	Trace(ctx context.Context, at schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]Trace, error)
}

// walked is what a walk over all deployments found. What it says does not depend on the order in which they answered.
type planWalk struct {
	self     schema.DeploymentID
	peers    walkPeers
	detailed bool
	members  map[PlanTarget]*walkedMember
	// order are the members, after settle.
	order    []*walkedMember
	unsets   map[unsetKey]walkedUnset
	blockers map[blockerKey]PlanBlocker
	// silent are the deployments that did not answer; unasked are these and those that the walk did not reach.
	silent    map[schema.DeploymentID]bool
	unasked   []Unasked
	truncated bool
	// excused are holders that the deletion removes although the walk did not reach them; unknown are holders for which
	// that could not be determined. judge fills both. mindAll: no blocker of a member here is excused.
	excused, unknown map[PlanTarget]bool
	mindAll          bool
	ask              map[schema.DeploymentID]map[PlanTarget]bool
	// owners are by deployment the members that own resources there. Each question names all of them, since an ownee is
	// deleted only when all its owners are.
	owners map[schema.DeploymentID][]PlanTarget
}

// walkedMember is a resource that the deletion removes.
type walkedMember struct {
	PlanMember
	at PlanTarget
	// via is one reason out of Vias, chosen by settle; certain reports that cascades alone lead to the member, and no loss
	// of owners.
	via     Via
	certain bool
	placed  bool
	// first reports that the deletion starts with it.
	first bool
}

type walkedUnset struct {
	PlanUnset
	deployment schema.DeploymentID
}

type unsetKey struct {
	holder PlanTarget
	path   string
	target PlanTarget
}

type blockerKey struct {
	holder PlanTarget
	path   string
	target PlanTarget
}

func newWalk(self schema.DeploymentID, peers walkPeers, detailed bool) *planWalk {
	return &planWalk{
		self: self, peers: peers, detailed: detailed, members: map[PlanTarget]*walkedMember{},
		unsets: map[unsetKey]walkedUnset{}, blockers: map[blockerKey]PlanBlocker{}, silent: map[schema.DeploymentID]bool{},
		excused: map[PlanTarget]bool{}, unknown: map[PlanTarget]bool{},
		ask: map[schema.DeploymentID]map[PlanTarget]bool{}, owners: map[schema.DeploymentID][]PlanTarget{},
	}
}

// goes reports whether the walk found that the deletion removes a resource.
func (w *planWalk) goes(t PlanTarget) bool { return w.members[t] != nil || w.excused[t] }

func (w *planWalk) follow(d schema.DeploymentID, t PlanTarget) {
	if w.ask[d] == nil {
		w.ask[d] = map[PlanTarget]bool{}
	}
	w.ask[d][t] = true
}

// begin adds the members with which the deletion starts.
func (w *planWalk) begin(members []PlanMember) {
	w.take(w.self, members)
	for _, m := range w.members {
		m.first = true
	}
}

// take adds members of one deployment, and the deployments that have to be asked because of them.
func (w *planWalk) take(d schema.DeploymentID, members []PlanMember) {
	for _, m := range members {
		t := PlanTarget{d, m.UID}
		if known := w.members[t]; known != nil {
			for _, via := range m.Vias {
				if !slices.Contains(known.Vias, via) {
					known.Vias = append(known.Vias, via)
				}
			}
			continue
		}
		w.members[t] = &walkedMember{PlanMember: m, at: t}
		for _, e := range m.Entries {
			w.follow(e, t)
		}
		for _, o := range m.Ownees {
			w.follow(o, t)
			w.owners[o] = append(w.owners[o], t)
		}
	}
}

func (w *planWalk) takePlan(d schema.DeploymentID, plan *Plan) {
	w.truncated = w.truncated || plan.Truncated
	for _, b := range plan.Blockers {
		b.Holder.Target.Deployment = d
		w.block(b)
	}
	for _, u := range plan.Unsets {
		w.unsets[unsetKey{PlanTarget{d, u.UID}, u.Via.Path, u.Via.Target}] = walkedUnset{u, d}
	}
	w.take(d, plan.Members)
}

// block adds a blocker. A confirmed one replaces an undecided or unreachable one, and is not replaced.
func (w *planWalk) block(b PlanBlocker) {
	key := blockerKey{b.holder(), b.Holder.Path, b.target()}
	if known, ok := w.blockers[key]; ok && !known.Undecided && !known.Unreachable {
		return
	}
	w.blockers[key] = b
}

// answer is one deployment's plan, or unasked when it sent none.
type answer struct {
	from    schema.DeploymentID
	plan    *Plan
	unasked Unasked
}

// run follows the deletion over all deployments, level by level. The deployments of a level are asked concurrently; each
// call has two thirds of the time that the walk has left. The result is best effort: resources that change afterwards,
// exceed the limit or belong to unreachable deployments are handled when the cascade reaches them.
func (w *planWalk) run(parent context.Context) error {
	ctx, cancel := inPart(parent, 3, 4)
	defer cancel()
	answers := make(chan answer, maxAsking)
	asking := map[schema.DeploymentID]bool{}
	for len(w.members) < PlanLimit {
		fresh := w.next(asking)
		for d := range fresh {
			asking[d] = true
			go w.askOne(ctx, d, w.question(d), answers)
		}
		if len(asking) == 0 {
			break
		}
		for _, a := range level(ctx, answers, asking, fresh) {
			w.takeAnswer(a)
		}
	}
	w.truncated = w.truncated || len(w.members) >= PlanLimit
	cancel()
	for range asking {
		a := <-answers
		w.skip(a.from)
	}
	for d := range w.ask {
		w.skip(d)
	}
	w.unasked = sortUnasked(w.unasked)
	w.settle()
	return parent.Err()
}

// skip records that a deployment was not asked about all targets, because the walk has reached its limit.
func (w *planWalk) skip(d schema.DeploymentID) {
	if !w.silent[d] {
		w.unasked = append(w.unasked, Unasked{Deployment: d, Why: LimitReached})
	}
}

// next returns the deployments to ask now: each has one question in flight, and silent ones are not asked again.
func (w *planWalk) next(asking map[schema.DeploymentID]bool) map[schema.DeploymentID]bool {
	fresh := map[schema.DeploymentID]bool{}
	for d := range w.ask {
		switch {
		case w.silent[d]:
			delete(w.ask, d)
		case !asking[d] && len(asking)+len(fresh) < maxAsking:
			fresh[d] = true
		}
	}
	return fresh
}

// question returns the next question to a deployment: the targets that it was not asked about yet, and the owners.
func (w *planWalk) question(d schema.DeploymentID) PlanQuestion {
	targets := w.ask[d]
	delete(w.ask, d)
	for _, o := range w.owners[d] {
		targets[o] = true
	}
	q := PlanQuestion{Limit: max(1, PlanLimit-len(w.members)), Detailed: w.detailed}
	for t := range targets {
		q.Targets = append(q.Targets, t)
	}
	slices.SortFunc(q.Targets, compareTargets)
	return q
}

func compareTargets(a, b PlanTarget) int {
	return cmp.Or(compareDeployments(a.Deployment, b.Deployment), slices.Compare(a.UID[:], b.UID[:]))
}

func (w *planWalk) askOne(ctx context.Context, at schema.DeploymentID, q PlanQuestion, to chan<- answer) {
	began := time.Now()
	if ctx.Err() != nil {
		to <- answer{from: at, unasked: Unasked{Deployment: at, Why: TimedOut}}
		return
	}
	ctx, cancel := inPart(ctx, 2, 3)
	defer cancel()
	plan, err := w.peers.Plan(ctx, at, q)
	if err != nil {
		to <- answer{from: at, unasked: notAsked(ctx, at, began, err)}
		return
	}
	to <- answer{from: at, plan: plan}
}

// level waits for the answers of the deployments in fresh, until maxPatience or a sixth of the remaining time has passed,
// so that a slow deployment delays no other. When only slow ones are left, it returns with the first answer.
func level(ctx context.Context, answers <-chan answer, asking, fresh map[schema.DeploymentID]bool) []answer {
	patience := maxPatience
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)/6)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var out []answer
	for len(asking) > 0 && (len(fresh) > 0 || len(out) == 0) {
		select {
		case a := <-answers:
			delete(asking, a.from)
			delete(fresh, a.from)
			out = append(out, a)
		case <-timer.C:
			clear(fresh)
		}
	}
	slices.SortFunc(out, func(a, b answer) int { return compareDeployments(a.from, b.from) })
	return out
}

func (w *planWalk) takeAnswer(a answer) {
	if a.plan == nil {
		w.silent[a.from] = true
		w.unasked = append(w.unasked, a.unasked)
		return
	}
	w.takePlan(a.from, a.plan)
}

// isZero reports whether there is no reason: the deletion starts with the member.
func (v Via) isZero() bool { return v.Target.UID == uuid.Nil }
