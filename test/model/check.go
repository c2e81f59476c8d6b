package model

import (
	"fmt"
	"maps"
	"slices"
)

// history is the view of an observer who sees all steps at once: the input of the closure model.
type history struct {
	deleted map[UID]bool                 // roots of accepted deletes
	last    map[UID]map[string]Reference // the last references of each incarnation, also after its removal
	left    map[UID]bool                 // marked or removed
	cleaned map[UID]bool                 // the finalizer's holder has cleaned up after the mark
}

func newHistory() history {
	return history{
		deleted: map[UID]bool{}, last: map[UID]map[string]Reference{}, left: map[UID]bool{},
		cleaned: map[UID]bool{},
	}
}

func (h history) wrote(wr *write) { h.last[wr.holder] = maps.Clone(wr.refs) }

func (h history) went(r *Resource) { h.last[r.UID], h.left[r.UID] = maps.Clone(r.Refs), true }

func (h history) removed(uid UID) { h.left[uid] = true }

// Check returns the violations of the invariants that hold at each moment.
func (w *World) Check() []string {
	for at, d := range w.deployments {
		for _, r := range d.resources {
			for path, ref := range r.Refs {
				t := w.deployments[ref.Home].resources[ref.Target]
				if ref.Behaviour.Blocks() && t != nil && t.Deleting && !r.Deleting && w.history.deleted[ref.Target] {
					w.report("I3: the delete of %s was accepted beside %s", t.Name, r.Name)
				}
				if ref.Behaviour.Blocks() && t == nil {
					w.report("I2: %s at %d refers by %s to %d at %d, which does not exist", r.Name, at, path,
						ref.Target, ref.Home)
				}
			}
		}
	}
	return w.broken
}

// checkKept reports a clean-up that begins while a resource keeps a reference to its target: an ACTIVE one,
// or one that had the reference when it was marked.
func (w *World) checkKept(target UID) {
	for at, d := range w.deployments {
		for uid, r := range d.resources {
			for path, ref := range w.history.last[uid] {
				if ref.Behaviour == Keep && ref.Target == target {
					w.report("I33: the clean-up of %d begins, and %s at %d keeps it by %s", target, r.Name, at, path)
				}
			}
		}
	}
}

// CheckAtRest returns the violations of the invariants that hold when no message and no write is in progress.
func (w *World) CheckAtRest() []string {
	w.Check()
	blocking := map[string]bool{}
	for at, d := range w.deployments {
		for _, r := range d.resources {
			for path, ref := range r.Refs {
				home := w.deployments[ref.Home]
				t := home.resources[ref.Target]
				switch {
				case t == nil:
					w.report("I1: %s at %d refers by %s to %d, which does not exist", r.Name, at, path, ref.Target)
				case t.Deleting && !ref.Behaviour.Blocks():
					w.report("I1: %s at %d still refers by %s to %s, which is DELETING", r.Name, at, path, t.Name)
				case ref.Home == at:
				case ref.Behaviour.Blocks():
					blocking[fmt.Sprint(ref.Home, Key{r.UID, path, ref.Target, ref.Attempt})] = true
				case !home.entries[ref.Target][at]:
					w.report("I8: %s at %d refers by %s to %s, which has no entry of it", r.Name, at, path, t.Name)
				}
			}
		}
		if len(d.outbox) > 0 {
			w.report("I28: %d owes %v", at, slices.Sorted(maps.Keys(d.outbox)))
		}
	}
	for at, d := range w.deployments {
		for k, b := range d.blockades {
			id := fmt.Sprint(at, k)
			switch {
			case b.tentative:
				w.report("I8: %v at %d is tentative", k, at)
			case !blocking[id]:
				w.report("I8: %v at %d belongs to no reference", k, at)
			}
			delete(blocking, id)
		}
		for uid, r := range d.resources {
			if r.Deleting && w.history.deleted[uid] {
				w.report("I3: the delete of %s at %d was accepted beside a blocker", r.Name, at)
			}
			if r.Deleting && !d.isBlocked(uid, nil, false) {
				w.report("I13: %s at %d is DELETING, and nothing blocks it", r.Name, at)
			}
		}
	}
	for id := range blocking {
		w.report("I8: reference %s has no blockade", id)
	}
	w.checkClosure()
	return w.broken
}

