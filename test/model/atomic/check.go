package atomic

import (
	"fmt"
	"slices"
)

// byOperator excuses a deletion from A5 as well.
const byOperator = "an operator"

// bystander sees all databases. It holds what the invariants speak of.
type bystander struct {
	outcome  map[ID]string
	members  map[ID]map[UID]bool // at the decision
	reached  map[ID]map[int]bool // where a freeze was accepted
	excused  map[ID]string       // A1 is void, and why
	forsaken map[ID]bool         // the coordinator has lost the decision
	seen     map[string]int
	trace    []line
	broken   []string
}

// line of a trace is formatted when it is shown.
type line struct {
	format string
	args   []any
}

func (l line) String() string { return fmt.Sprintf(l.format, l.args...) }

func newBystander() bystander {
	return bystander{
		outcome: map[ID]string{}, members: map[ID]map[UID]bool{}, reached: map[ID]map[int]bool{},
		excused: map[ID]string{}, forsaken: map[ID]bool{}, seen: map[string]int{},
	}
}

func (w *World) report(format string, args ...any) {
	w.note("!! "+format, args...)
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

func (w *World) count(what string) { w.seen[what]++ }

func (w *World) void(id ID, why string) {
	w.note("A1 is void for %d: %s", id, why)
	if w.excused[id] != byOperator {
		w.excused[id] = why
	}
}

func (w *World) reach(id ID, x int) {
	if w.reached[id] == nil {
		w.reached[id] = map[int]bool{}
	}
	w.reached[id][x] = true
}

// restored notes which deletions a restore excuses: those that are committed and not done, and those whose
// decision is lost.
func (w *World) restored(d int) {
	w.count("restored")
	for _, id := range sorted(w.begun) {
		if w.outcome[id] == "committed" && w.reached[id][d] && !w.gone(id) {
			w.void(id, "a restore after the decision")
		}
		if r := w.db[d].records[id]; w.begun[id].at == d && (w.outcome[id] == "committed" && !r.committed &&
			(r.scheduled || w.db[d].forgotten < id) || w.outcome[id] == "aborted" && r.scheduled) {
			w.forsaken[id] = true
		}
	}
}

// gone reports whether all members of a committed deletion are removed.
func (w *World) gone(id ID) bool {
	for uid := range w.members[id] {
		if _, exists := w.db[w.home[uid]].resources[uid]; exists {
			return false
		}
	}
	return true
}

// broughtBack notes that the comparison of d has established a reference to a frozen or marked resource. It
// excuses no freeze that has not waited for it.
func (w *World) broughtBack(d, a int, to UID) {
	for _, id := range sorted(w.db[a].rows[to]) {
		if d != a || w.db[a].rows[to][id].own != w.db[a].epoch {
			w.count("brought back")
			w.void(id, "a comparison")
		}
	}
	for id := range w.members {
		if w.members[id][to] {
			w.void(id, "a comparison")
		}
	}
}

func (w *World) lostDeployment(d int) {
	for _, id := range sorted(w.begun) {
		if w.begun[id].at == d {
			delete(w.processes, id)
		}
		if w.begun[id].at == d || w.outcome[id] == "committed" && w.reached[id][d] && !w.gone(id) {
			w.void(id, "a decommissioned deployment")
		}
	}
}

// committed checks A1 at the decision: exactly the closure of the root is frozen, and nothing outside blocks
// it.
func (w *World) committed(p *process) {
	w.count("committed")
	w.note("%d is committed", p.id)
	w.decides(p.id, "committed")
	closure, frozen := w.wholeClosure(p), map[UID]bool{}
	for _, x := range w.there() {
		for _, uid := range w.db[x].frozenBy(p.id) {
			frozen[uid] = true
		}
	}
	for x := range w.reached[p.id] {
		if w.unknown(p, x) {
			w.void(p.id, "a fault that the coordinator does not know")
		}
	}
	w.members[p.id] = map[UID]bool{}
	for _, uid := range append(closure, sorted(frozen)...) {
		w.members[p.id][uid] = true
	}
	if len(w.reached[p.id]) > 1 {
		w.count("committed by several")
	}
	if w.excused[p.id] != "" {
		return
	}
	for _, uid := range closure {
		if !frozen[uid] {
			w.report("A1: %d commits, and its member %d is not frozen", p.id, uid)
		}
		w.checkBlockers(p.id, uid)
	}
	for _, uid := range sorted(frozen) {
		if !slices.Contains(closure, uid) && !w.cascadesToMarked(uid) {
			w.report("A1: %d commits, and removes %d, which is no member", p.id, uid)
		}
	}
}

// unknown reports whether a deployment has lost commits, or is decommissioned, and the coordinator cannot
// know it.
func (w *World) unknown(p *process, x int) bool {
	return w.db[x].recovering && p.epochs[x] != w.db[x].epoch || w.decommissioned[x] && !w.db[p.at].left[x]
}

// wholeClosure is the closure over all deployments, but those whose restore is not known.
func (w *World) wholeClosure(p *process) []UID {
	all := []UID{p.root}
	for i := 0; i < len(all); i++ {
		for _, x := range w.there() {
			for _, h := range w.holders(x, all[i], Cascade) {
				if !slices.Contains(all, h) && !w.unknown(p, x) {
					all = append(all, h)
				}
			}
		}
	}
	return all
}

// cascadesToMarked reports whether a resource goes with another deletion.
func (w *World) cascadesToMarked(uid UID) bool {
	for all, i := []UID{uid}, 0; i < len(all); i++ {
		for _, r := range w.db[w.home[all[i]]].resources[all[i]].refs {
			if r.b != Cascade || slices.Contains(all, r.to) {
				continue
			}
			if all = append(all, r.to); !w.db[w.home[r.to]].active(r.to) {
				return true
			}
		}
	}
	return false
}

func (w *World) checkBlockers(id ID, uid UID) {
	for _, x := range w.there() {
		for _, h := range w.holders(x, uid, Block) {
			if !w.members[id][h] && !w.db[x].recovering {
				w.report("A1: %d of %d blocks %d, a member of %d", h, x, uid, id)
			}
		}
	}
}

// beforeMark checks A1 and A2.
func (w *World) beforeMark(a int, uid UID, cause ID) {
	w.note("%d is marked by %d", uid, cause)
	if _, ok := w.db[a].rows[uid][cause]; !ok && w.db[a].frozen(uid) {
		w.count("marked by another")
	}
	if len(w.db[a].rows[uid]) > 1 {
		w.count("shared")
	}
	if cause == 0 || w.forsaken[cause] {
		return
	}
	if w.outcome[cause] != "committed" {
		w.report("A2: %d is marked by %d, which is %s", uid, cause, w.outcome[cause])
	}
	if w.excused[cause] != "" {
		return
	}
	if !w.members[cause][uid] {
		w.report("A1: %d is marked by %d, of which it is no member", uid, cause)
	}
	w.checkBlockers(cause, uid)
}

// decides checks A3.
func (w *World) decides(id ID, verdict string) {
	if before := w.outcome[id]; before != "" && before != verdict && !w.forsaken[id] {
		w.report("A3: %d is %s, and was %s", id, verdict, before)
	}
	w.outcome[id] = verdict
}

// aborted checks A2 when a deletion is known to be aborted.
func (w *World) aborted(id ID) {
	w.decides(id, "aborted")
	for _, x := range w.there() {
		for uid, r := range w.db[x].resources {
			if r.marked && r.cause == id && !w.forsaken[id] {
				w.report("A2: %d is aborted, and has marked %d", id, uid)
			}
		}
	}
}

// opened checks A5.
func (w *World) opened(id ID, uid UID) {
	at := w.begun[id].at
	if w.forsaken[id] || w.excused[id] == byOperator || w.decommissioned[at] {
		return
	}
	if w.outcome[id] == "committed" && w.excused[id] == "" {
		w.report("A5: %d is opened, and is a member of %d, which is committed", uid, id)
	}
	if w.db[at].records[id].scheduled && !w.db[at].recovering {
		w.report("A5: %d is opened, and %d is scheduled", uid, id)
	}
	p := w.processes[id]
	if _, over := w.db[at].records[id]; p != nil && !over && p.epoch == w.db[at].epoch && id > w.db[at].forgotten {
		w.report("A5: %d is opened, and %d may commit", uid, id)
	}
}

// atRest checks A1, A4, and that nothing waits for nothing.
func (w *World) atRest() {
	for _, d := range w.there() {
		if w.db[d].recovering {
			w.report("A4: the recovery of %d does not end", d)
		}
		w.db[d].each(func(uid UID, id ID, r row) {
			w.report("A4: %d stays frozen by %d, lasting: %v", uid, id, r.lasting)
		})
		for _, id := range sorted(w.db[d].records) {
			if waits := w.waits(d, id); len(waits) > 0 {
				w.report("A4: %d waits for %v", id, waits)
			}
			if w.db[d].records[id].scheduled {
				w.report("A4: %d is scheduled, and cannot end", id)
			}
		}
		for _, uid := range sorted(w.db[d].resources) {
			if w.db[d].resources[uid].marked && !w.blocked(uid) {
				w.report("A4: %d stays in DELETING because of %s", uid, w.waitsFor(d, uid))
			}
		}
	}
	for _, id := range sorted(w.members) {
		if w.excused[id] == "" && !w.forsaken[id] && !w.gone(id) {
			w.report("A1: %d is committed, and members stay", id)
		}
	}
}

func (w *World) blocked(uid UID) bool {
	return slices.ContainsFunc(w.there(), func(x int) bool { return len(w.holders(x, uid, Block)) > 0 })
}

// Rest lets everything end, in rounds without a fault. Then the deadlines of what still runs pass, the oldest
// first.
func (w *World) Rest() {
	w.calm = true
	for n := 0; n < 50 && len(w.processes) > 0; n++ {
		w.round()
	}
	w.round()
	w.end()
	for _, id := range sorted(w.begun) {
		for x := range w.db {
			w.Expire(id, x)
		}
		w.GiveUp(id)
		w.round()
	}
	for range 12 {
		w.round()
	}
	w.atRest()
}

func (w *World) round() {
	for _, d := range w.there() {
		for gone := range w.decommissioned {
			w.Learn(d, gone)
		}
		w.Compare(d)
	}
	for len(w.writes) > 0 {
		w.Commit(0)
	}
	for _, id := range sorted(w.processes) {
		w.Drive(id)
	}
	for len(w.bag) > 0 {
		w.Deliver(0, false)
	}
	for _, d := range w.there() {
		w.work(d)
	}
}

// work does all that a deployment owes.
func (w *World) work(d int) {
	w.db[d].each(func(uid UID, id ID, _ row) {
		w.Ask(d, uid, id)
		w.Follow(d, uid, id)
	})
	for _, id := range sorted(w.db[d].records) {
		w.Tell(d, id)
	}
	for _, k := range sorted(w.db[d].blockades) {
		w.Settle(d, k)
	}
	for _, uid := range sorted(w.db[d].resources) {
		for _, x := range w.entriesOf(d, uid) {
			w.Act(d, entry{uid, x})
		}
		w.Finalise(d, uid)
	}
}
