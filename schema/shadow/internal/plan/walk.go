package plan

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// maxAsking is the number of deployments that are asked at the same time.
const maxAsking = 32

// maxPatience is the time for which a level waits for slow deployments. Their calls go on; the answers join a
// later level.
const maxPatience = time.Second

// Walk is the result of a walk over all deployments. It does not depend on the order in which they answered.
type Walk struct {
	self     schema.DeploymentID
	peers    peer.Planner
	detailed bool
	members  map[peer.PlanTarget]*walkedMember
	// order are the members, after settle.
	order    []*walkedMember
	unsets   map[unsetKey]walkedUnset
	blockers map[blockerKey]peer.PlanBlocker
	// silent are the deployments that did not answer; unasked are these and the deployments that the walk did
	// not reach.
	silent map[schema.DeploymentID]bool
	// asked are the deployments that were asked at least once.
	asked     map[schema.DeploymentID]bool
	beyond    map[schema.DeploymentID]*beyond
	Unasked   []peer.Unasked
	Truncated bool
	// Uncounted: a deployment could not count the members and unsets that its answer leaves out.
	Uncounted bool
	// NameLeaves: each member is named. Otherwise deployments may count members that concern no other
	// deployment: they matter only when a blocker of the deletion may go along with it.
	NameLeaves bool
	counted    map[schema.DeploymentID]*leaves
	// excused are holders that the deletion removes although the walk did not reach them; for the holders in
	// Unknown that could not be determined. Judge fills both. MindAll: no blocker of a member here is
	// excused.
	excused, Unknown map[peer.PlanTarget]bool
	MindAll          bool
	// Strict, of an atomic deletion: each blocker of a member refuses, also of one that may keep an owner,
	// and none may be undecided.
	Strict bool
	// NotAtomic is the reason why an atomic deletion cannot be one; empty: it can.
	NotAtomic string
	ask       map[schema.DeploymentID]map[peer.PlanTarget]bool
	// owners are by deployment the members that own resources there. Each question names all of them, since
	// an ownee is deleted only when all its owners are.
	owners map[schema.DeploymentID][]peer.PlanTarget
}

// walkedMember is a resource that the deletion removes.
type walkedMember struct {
	peer.PlanMember
	at peer.PlanTarget
	// via is one reason out of Vias, chosen by settle; certain reports that cascades alone lead to the
	// member, and no loss of owners.
	via     peer.Via
	certain bool
	placed  bool
	// first reports that the deletion starts with it.
	first bool
}

type walkedUnset struct {
	peer.PlanUnset
	deployment schema.DeploymentID
}

// leaves are the members that one deployment has only counted: the greatest number, since its answers may
// count the same ones, and the targets with which they go.
type leaves struct {
	number int
	with   []peer.PlanTarget
}

type unsetKey struct {
	holder peer.PlanTarget
	path   string
	target peer.PlanTarget
}

type blockerKey struct {
	holder peer.PlanTarget
	path   string
	target peer.PlanTarget
}

// NewWalk returns a walk that has no members yet. A detailed one asks detailed questions (peer.PlanQuestion).
func NewWalk(self schema.DeploymentID, peers peer.Planner, detailed bool) *Walk {
	return &Walk{
		self: self, peers: peers, detailed: detailed, members: map[peer.PlanTarget]*walkedMember{},
		unsets: map[unsetKey]walkedUnset{}, blockers: map[blockerKey]peer.PlanBlocker{},
		silent: map[schema.DeploymentID]bool{}, asked: map[schema.DeploymentID]bool{},
		beyond:  map[schema.DeploymentID]*beyond{},
		excused: map[peer.PlanTarget]bool{}, Unknown: map[peer.PlanTarget]bool{},
		counted: map[schema.DeploymentID]*leaves{},
		ask:     map[schema.DeploymentID]map[peer.PlanTarget]bool{},
		owners:  map[schema.DeploymentID][]peer.PlanTarget{},
	}
}

// Follow makes the walk ask a deployment for the effects of the deletion of a resource.
func (w *Walk) Follow(d schema.DeploymentID, t peer.PlanTarget) {
	if w.ask[d] == nil {
		w.ask[d] = map[peer.PlanTarget]bool{}
	}
	w.ask[d][t] = true
}

// Begin adds the members with which the deletion starts.
func (w *Walk) Begin(members []peer.PlanMember) {
	w.take(w.self, members)
	for _, m := range w.members {
		m.first = true
	}
}

// take adds members of one deployment, and the deployments that have to be asked because of them.
func (w *Walk) take(d schema.DeploymentID, members []peer.PlanMember) {
	for _, m := range members {
		t := peer.PlanTarget{Deployment: d, UID: m.UID}
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
			w.Follow(e, t)
		}
		for _, o := range m.Ownees {
			w.Follow(o, t)
			w.owners[o] = append(w.owners[o], t)
		}
	}
}

