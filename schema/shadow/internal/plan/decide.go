// Package plan decides about deletions, on values alone: Decide inside one database, Walk over all
// deployments, Judge and Refusal on the blockers that the walk found.
package plan

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// Member is a resource that a deletion removes or marks: its root, or a resource that cascades with it inside
// this database. Its shadow is locked FOR UPDATE, so that no new reference to it can commit and the existing
// ones can be read.
type Member struct {
	ID    int64
	UID   uuid.UUID
	Kind  int32
	Name  string
	State peer.State
	Shard int16
	// Hidden: in DELETING, or in a scheduled deletion, and seen as gone by readers.
	Hidden bool
	// Protected: block_deletion is set.
	Protected bool
	// Later: it has local holders that act after this transaction.
	Later bool
	// Rowless: it was the row of an attached table, which is deleted already.
	Rowless bool
	// Frozen: an atomic deletion may have frozen it, this one or another one.
	Frozen bool
	Why    Reason
}

// Edge is a local reference to a member.
type Edge struct {
	TargetID  int64
	HolderID  int64
	FieldID   int32
	Behaviour schema.Behaviour
}

// Outsider is a local holder that blocks a member and is not a member.
type Outsider struct {
	Edge
	UID  uuid.UUID
	Name string
}

// Closure has all resources that a deletion reaches inside this database in one transaction.
type Closure struct {
	Members map[int64]*Member
	Unsets  []Edge     // their holders are locked; some may turn out to be members
	Blocks  []Outsider // holders that are no members, the first MaxBlockers of them
	// Blocked are members that an ACTIVE holder blocks, a later member or not: they are marked, not removed.
	Blocked []int64
	// Kept are references between members that their holders keep while they are in DELETING.
	Kept []KeptReference
	// Dangling reports that references with ALLOW_DANGLING to members exist.
	Dangling bool
}

// KeptReference is a local reference whose holder keeps it until the holder is removed.
type KeptReference struct{ TargetID, HolderID int64 }

// MaxBlockers is the number of local blockers that are read. A look-ahead may excuse each of them; a blocker
// that is not excused refuses the delete.
const MaxBlockers = peer.PlanLimit

// Reason is the reason for which a deletion removes a member of its closure.
type Reason struct {
	How   peer.How
	Cause *schema.Cause
	// Via is the removed target or owner; nil for the root.
	Via *Link
}

// Link identifies a removed target or owner.
type Link struct {
	DeploymentID int32
	UID          uuid.UUID
	Name         string
}

// Bonds are the members of a closure with rows of other deployments.
type Bonds struct {
	// Blockaded have a blockade, confirmed, or tentative of any behaviour: undecided attempts count as
	// committed (I3).
	Blockaded []int64
	// Entered have a holder entry: another deployment has to act.
	Entered []int64
	// Owns have ownee entries: other deployments have to drop them as owners.
	Owns []int64
	// Finalizers of kinds: their holders have to clean up before a resource of the kind is removed.
	Finalizers map[int32][]string
	// Kept are fields by kinds: resources in DELETING keep references by them until they are removed.
	Kept map[int32][]int32
}

// Verdict is the decision on a closure.
type Verdict struct {
	Remove []int64 // members that wait for nothing
	Mark   []int64 // members that become DELETING until others have acted or released them
	// Notify are the members of Mark with local holders that act asynchronously: this deployment gets a
	// notice too.
	Notify []int64
	// Visible are the members of Mark with blockers, block_deletion or finalizers: readers still see them,
	// also when their kind hides resources in DELETING.
	Visible []int64
	// Held are the members of Mark with blockers or block_deletion: they get their finalizers when nothing
	// blocks them any more.
	Held  []int64
	Unset []Edge // sorted by holder and field
	// Blocks and Blockaded have blockers outside the closure. A user's delete is refused for them; a cascade
	// waits.
	Blocks    []Outsider
	Blockaded []int64
	// Protected are members that no delete takes (block_deletion).
	Protected []*Member
}

// Decide divides a closure into members to remove now and members that have to wait. It follows the rule of
// NO ACTION DEFERRABLE INITIALLY DEFERRED in one PostgreSQL: references count after all cascades, so that a
// holder which is a member itself blocks nothing.
func Decide(c *Closure, b Bonds) Verdict {
	v := Verdict{Blockaded: b.Blockaded, Blocks: c.Blocks}
	waits, held := map[int64]bool{}, map[int64]bool{}
	for _, ids := range [][]int64{b.Blockaded, c.Blocked} {
		for _, id := range ids {
			waits[id], held[id] = true, true
		}
	}
	for _, ids := range [][]int64{b.Entered, b.Owns} {
		for _, id := range ids {
			waits[id] = true
		}
	}
	c.waitForHolders(b, waits, held)
	for _, e := range c.Unsets {
		if c.Members[e.HolderID] == nil {
			v.Unset = append(v.Unset, e)
		}
	}
	slices.SortFunc(v.Unset, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.HolderID, b.HolderID), cmp.Compare(a.FieldID, b.FieldID))
	})
	for _, id := range slices.Sorted(maps.Keys(c.Members)) {
		m := c.Members[id]
		if m.Protected {
			v.Protected = append(v.Protected, m)
		}
		cleaned := len(b.Finalizers[m.Kind]) > 0
		if (held[id] || m.Protected || cleaned) && !m.Rowless {
			v.Visible = append(v.Visible, id)
		}
		if (held[id] || m.Protected) && cleaned {
			v.Held = append(v.Held, id)
		}
		switch {
		case m.Later:
			v.Mark, v.Notify = append(v.Mark, id), append(v.Notify, id)
		case m.waits(b, waits):
			v.Mark = append(v.Mark, id)
		default:
			v.Remove = append(v.Remove, id)
		}
	}
	return v
}

