package delegation

// lookAtEntry looks whether X still uses the entry of a target, and removes it if not. The look is stored
// before X is asked, under the lock that confirms share: a confirm that follows takes it away.
func (w *World) lookAtEntry(uid UID) {
	a := w.a
	if !a.entries[uid] || a.state[uid] != active {
		return
	}
	w.start("look at entry", func(t *task) {
		a := w.a
		epoch, number := a.epoch, w.number()
		a.looks[uid] = number
		answer := t.ask(message{kind: "unused", uid: uid, theirs: epoch, own: a.peer})
		if answer == nil {
			return // it is looked at again
		}
		t.pause()
		a = w.a
		switch {
		case (a.epoch != epoch || answer.own != a.peer) && !w.EntryLeavesInAnotherEpoch:
		case a.looks[uid] != number && !w.EntryLeavesBesideConfirm:
			w.seen["entry taken again"]++
		case answer.verdict != "unused":
			w.seen["entry used"]++
			delete(a.looks, uid)
		case a.state[uid] == active && a.entries[uid]:
			w.seen["entry left"]++
			w.note("the entry of %d goes", uid)
			delete(a.looks, uid)
			delete(a.entries, uid)
		}
	})
}

// acts reports whether an acting reference to the target of an entry exists.
func (w *World) acts(uid UID) bool {
	for _, r := range w.x.references {
		if r.uid == uid && r.behaviour == Acting && !r.dangling {
			return true
		}
	}
	return false
}

// unused ends the acting right to a target for A if nothing here uses it, and answers whether that is so. It
// looks under the lock of the row, so that it sees all that was written under the right, and nothing follows.
func (t *task) unused(m message) {
	w, own := t.w, t.w.x.epoch
	if w.acts(m.uid) {
		w.answer(m, message{own: own, verdict: "used"})
		return
	}
	if w.UnusedKeepsRight {
		w.answer(m, message{own: own, verdict: "unused"})
		return
	}
	if !t.ending(m.uid) {
		return
	}
	verdict, turn := "used", Turn(w.number())
	used := w.acts(m.uid) && !w.UnusedLooksFirst
	t.commit(func() {
		if !used {
			verdict = "unused"
			if row, ok := w.x.targets[m.uid]; ok {
				row.turn, row.rights[Acting] = turn, right{}
				w.x.targets[m.uid] = row
			}
		}
		delete(w.x.ending, m.uid)
	})
	w.answer(m, message{own: own, verdict: verdict})
}