func (w *Walk) takePlan(d schema.DeploymentID, plan *peer.Plan) {
	w.Truncated, w.Uncounted = w.Truncated || plan.Truncated, w.Uncounted || plan.Uncounted
	w.takeCounts(d, plan)
	if plan.NotAtomic != "" {
		w.NotAtomic = d.String() + ": " + plan.NotAtomic
	}
	for _, b := range plan.Blockers {
		b.Holder.Target.Deployment = d
		w.Block(b)
	}
	for _, u := range plan.Unsets {
		w.unsets[unsetKey{peer.PlanTarget{Deployment: d, UID: u.UID}, u.Via.Path, u.Via.Target}] = walkedUnset{u, d}
	}
	w.take(d, plan.Members)
}

// takeCounts keeps the greatest counts of a deployment: its answers may count the same references.
func (w *Walk) takeCounts(d schema.DeploymentID, plan *peer.Plan) {
	if !plan.Truncated && !plan.MoreUnsets {
		return
	}
	b := w.beyond[d]
	if b == nil {
		b = &beyond{counts: map[countKey]int{}}
		w.beyond[d] = b
	}
	b.holders, b.unsets = max(b.holders, plan.Holders), b.unsets || plan.MoreUnsets
	for _, c := range plan.Counts {
		k := countKey{c.Path, c.Behaviour}
		b.counts[k] = max(b.counts[k], c.Count)
	}
}

// Block adds a blocker. A confirmed one replaces an undecided or unreachable one, and is not replaced.
func (w *Walk) Block(b peer.PlanBlocker) {
	key := blockerKey{b.HolderResource(), b.Holder.Path, b.Target()}
	if known, ok := w.blockers[key]; ok && !known.Undecided && !known.Unreachable {
		return
	}
	w.blockers[key] = b
}

// answer is one deployment's plan of the deletion of targets, or unasked when it sent none.
type answer struct {
	from    schema.DeploymentID
	targets []peer.PlanTarget
	plan    *peer.Plan
	unasked peer.Unasked
}

// Run follows the deletion over all deployments, level by level. The deployments of a level are asked
// concurrently; each call has two thirds of the time that the walk has left. The result is best effort:
// resources that change afterwards, exceed the limit or belong to unreachable deployments are handled when
// the cascade reaches them. At its limit a detailed walk asks the deployments that were not asked yet, and
// waits for all answers: they have counts.
func (w *Walk) Run(parent context.Context) error {
	ctx, cancel := peer.InPart(parent, 3, 4)
	defer cancel()
	answers := make(chan answer, maxAsking)
	asking := map[schema.DeploymentID]bool{}
	for {
		full := w.Size() >= peer.PlanLimit
		if full && !w.detailed {
			break
		}
		fresh := w.next(asking, full)
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
	w.Truncated = w.Truncated || w.Size() >= peer.PlanLimit
	cancel()
	for range asking {
		a := <-answers
		w.skip(a.from)
	}
	for d := range w.ask {
		w.skip(d)
	}
	w.Unasked = peer.SortUnasked(w.Unasked)
	w.settle()
	return parent.Err()
}

// Size is the number of members. With Truncated there may be more.
func (w *Walk) Size() int {
	n := len(w.members)
	for _, c := range w.counted {
		n += c.number
	}
	return n
}

// AskForNames makes the next Run ask again, for names, the deployments that have only counted members. It
// reports whether that matters: the holder of a blocker can be one of them.
func (w *Walk) AskForNames() bool {
	if w.NameLeaves = true; len(w.blockers) == 0 {
		return false
	}
	again := false
	for d, c := range w.counted {
		for _, t := range c.with {
			again = true
			w.Follow(d, t)
		}
	}
	clear(w.counted)
	return again
}

// skip records that a deployment was not asked about all targets, because the walk has reached its limit.
func (w *Walk) skip(d schema.DeploymentID) {
	if !w.silent[d] {
		w.Unasked = append(w.Unasked, peer.Unasked{Deployment: d, Why: peer.LimitReached})
	}
}

// next returns the deployments to ask now: each has one question in flight, and silent ones are not asked
// again. A full walk asks each deployment once.
func (w *Walk) next(asking map[schema.DeploymentID]bool, full bool) map[schema.DeploymentID]bool {
	fresh := map[schema.DeploymentID]bool{}
	for d := range w.ask {
		switch {
		case w.silent[d]:
			delete(w.ask, d)
		case full && w.asked[d]:
		case !asking[d] && len(asking)+len(fresh) < maxAsking:
			fresh[d] = true
		}
	}
	return fresh
}

// question returns the next question to a deployment: the targets that it was not asked about yet, and the
// owners.
func (w *Walk) question(d schema.DeploymentID) peer.PlanQuestion {
	targets := w.ask[d]
	delete(w.ask, d)
	w.asked[d] = true
	for _, o := range w.owners[d] {
		targets[o] = true
	}
	q := peer.PlanQuestion{
		Limit: max(1, peer.PlanLimit-w.Size()), Detailed: w.detailed, Compact: !w.detailed,
		CountLeaves: !w.detailed && !w.NameLeaves,
	}
	for t := range targets {
		q.Targets = append(q.Targets, t)
	}
	slices.SortFunc(q.Targets, compareTargets)
	return q
}

func compareTargets(a, b peer.PlanTarget) int {
	return cmp.Or(peer.CompareDeployments(a.Deployment, b.Deployment), slices.Compare(a.UID[:], b.UID[:]))
}

func (w *Walk) askOne(ctx context.Context, at schema.DeploymentID, q peer.PlanQuestion, to chan<- answer) {
	began := time.Now()
	if ctx.Err() != nil {
		to <- answer{from: at, unasked: peer.Unasked{Deployment: at, Why: peer.TimedOut}}
		return
	}
	ctx, cancel := peer.InPart(ctx, 2, 3)
	defer cancel()
	plan, err := w.peers.Plan(ctx, at, q)
	if err != nil {
		to <- answer{from: at, unasked: peer.NotAsked(ctx, at, began, err)}
		return
	}
	to <- answer{from: at, targets: q.Targets, plan: plan}
}

// level waits for the answers of the deployments in fresh, until maxPatience or a sixth of the remaining time
// has passed, so that a slow deployment delays no other. When only slow ones are left, it returns with the
// first answer.
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
	slices.SortFunc(out, func(a, b answer) int { return peer.CompareDeployments(a.from, b.from) })
	return out
}

