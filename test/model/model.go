// Package model is the protocol between deployments alone: no database, no connections, no clock. Each
// message and each transaction is one step, and a test chooses the next step, so that thousands of schedules
// are played in a second, and a schedule that breaks an invariant is shortened as far as possible.
//
// It models the pages of docs/protocol.md and not the implementation: the other tests show that the two
// agree.
package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Behaviour of a reference when its target is deleted.
type Behaviour int

// The behaviours.
const (
	Block Behaviour = iota
	Cascade
	Unset
	Keep // blocks until the holder is removed
)

// Blocks reports whether a reference refuses the deletion of its target.
func (b Behaviour) Blocks() bool { return b == Block || b == Keep }

// UID is an incarnation of a resource, never used twice. 0 is none.
type UID int

// Attempt is a write with references elsewhere.
type Attempt int

// Reference of a holder to a target of any deployment.
type Reference struct {
	Behaviour Behaviour
	Home      int // the target's deployment
	Target    UID
	Attempt   Attempt
}

// Resource is a row of a deployment. A resource in DELETING has no references but the ones that it keeps.
type Resource struct {
	UID      UID
	Name     string
	Deleting bool
	Refs     map[string]Reference // by path
	// Finalizer: its holder has to clean up before the resource is removed. It is set when nothing blocks the
	// resource, with the mark or later: until then it is Held.
	Finalizer, Held bool
}

// Key identifies a blockade: holder, field path, attempt, target.
type Key struct {
	Holder  UID
	Path    string
	Target  UID
	Attempt Attempt
}

type blockade struct {
	from      int // the holder's deployment
	behaviour Behaviour
	tentative bool
	expired   bool
	leaving   bool // its holder is in DELETING
	compared  bool // a comparison of its reference has found it
}

// Mistakes that can be planted, to show that the checks find them.
type Mistakes struct {
	ExpiryRemoves, ResolverDoesNotAbort, ReleaseByName, DeletingTakesReferences, TentativeDoesNotCount,
	EntryForgotten, LateConfirmTellsNobody, AcknowledgesEverything, ActsUnconditionally, FinalisesBlocked,
	CommitsAfterAbort, ForgetsReleases, LeftOutIsEstablished, OutcomesAreOfNeighbours,
	FinalisesUncleaned, CleanedByName, DeletingKeepsReferences,
	MarkReleasesKept, LeavingIsGone, CleanUpDoesNotWait, RemovalForgetsKept, ActiveIsLeaving,
	PartialLossIsNotCounted, DroppedAreNotCounted, UnknownIsThrownAway, LostReferencesAreLeft,
	LockedAreAcknowledged, OneLockStopsAll, RepairsWholeHolders bool
}

// deployment is one database.
type deployment struct {
	resources map[UID]*Resource
	blockades map[Key]*blockade
	entries   map[UID]map[int]bool // by target: deployments with acting references
	notices   map[UID]map[int]int  // by target and deployment: the number of the last notice
	decided   map[Attempt]bool     // true: committed
	closed    map[Attempt]bool     // establish nothing any more
	outbox    map[string]message   // owed to others until they answer
	told      int                  // number of the last notice
	watched   map[int]map[UID]bool // by deployment: the deletions that its watch has delivered
	position  map[int]int          // by deployment: the position of its watch
}

// World has all deployments, the messages in flight between them, and the writes in progress.
type World struct {
	Mistakes
	// Finalizers: the resources called y are of a kind with a finalizer.
	Finalizers bool
	// Keeps: all resources are of kinds with finalizers.
	Keeps       bool
	deployments []*deployment
	// rows that transactions of applications hold: a step that needs one runs into its lock timeout
	locked  map[UID]bool
	bag     []message
	writes  []*write
	next    int
	history history
	broken  []string
}

