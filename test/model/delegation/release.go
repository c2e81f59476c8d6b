package delegation

// releaseEntry is an operator of A who releases the entry of X of a target in DELETING: it no longer waits
// for X, and X is not told. X is asked to close the target first, which ends both rights. The question comes
// after the mark: nothing is granted from then on.
func (w *World) releaseEntry(uid UID) {
	w.start("release entry", func(t *task) {
		epoch, notice := w.a.epoch, w.a.notices[uid]
		if notice == 0 && !w.EntryAskedBeforeMark {
			return
		}
		insists := false
		if !w.EntryReleasedWithoutClose {
			answer := t.ask(message{kind: "close", uid: uid, theirs: epoch, own: w.a.peer})
			if insists = answer == nil && !w.calm && w.chance(2); !insists &&
				(answer == nil || answer.own != w.a.peer) {
				return
			}
		}
		for range 12 {
			if t.pause(); w.a.notices[uid] != 0 || !w.EntryAskedBeforeMark {
				break
			}
		}
		if a := w.a; a.epoch != epoch || a.notices[uid] == 0 || a.notices[uid] != notice && !w.EntryAskedBeforeMark {
			return
		}
		if insists {
			if w.a.delegated(uid) { // no message would tell X to return its proxy
				return
			}
			w.insist(uid)
		}
		w.forsake(uid)
		delete(w.a.notices, uid)
		delete(w.a.entries, uid)
		w.seen["entry released"]++
		w.note("an operator releases the entry of %d", uid)
		w.finalise()
	})
}

// insist is an operator of A who releases an entry although X has not answered: X may go on writing under its
// acting right. A asks again until it answers.
func (w *World) insist(uid UID) {
	w.seen["insisted"]++
	w.insisted[uid] = true
	if !w.UnansweredIsForgotten {
		w.a.endings[uid] = true
	}
}

// takeBack is an operator of A who takes back the rights to a target, until X has ended them. They may be
// given again.
func (w *World) takeBack(uid UID) {
	if w.a.state[uid] == active {
		w.a.endings[uid] = true
		w.seen["taken back"]++
	}
}

// endRights asks X once to end its rights to a target. A late or repeated question ends rights that X may ask
// for again. The answer needs no epoch: in a new one of either database the rights do not count.
func (w *World) endRights(uid UID) {
	w.start("end rights", func(t *task) {
		a := w.a
		if answer := t.ask(message{kind: "close", uid: uid, theirs: a.epoch, own: a.peer}); answer != nil && w.a == a {
			delete(a.endings, uid)
		}
	})
}

// forsake is a bystander who sees which references dangle by the operator's decision. A tentative blockade
// makes another entry when it is confirmed.
func (w *World) forsake(uid UID) {
	for holder, r := range w.x.references {
		if r.uid != uid || r.behaviour == Block || r.dangling || w.a.blockades[key{holder, r.attempt, uid}].tentative {
			continue
		}
		w.forsaken[holder] = r
	}
}

// dangles reports whether a reference dangles by the decision of an operator.
func (w *World) dangles(holder int, r reference) bool {
	r.dangling = false
	return r.uid != 0 && (w.forsaken[holder] == r || w.insisted[r.uid] && r.behaviour == Acting)
}

// closeFor closes a target for A, and answers when it is closed. References to it stay.
func (t *task) closeFor(m message) {
	w, own, checks := t.w, t.w.x.epoch, []work{{kind: check, uid: m.uid}}
	if w.ClosedIsNotChecked {
		checks = nil
	}
	if w.EntryEndsActingOnly {
		if !t.ending(m.uid) {
			return
		}
		turn := Turn(w.number())
		t.commit(func() {
			if row, ok := w.x.targets[m.uid]; ok {
				row.turn, row.rights[Acting] = turn, right{}
				w.x.targets[m.uid] = row
			}
			delete(w.x.ending, m.uid)
		})
	} else if !t.closeRow(m.uid, checks...) {
		return
	}
	w.answer(m, message{own: own})
}

// releaseUnconfirmed is an operator of A who releases the proxies of a target that X has never confirmed: X
// does not answer. X is asked to end its rights until it has.
func (w *World) releaseUnconfirmed(uid UID) {
	for k, b := range w.a.blockades {
		if k.uid != uid || k.holder != proxy || !b.tentative {
			continue
		}
		delete(w.a.blockades, k)
		w.a.closed[k.attempt], w.released[k.attempt] = true, true
		if !w.ReleasedRightGoesOn {
			w.a.endings[uid] = true
		}
		for holder, r := range w.x.references {
			if r.uid == uid && w.x.targets[uid].attempt == k.attempt {
				w.underReleased(holder)
			}
		}
		w.seen["unconfirmed released"]++
		w.note("an operator releases the proxy of %d, attempt %d", uid, k.attempt)
	}
	w.finalise()
}

// underReleased is a bystander who sees which references are written under a right whose proxy an operator of
// A has released, before X has heard of it.
func (w *World) underReleased(holder int) {
	r := w.x.references[holder]
	switch {
	case r.behaviour != Block || !r.delegated || r.dangling:
	case w.released[w.x.targets[r.uid].attempt]:
		w.forsaken[holder] = r
	case w.forsaken[holder] == r:
		delete(w.forsaken, holder)
	}
}