// waits reports whether a member is marked, and not removed.
func (m *Member) waits(b Bonds, waits map[int64]bool) bool {
	return m.Later || waits[m.ID] || m.Protected || len(b.Finalizers[m.Kind]) > 0
}

// waitForHolders adds the members that wait for a holder which is marked, and keeps its reference until it is
// removed.
func (c *Closure) waitForHolders(b Bonds, waits, held map[int64]bool) {
	of := map[int64][]int64{}
	var marked []int64
	for _, k := range c.Kept {
		if of[k.HolderID] == nil && c.Members[k.HolderID].waits(b, waits) {
			marked = append(marked, k.HolderID)
		}
		of[k.HolderID] = append(of[k.HolderID], k.TargetID)
	}
	for len(marked) > 0 {
		holder := marked[0]
		marked = marked[1:]
		for _, target := range of[holder] {
			if !c.Members[target].waits(b, waits) {
				marked = append(marked, target)
			}
			waits[target], held[target] = true, true
		}
	}
}

// MaxTraced is the maximum number of resources that a delete traces in order to judge blockers.
const MaxTraced = 50_000

// Judge decides, after an incomplete walk (it reached its limit, or a deployment did not answer), which of
// the holders of blockers, and which of some others, the deletion removes too: it traces them upwards until
// it finds a member. A holder is unknown when a deployment on its way does not answer, or the limit of traces
// is reached; an unknown holder is neither excused nor a known blocker.
func (w *Walk) Judge(ctx context.Context, others []peer.PlanTarget) error {
	if !w.Truncated && len(w.Unasked) == 0 {
		return nil // the walk was complete
	}
	holders := append(w.holders(), others...)
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

// holders returns the holders of the blockers.
func (w *Walk) holders() []peer.PlanTarget {
	var out []peer.PlanTarget
	for _, b := range w.InOrder() {
		out = append(out, b.HolderResource())
	}
	return out
}

// Refuses reports whether a blocker outside the deletion refuses it. A blocker of a member that is only
// collected refuses nothing: that member waits for it.
func (w *Walk) Refuses(b peer.PlanBlocker) bool {
	if m := w.members[b.Target()]; m != nil && !m.certain && !w.Strict {
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
		return cmp.Or(strings.Compare(a.Holder.Name.String(), b.Holder.Name.String()),
			strings.Compare(a.Holder.Path, b.Holder.Path),
			strings.Compare(a.Holder.Target.String(), b.Holder.Target.String()), compareTargets(a.Target(), b.Target()),
			compareTargets(a.HolderResource(), b.HolderResource()))
	})
	return out
}

// Refusal returns the error of a delete with blockers, with members that have block_deletion, or with
// blockers about which no deployment could answer. Plans and deletes share it.
func (w *Walk) Refusal(name string) error {
	protected := &peer.ProtectedError{Name: name}
	for _, m := range w.order {
		if m.BlockDeletion && (m.certain || w.Strict) {
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
		undecided := b.Undecided && !w.Strict && (!b.Unreachable || b.Holder.Target.Deployment != w.self)
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

// remedy names the command that releases the blockers that a silent deployment has never confirmed.
func (w *Walk) remedy(by []peer.PlanBlocker) string {
	for _, b := range by {
		if b.Unconfirmed && b.Unreachable {
			return fmt.Sprintf(
				". %s has never confirmed this reference: if it does not come back, an operator releases all such references by "+
					"db-controller force-release %s --unconfirmed-of %[1]s", b.Holder.Name.Deployment, w.self)
		}
	}
	return ""
}

// unavailable is the error of a delete of which only unknown blockers are left: it is not known whether they
// still refer, or are removed as well. It names the deployments that did not answer (I13).
func (w *Walk) unavailable(name string, by []peer.PlanBlocker) error {
	e := &peer.UnavailableError{Unasked: slices.Clone(w.Unasked)}
	for _, b := range by {
		silent := func(u peer.Unasked) bool { return u.Deployment == b.Holder.Name.Deployment }
		if b.Unreachable && !slices.ContainsFunc(e.Unasked, silent) { // another deployment could not ask it
			e.Unasked = append(e.Unasked, peer.Unasked{
				Deployment: b.Holder.Name.Deployment, Why: peer.Unreachable, Detail: "it did not answer " +
					b.Holder.Target.Deployment.String(),
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
	return fmt.Errorf(
		"%s cannot be deleted for now: it is unknown whether %s (%s)%s refers to %s, or would be deleted as well: %w%s",
		name, by[0].Holder.Name, by[0].Holder.Path, more, by[0].Holder.Target, e, w.remedy(by))
}