// write is a user's write in progress: a process holds it, and its crash loses it.
type write struct {
	at      int
	holder  UID
	name    string
	refs    map[string]Reference // by path; the targets' uids are filled in by the answers
	targets map[string]string    // by path: the target's name
	attempt Attempt
	waiting map[int]bool // deployments that have not answered
	refused bool
	before  map[string]Reference // the stored references that the write was compared with
	lost    []Key                // of a repair: the references that are established again
}

// New makes a world.
func New(n int, m Mistakes) *World {
	w := &World{Mistakes: m, locked: map[UID]bool{}, history: newHistory()}
	for range n {
		w.deployments = append(w.deployments, &deployment{
			resources: map[UID]*Resource{}, blockades: map[Key]*blockade{}, entries: map[UID]map[int]bool{},
			notices: map[UID]map[int]int{},
			decided: map[Attempt]bool{}, closed: map[Attempt]bool{}, outbox: map[string]message{},
			watched: map[int]map[UID]bool{}, position: map[int]int{},
		})
	}
	return w
}

func (w *World) number() int { w.next++; return w.next }

func (d *deployment) named(name string) *Resource {
	for _, r := range d.resources {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// Write begins a write: by path, the deployment and name of a target. Unchanged references are not written
// again.
func (w *World) Write(at int, name string, refs map[string]Reference, targets map[string]string) {
	d := w.deployments[at]
	wr := &write{
		at: at, name: name, refs: map[string]Reference{}, targets: targets, attempt: Attempt(w.number()),
		waiting: map[int]bool{},
	}
	r := d.named(name)
	switch {
	case r == nil:
		wr.holder = UID(w.number())
	case r.Deleting:
		return
	default:
		wr.holder, wr.before = r.UID, maps.Clone(r.Refs)
	}
	ask := map[int][]request{}
	for path, ref := range refs {
		if old, ok := wr.before[path]; ok && old.Home == ref.Home && old.Behaviour == ref.Behaviour {
			if t := w.deployments[old.Home].resources[old.Target]; t != nil && t.Name == targets[path] {
				wr.refs[path] = old
				continue
			}
		}
		ref.Attempt = wr.attempt
		wr.refs[path] = ref
		if ref.Home == at {
			continue // found in the transaction
		}
		ask[ref.Home] = append(ask[ref.Home], request{path: path, name: targets[path], behaviour: ref.Behaviour})
	}
	w.writes = append(w.writes, wr)
	for home := range ask {
		wr.waiting[home] = true
	}
	for _, home := range slices.Sorted(maps.Keys(ask)) {
		w.send(message{
			kind: establish, from: at, to: home, attempt: wr.attempt, holder: wr.holder,
			requests: ask[home],
		})
	}
}

// Writes returns the number of writes in progress.
func (w *World) Writes() int { return len(w.writes) }

// Commit ends a write: when all its references are established it commits in one transaction, otherwise it is
// aborted.
func (w *World) Commit(i int) {
	wr := w.writes[i]
	w.writes = slices.Delete(w.writes, i, i+1)
	d := w.deployments[wr.at]
	r := d.named(wr.name)
	if wr.lost != nil && !w.RepairsWholeHolders {
		w.renew(wr)
		return
	}
	unchanged := r == nil && wr.before == nil || r != nil && r.UID == wr.holder && !r.Deleting &&
		maps.Equal(r.Refs, wr.before)
	_, decided := d.decided[wr.attempt]
	decided = decided && !w.CommitsAfterAbort
	for path, ref := range wr.refs { // local targets are locked and checked in the transaction
		if ref.Home == wr.at && ref.Attempt == wr.attempt {
			t := d.named(wr.targets[path])
			if t == nil || t.Deleting || t.Name == wr.name {
				wr.refused = true
				continue
			}
			ref.Target = t.UID
			wr.refs[path] = ref
		}
	}
	if len(wr.waiting) > 0 || wr.refused || !unchanged || decided || w.locked[wr.holder] {
		w.callOff(wr)
		return
	}
	d.decided[wr.attempt] = true
	confirms := map[int]int{} // by deployment: the references established there
	for _, path := range slices.Sorted(maps.Keys(wr.before)) {
		old := wr.before[path]
		if current, ok := wr.refs[path]; !ok || current != old {
			w.drop(wr.at, wr.holder, path, old)
		}
	}
	for _, ref := range wr.refs {
		if ref.Attempt == wr.attempt && ref.Home != wr.at {
			confirms[ref.Home]++
		}
	}
	d.resources[wr.holder] = &Resource{UID: wr.holder, Name: wr.name, Refs: wr.refs}
	for _, home := range slices.Sorted(maps.Keys(confirms)) {
		w.owe(message{kind: confirm, from: wr.at, to: home, attempt: wr.attempt, references: confirms[home]})
	}
	w.history.wrote(wr)
}

func (w *World) callOff(wr *write) {
	d := w.deployments[wr.at]
	if committed := d.decided[wr.attempt]; committed {
		return
	}
	d.decided[wr.attempt] = false
	for _, path := range slices.Sorted(maps.Keys(wr.refs)) {
		if ref := wr.refs[path]; ref.Home != wr.at && ref.Attempt == wr.attempt {
			w.owe(message{kind: abandon, from: wr.at, to: ref.Home, attempt: wr.attempt})
		}
	}
}

// Crash loses the writes in progress at a deployment.
func (w *World) Crash(at int) {
	w.writes = slices.DeleteFunc(w.writes, func(wr *write) bool { return wr.at == at })
	d := w.deployments[at]
	d.watched, d.position = map[int]map[UID]bool{}, map[int]int{}
}

// drop removes a reference.
func (w *World) drop(at int, holder UID, path string, ref Reference) {
	if ref.Home != at && ref.Behaviour.Blocks() && !w.ForgetsReleases {
		w.owe(message{kind: release, from: at, to: ref.Home, keys: []Key{{holder, path, ref.Target, ref.Attempt}}})
	}
}

// Delete deletes a resource with the cascades inside its deployment, unless a holder blocks it. Undecided
// references count as live.
func (w *World) Delete(at int, name string) bool {
	d := w.deployments[at]
	r := d.named(name)
	if r == nil || r.Deleting {
		return false
	}
	goes := d.closure(r.UID)
	for uid := range goes {
		if w.locked[uid] || d.isBlocked(uid, goes, w.TentativeDoesNotCount) {
			return false
		}
	}
	w.history.deleted[r.UID] = true
	for _, uid := range slices.Sorted(maps.Keys(goes)) {
		w.mark(at, uid)
	}
	w.finalise(at)
	return true
}

// closure returns the members of a deletion inside its deployment.
func (d *deployment) closure(root UID) map[UID]bool {
	goes := map[UID]bool{root: true}
	for more := true; more; {
		more = false
		for uid, r := range d.resources {
			for _, ref := range r.Refs {
				if ref.Behaviour == Cascade && goes[ref.Target] && !goes[uid] && !r.Deleting {
					goes[uid], more = true, true
				}
			}
		}
	}
	return goes
}

// isBlocked reports whether a holder outside the closure blocks a resource. A holder in DELETING refuses no
// deletion; without a closure, it blocks as well.
func (d *deployment) isBlocked(uid UID, goes map[UID]bool, confirmedOnly bool) bool {
	for k, b := range d.blockades {
		if k.Target == uid && (!confirmedOnly || !b.tentative) && (goes == nil || !b.leaving) {
			return true
		}
	}
	for holder, r := range d.resources {
		for _, ref := range r.Refs {
			if ref.Target == uid && ref.Behaviour.Blocks() && !goes[holder] && (goes == nil || !r.Deleting) {
				return true
			}
		}
	}
	return false
}

// mark sets a resource to DELETING: it drops its references, local holders are handled at once, and the
// deployments of others get notices.
func (w *World) mark(at int, uid UID) {
	d := w.deployments[at]
	r := d.resources[uid]
	if r == nil || r.Deleting {
		return
	}
	w.history.went(r)
	if r.Deleting, r.Held = true, w.needsCleaning(r.Name); !r.Held || !w.DeletingKeepsReferences {
		for _, path := range slices.Sorted(maps.Keys(r.Refs)) {
			if ref := r.Refs[path]; ref.Behaviour != Keep || w.MarkReleasesKept {
				w.drop(at, uid, path, ref)
				delete(r.Refs, path)
			}
		}
	}
	if w.CleanUpDoesNotWait {
		r.Held, r.Finalizer = false, r.Held
	}
	for _, to := range slices.Sorted(maps.Keys(d.entries[uid])) {
		d.tell(uid, to)
	}
	for _, holder := range slices.Sorted(maps.Keys(d.resources)) {
		h := d.resources[holder]
		for _, path := range slices.Sorted(maps.Keys(h.Refs)) {
			switch ref := h.Refs[path]; {
			case ref.Target != uid:
			case ref.Behaviour == Cascade:
				w.mark(at, holder)
			case ref.Behaviour == Unset:
				delete(h.Refs, path)
			}
		}
	}
}

func (d *deployment) tell(uid UID, to int) {
	d.told++
	if d.notices[uid] == nil {
		d.notices[uid] = map[int]int{}
	}
	d.notices[uid][to] = d.told
}

// finalise removes the resources in DELETING that wait for nothing, and lets the clean-up of others begin.
func (w *World) finalise(at int) {
	for w.look(at) {
	}
}

// look looks once at each resource in DELETING, and reports whether one is removed.
func (w *World) look(at int) (removed bool) {
	d := w.deployments[at]
	for _, uid := range slices.Sorted(maps.Keys(d.resources)) {
		r := d.resources[uid]
		blocked := d.isBlocked(uid, nil, false) && !w.FinalisesBlocked
		if r.Deleting && r.Held && !blocked && !w.locked[uid] {
			r.Held, r.Finalizer = false, true
		}
		if !r.Deleting || w.locked[uid] || len(d.notices[uid]) > 0 || (r.Finalizer || r.Held) &&
			!w.FinalisesUncleaned || blocked {
			continue
		}
		if w.history.removed(uid); w.needsCleaning(r.Name) && !w.history.cleaned[uid] {
			w.report("I33: %s at %d was removed, and nobody had cleaned up", r.Name, at)
		}
		for _, path := range slices.Sorted(maps.Keys(r.Refs)) {
			if !w.RemovalForgetsKept {
				w.drop(at, uid, path, r.Refs[path])
			}
		}
		removed = true
		delete(d.resources, uid)
		delete(d.entries, uid)
		delete(d.notices, uid)
		for k := range d.blockades {
			if k.Target == uid {
				delete(d.blockades, k)
			}
		}
	}
	return removed
}

// needsCleaning reports whether a resource of this name has a finalizer.
func (w *World) needsCleaning(name string) bool { return w.Finalizers && name == "y" || w.Keeps }

// Clean lets the holder of the finalizer clean up after the resources that it sees in DELETING, and report
// that. It may lose its report in a crash: then it cleans up again.
func (w *World) Clean(at int) {
	d := w.deployments[at]
	for _, uid := range slices.Sorted(maps.Keys(d.resources)) {
		if r := d.resources[uid]; r.Finalizer {
			w.checkKept(uid)
			w.history.cleaned[uid] = true
			w.send(message{kind: cleaned, from: at, to: at, holder: uid, name: r.Name})
		}
	}
}

// Ask asks the holders' deployments about all blockades at a deployment.
func (w *World) Ask(at int) {
	asks := map[int][]Key{}
	for k, b := range w.deployments[at].blockades {
		asks[b.from] = append(asks[b.from], k)
	}
	for _, holder := range slices.Sorted(maps.Keys(asks)) {
		w.send(message{kind: resolve, from: at, to: holder, keys: sorted(asks[holder])})
	}
}

// Expire lets all tentative blockades at a deployment expire. That removes none: their holders' deployments
// are asked.
func (w *World) Expire(at int) {
	d := w.deployments[at]
	asks := map[int][]Key{}
	for k, b := range d.blockades {
		if !b.tentative {
			continue
		}
		if w.ExpiryRemoves {
			delete(d.blockades, k)
			continue
		}
		b.expired = true
		asks[b.from] = append(asks[b.from], k)
	}
	for _, holder := range slices.Sorted(maps.Keys(asks)) {
		w.send(message{kind: resolve, from: at, to: holder, keys: sorted(asks[holder])})
	}
	w.finalise(at)
}

// Send sends again all messages that a deployment owes, and its deletions to the watching deployments.
func (w *World) Send(at int) {
	d := w.deployments[at]
	for _, k := range slices.Sorted(maps.Keys(d.outbox)) {
		w.send(w.counted(d.outbox[k]))
	}
	for to := range w.deployments {
		snapshot := map[UID]bool{}
		for uid, by := range d.notices {
			if _, ok := by[to]; ok {
				snapshot[uid] = true
			}
		}
		if len(snapshot) > 0 {
			w.send(message{kind: deletions, from: at, to: to, deletions: snapshot, position: d.told})
		}
	}
}

// Act lets a deployment act upon the deletions that it has received from another, and acknowledge them. A
// holder that an application has locked is passed over, and its deletion is excepted from the
// acknowledgement.
func (w *World) Act(at, from int) {
	d := w.deployments[at]
	excepted := map[UID]bool{}
	for _, uid := range slices.Sorted(maps.Keys(d.watched[from])) {
		locked := false
		for holder := range d.actions(from, uid) {
			locked = locked || w.isLocked(at, holder)
		}
		if locked && !w.LockedAreAcknowledged {
			excepted[uid] = true
		}
		if !locked || !w.OneLockStopsAll {
			w.actUpon(at, from, uid)
		}
	}
	if d.position[from] > 0 {
		w.send(message{kind: acknowledge, from: at, to: from, position: d.position[from], deletions: excepted})
	}
	w.finalise(at) // deletions stay, and are acted upon again, until the watch delivers newer ones
}

// isLocked reports whether an application has locked a resource, or a resource that cascades with it inside
// its deployment.
func (w *World) isLocked(at int, uid UID) bool {
	if len(w.locked) == 0 {
		return false
	}
	for member := range w.deployments[at].closure(uid) {
		if w.locked[member] {
			return true
		}
	}
	return false
}

// actions returns the holders of a deleted resource that are cascaded or unset with it.
func (d *deployment) actions(from int, target UID) map[UID]bool {
	holders := map[UID]bool{}
	for holder, r := range d.resources {
		for _, ref := range r.Refs {
			if ref.Home == from && ref.Target == target && !ref.Behaviour.Blocks() {
				holders[holder] = true
			}
		}
	}
	return holders
}

func (w *World) actUpon(at, from int, target UID) {
	d := w.deployments[at]
	matches := func(ref Reference) bool { return ref.Home == from && ref.Target == target }
	for _, holder := range slices.Sorted(maps.Keys(d.resources)) {
		if w.isLocked(at, holder) {
			continue
		}
		r := d.resources[holder]
		for _, path := range slices.Sorted(maps.Keys(r.Refs)) {
			ref := r.Refs[path]
			blindly := w.ActsUnconditionally && ref.Home == from && ref.Behaviour == Cascade
			switch {
			case !matches(ref) && !blindly:
			case ref.Behaviour == Cascade:
				w.mark(at, holder)
			case ref.Behaviour == Unset:
				delete(r.Refs, path)
			}
		}
	}
}

func sorted(keys []Key) []Key {
	slices.SortFunc(keys, Key.compare)
	return keys
}

func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Target, other.Target), cmp.Compare(k.Holder, other.Holder),
		cmp.Compare(k.Attempt, other.Attempt), cmp.Compare(k.Path, other.Path))
}

func (w *World) report(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}