func (w *Walk) takeAnswer(a answer) {
	if a.plan == nil {
		w.silent[a.from] = true
		w.Unasked = append(w.Unasked, a.unasked)
		return
	}
	if a.plan.Leaves > 0 {
		c := w.counted[a.from]
		if c == nil {
			c = &leaves{}
			w.counted[a.from] = c
		}
		c.number, c.with = max(c.number, a.plan.Leaves), append(c.with, a.targets...)
	}
	w.takePlan(a.from, a.plan)
}

// follows is a member with one of its reasons, indexed by the target of the reason.
type follows struct {
	member *walkedMember
	via    peer.Via
}

// settle builds the tree of members: it chooses for each member the reason on the shortest path from the root
// of the deletion, by cascades alone where there is such a path, otherwise also by owners. So the tree
// depends on the references alone, and not on the order of answers.
func (w *Walk) settle() {
	w.order = nil
	children := map[peer.PlanTarget][]follows{}
	begin := map[*walkedMember]place{}
	for _, m := range w.members {
		m.placed, m.certain, m.via = false, false, peer.Via{}
		if m.first {
			begin[m] = place{}
		}
		for _, via := range m.Vias {
			children[via.Target] = append(children[via.Target], follows{m, via})
		}
	}
	w.put(begin, true)
	w.spread(children, true)
	w.spread(children, false)
}

// place is a possible position of a member: the index of its parent in walked.order, and the reason.
type place struct {
	parent int
	via    peer.Via
}

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.parent, o.parent), strings.Compare(p.via.Path, o.via.Path),
		cmp.Compare(p.via.Behaviour, o.via.Behaviour))
}

// spread places the children of placed members, level by level. With certain it follows cascades only.
func (w *Walk) spread(children map[peer.PlanTarget][]follows, certain bool) {
	for from := 0; from < len(w.order); {
		found := map[*walkedMember]place{}
		for i, m := range w.order[from:] {
			for _, f := range children[m.at] {
				at := place{from + i, f.via}
				if f.member.placed || certain && f.via.Path == peer.OwnerPath {
					continue
				}
				if before, ok := found[f.member]; !ok || at.compare(before) < 0 {
					found[f.member] = at
				}
			}
		}
		from = len(w.order)
		w.put(found, certain)
	}
}

// put appends the members of one level, sorted.
func (w *Walk) put(found map[*walkedMember]place, certain bool) {
	level := make([]*walkedMember, 0, len(found))
	for m := range found {
		level = append(level, m)
	}
	slices.SortFunc(level, func(a, b *walkedMember) int {
		return cmp.Or(found[a].compare(found[b]), peer.CompareDeployments(a.at.Deployment, b.at.Deployment),
			strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name), compareTargets(a.at, b.at))
	})
	for _, m := range level {
		m.placed, m.certain, m.via = true, certain, found[m].via
	}
	w.order = append(w.order, level...)
}
