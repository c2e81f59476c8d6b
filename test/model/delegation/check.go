package delegation

import (
	"maps"
	"slices"
)

// present reports whether both deployments know each other's epoch, and have compared since: before that a
// reference may be lost, or come back.
func (w *World) present() bool {
	return w.a.peer == w.x.epoch && w.x.peer == w.a.epoch && !w.a.unconfirmed && !w.a.uncompared
}

// wroteDelegated is a bystander who sees both databases when a write commits under a right.
func (w *World) wroteDelegated(uid UID, b Behaviour, turn Turn) {
	w.seen[b.String()+" written"]++
	if now, ok := w.x.targets[uid]; !ok || now.turn != turn {
		w.report("I31: a reference to %d is committed after the right ended that it was written under", uid)
	}
	if !w.present() || w.insisted[uid] || b == Block && w.released[w.x.targets[uid].attempt] {
		return
	}
	switch {
	case w.a.state[uid] == gone:
		w.report("I30: a reference to %d is written, which is gone", uid)
	case b == Acting && !w.a.entries[uid]:
		w.report("I30: an acting reference to %d is written, which has no entry", uid)
	case b == Block && !w.a.delegated(uid):
		w.report("I30: a blocking reference to %d is written, which has no row", uid)
	}
	if w.a.state[uid] == deleting {
		w.seen["written beside a deletion"]++
	}
}

// accepted is called when a user's delete is accepted, before the mark.
func (w *World) accepted(uid UID) {
	w.seen["deleted"]++
	if !w.present() {
		return
	}
	for holder, r := range w.x.references {
		if r.uid == uid && r.behaviour == Block && !r.dangling && !w.dangles(holder, r) {
			w.report("I3: the delete of %d is accepted beside holder %d", uid, holder)
		}
	}
}

// removed is called before a target is removed.
func (w *World) removed(uid UID) {
	w.seen["removed"]++
	if !w.present() {
		return
	}
	for holder, r := range w.x.references {
		if r.uid == uid && !r.dangling && !w.dangles(holder, r) {
			w.report("I1, I2: %d is removed, and holder %d refers to it (%s)", uid, holder, r.behaviour)
		}
	}
}

// proxyOf reports whether the proxy's blockade stands that X knows.
func (w *World) proxyOf(uid UID) bool {
	attempt := w.x.targets[uid].attempt
	_, ok := w.a.blockades[key{proxy, attempt, uid}]
	return ok && attempt != 0
}

// atRest checks the invariants at rest.
func (w *World) atRest() {
	protected := map[key]bool{}
	for holder, r := range w.x.references {
		st := w.a.state[r.uid]
		switch {
		case w.dangles(holder, r) && (r.behaviour == Acting || st != active):
			// X has heard of a released proxy, and establishes its references anew
			w.seen["forsaken"]++
		case r.dangling:
			w.seen["dangling"]++
			if w.failures == 0 {
				w.report("I32: the reference of %d to %d dangles", holder, r.uid)
			}
		case st == gone:
			w.report("I1: holder %d refers to %d, which is gone", holder, r.uid)
		case r.behaviour == Acting && st == deleting:
			w.report("I1: holder %d still refers to %d, which goes", holder, r.uid)
		case r.behaviour == Acting && !w.a.entries[r.uid]:
			w.report("I8: holder %d refers to %d, which has no entry", holder, r.uid)
		case r.behaviour == Block && r.delegated && !w.proxyOf(r.uid):
			w.report("I8: holder %d blocks %d, which has no row", holder, r.uid)
		case r.behaviour == Block && !r.delegated:
			k := key{holder, r.attempt, r.uid}
			if _, ok := w.a.blockades[k]; !ok {
				w.report("I8: holder %d blocks %d, which has no blockade", holder, r.uid)
			}
			protected[k] = true
		}
	}
	for uid, row := range w.x.targets {
		protected[key{proxy, row.attempt, uid}] = row.attempt != 0
	}
	for k, b := range w.a.blockades {
		if b.tentative || !protected[k] {
			w.report("I8: blockade %v of no reference, or tentative", k)
		}
	}
	for uid := range w.insisted {
		if w.a.state[uid] != active && w.may(uid, Acting) {
			w.report("I31: X may still refer to %d, whose entry was released", uid)
		}
	}
	for uid, row := range w.x.targets {
		if w.released[row.attempt] && w.may(uid, Block) {
			w.report("I31: X may still refer to %d, whose proxy was released", uid)
		}
		if row.attempt != 0 && !w.holds(uid) && !w.may(uid, Block) {
			w.report("I8: the proxy of %d stands, and X has neither the right nor a reference under it", uid)
		}
	}
	for uid, st := range w.a.state {
		confirmed, _ := w.a.blocked(uid)
		if st == deleting && len(confirmed) == 0 && !w.holds(uid) {
			w.report("I13: %d is DELETING, and nothing blocks it", uid)
		}
	}
}

// rest mends everything, and goes on until nothing is under way.
func (w *World) rest() {
	w.calm = true
	for round := range 100 {
		w.settle()
		if w.quiet() {
			w.seen["rest"]++
			return
		}
		if round == 80 {
			w.note("what is left: work %v, notices %v, peers %d/%d %d/%d", w.x.work, w.a.notices, w.a.peer, w.x.epoch,
				w.x.peer, w.a.epoch)
		}
		for _, k := range sortedWork(w.x.work) {
			w.start("work", func(t *task) { t.do(k) })
		}
		w.sendX()
		w.sendA()
	}
	w.report("I28: it does not come to rest")
}

// settle delivers all messages and runs all tasks to their end.
func (w *World) settle() {
	for range 10_000 {
		switch {
		case len(w.bag) > 0:
			w.deliver(0, false)
		case len(w.tasks) > 0:
			w.step(w.r.IntN(len(w.tasks)))
		default:
			return
		}
	}
	w.report("I28: tasks or messages without end: %d tasks, first %s", len(w.tasks), w.tasks[0].name)
}

func (w *World) quiet() bool {
	tentative := false
	for _, b := range w.a.blockades {
		tentative = tentative || b.tentative
	}
	return w.present() && len(w.x.work) == 0 && len(w.a.notices) == 0 && len(w.a.endings) == 0 && !tentative &&
		!w.a.doubts()
}

func sortedWork(all map[work]bool) []work {
	return slices.SortedFunc(maps.Keys(all), func(a, b work) int {
		return slices.Compare(
			[]int{a.kind, a.attempt, a.holder, int(a.uid), int(a.turn), int(a.epoch)},
			[]int{b.kind, b.attempt, b.holder, int(b.uid), int(b.turn), int(b.epoch)})
	})
}
