package shadow

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// maxAsking is how many deployments are asked at a time.
const maxAsking = 32

// maxPatience is how long a level waits for who is slow. It is asked for longer; its answer is taken with a later level.
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
	// silent are deployments that did not answer; unasked are these, and those that were not come to.
	silent    map[schema.DeploymentID]bool
	unasked   []Unasked
	truncated bool
	// excused are holders that go although the walk did not come to them, and unknown those of which nobody can say it; judge
	// finds both. mindAll: nobody who blocks something here is excused.
	excused, unknown map[PlanTarget]bool
	mindAll          bool
	ask              map[schema.DeploymentID]map[PlanTarget]bool
	// owners are the members that own something in a deployment. It is told of all of them each time, since a
	// resource goes only when all its owners do.
	owners map[schema.DeploymentID][]PlanTarget
}

// walkedMember is a resource that the deletion removes.
type walkedMember struct {
	PlanMember
	at PlanTarget
	// via is the reason that stands for all, after settle; certain says that it follows by cascades alone, and not because it
	// loses its owners.
	via     Via
	certain bool
	placed  bool
	// first: the deletion begins with it.
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

// goes reports whether a resource is removed by the deletion, as far as is known.
func (w *planWalk) goes(t PlanTarget) bool { return w.members[t] != nil || w.excused[t] }

func (w *planWalk) follow(d schema.DeploymentID, t PlanTarget) {
	if w.ask[d] == nil {
		w.ask[d] = map[PlanTarget]bool{}
	}
	w.ask[d][t] = true
}

// begin notes what the deletion begins with.
func (w *planWalk) begin(members []PlanMember) {
	w.take(w.self, members)
	for _, m := range w.members {
		m.first = true
	}
}

// take notes members of one deployment, and who has to be asked because of them.
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

// block notes a blocker. What is certain of it counts more than what may be.
func (w *planWalk) block(b PlanBlocker) {
	key := blockerKey{b.holder(), b.Holder.Path, b.target()}
	if known, ok := w.blockers[key]; ok && !known.Undecided && !known.Unreachable {
		return
	}
	w.blockers[key] = b
}

// answer of one deployment to a question; unasked when there was none.
type answer struct {
	from    schema.DeploymentID
	plan    *Plan
	unasked Unasked
}

// run follows the deletion over all deployments, level by level: those of a level are asked at the same time, and each
// has two thirds of the time that the walk has left, whatever the others take. It is best effort: what changes afterwards, is too
// much, or cannot be asked, is handled when the cascade gets there.
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

// skip notes that a deployment was not asked about all, since the walk has come to its limit.
func (w *planWalk) skip(d schema.DeploymentID) {
	if !w.silent[d] {
		w.unasked = append(w.unasked, Unasked{Deployment: d, Why: LimitReached})
	}
}

// next are the deployments to be asked now: one question at a time each, and none more for those that did not answer.
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

// question to a deployment: what it was not told of yet, and the owners.
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

// level waits until those that have just been asked have answered, and no longer than patience lasts: who is slow delays
// nobody. When only such ones are left, the first of them makes the level.
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

// isZero reports whether a reason is none: the deletion begins there.
func (v Via) isZero() bool { return v.Target.UID == uuid.Nil }