// checkClosure compares the incarnations that have left with the closure of the deletions: the roots of
// accepted deletes, and all holders that last cascaded with an incarnation that has left (I11, I14).
func (w *World) checkClosure() {
	goes := maps.Clone(w.history.deleted)
	for more := true; more; {
		more = false
		for uid, refs := range w.history.last {
			for _, ref := range refs {
				if ref.Behaviour == Cascade && goes[ref.Target] && !goes[uid] {
					goes[uid], more = true, true
				}
			}
		}
	}
	for _, d := range w.deployments { // the remaining resources have lost only references to removed ones
		for uid, r := range d.resources {
			for path, ref := range w.history.last[uid] {
				if _, ok := r.Refs[path]; !ok && !r.Deleting &&
					(ref.Behaviour != Unset || !w.history.left[ref.Target]) {
					w.report("I9: %s lost %s", r.Name, path)
				}
			}
		}
	}
	for uid := range w.history.last {
		if goes[uid] != w.history.left[uid] {
			w.report("I11: %d has left: %v; by the closure of the deletions: %v", uid, w.history.left[uid], goes[uid])
		}
	}
}

// outstanding returns the work that the controllers have to end without help from applications: messages that
// are owed, tentative blockades, references that act upon a deletion, and resources in DELETING that no
// reference of a resource blocks.
func (w *World) outstanding() map[string]bool {
	work, blocked := map[string]bool{}, map[UID]bool{}
	for at, d := range w.deployments {
		for owed := range d.outbox {
			work[fmt.Sprintf("%d owes %s", at, owed)] = true
		}
		for k, b := range d.blockades {
			if b.tentative {
				work[fmt.Sprintf("%v at %d is tentative", k, at)] = true
			}
		}
		for uid, r := range d.resources {
			for path, ref := range r.Refs {
				if ref.Behaviour.Blocks() {
					blocked[ref.Target] = true
				} else if t := w.deployments[ref.Home].resources[ref.Target]; t != nil && t.Deleting {
					work[fmt.Sprintf(
						"%d at %d refers by %s to %d, which is DELETING", uid, at, path, ref.Target)] = true
				}
			}
		}
	}
	for at, d := range w.deployments {
		for uid, r := range d.resources {
			if r.Deleting && !blocked[uid] {
				work[fmt.Sprintf("%d at %d is DELETING, and nothing blocks it", uid, at)] = true
			}
		}
	}
	return work
}

// Round lets each deployment take each of its steps once: the messages that are in flight arrive, in the
// order that pick chooses, and between any two steps the applications take theirs.
func (w *World) Round(pick func(n int) int, applications func()) {
	for n := len(w.bag); n > 0; n-- {
		applications()
		w.Deliver(pick(n), false)
	}
	for _, wr := range slices.Clone(w.writes) {
		if i := slices.Index(w.writes, wr); i >= 0 && wr.lost != nil && len(wr.waiting) == 0 {
			applications()
			if i = slices.Index(w.writes, wr); i >= 0 {
				w.Commit(i)
			}
		}
	}
	for at := range w.deployments {
		applications()
		w.Send(at)
		for from := range w.deployments {
			applications()
			w.Act(at, from)
		}
	}
}

// Rest repairs all faults and delivers until nothing is in progress. It returns false when that does not end.
func (w *World) Rest() bool {
	clear(w.locked)
	for range 200 {
		for len(w.bag) > 0 {
			w.Deliver(0, false)
		}
		for len(w.writes) > 0 {
			w.Commit(0)
		}
		for at := range w.deployments {
			w.Expire(at)
			w.Send(at)
			w.Clean(at)
		}
		if len(w.bag) == 0 {
			return true
		}
		for len(w.bag) > 0 {
			w.Deliver(0, false)
		}
		for at := range w.deployments {
			for from := range w.deployments {
				if len(w.deployments[at].watched[from]) > 0 {
					w.Act(at, from)
					delete(w.deployments[at].watched, from)
				}
			}
		}
		for len(w.bag) > 0 {
			w.Deliver(0, false)
		}
	}
	return false
}
