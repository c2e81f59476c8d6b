package rows

// create makes the target, when the name is free and each deletion of it is acted upon.
func (w *World) create() {
	if w.t.active == 0 {
		w.t.active, w.t.deleting = uid(w.number()), false
		w.note("target %d", w.t.active)
	}
}

// establish gives a right.
func (w *World) establish(turn int, block bool, hEpoch int) answer {
	switch {
	case hEpoch < w.t.hKnown, w.t.released[turn]:
		return answer{refused: true}
	case w.t.active == 0 || w.t.deleting:
		return answer{missing: true, tEpoch: w.t.epoch}
	}
	w.t.grants[turn] = grant{w.t.active, block}
	return answer{uid: w.t.active, tEpoch: w.t.epoch}
}

// release ends a turn.
func (w *World) release(turn int) {
	w.note("turn %d is released", turn)
	delete(w.t.grants, turn)
	w.t.released[turn] = true
}

// confirm is called when H has compared in its epoch and in T's epoch.
func (w *World) confirm(hEpoch, tEpoch int) {
	if tEpoch == w.t.epoch && hEpoch >= w.t.hKnown {
		w.t.hKnown, w.t.confirms = hEpoch, true
		w.seen["confirmed"]++
		w.note("confirmed: H %d, T %d", hEpoch, tEpoch)
	}
}

// announced is told of an epoch of H.
func (w *World) announced(hEpoch int) {
	if hEpoch > w.t.hKnown {
		w.t.hKnown, w.t.confirms = hEpoch, false
	}
}

// blocked reports whether a right to block stands.
func (w *World) blocked() (turns []int) {
	for _, turn := range sorted(w.t.grants) {
		if g := w.t.grants[turn]; g.block && g.uid == w.t.active {
			turns = append(turns, turn)
		}
	}
	return turns
}

// remove is a delete: it recalls the rights to block, outside of any transaction, and decides under the lock
// of the target.
func (t *task) remove() {
	w := t.w
	u := w.t.active
	if u == 0 || w.t.deleting || !w.t.confirms {
		return
	}
	for _, turn := range w.blocked() {
		hEpoch := w.h.epoch
		t.pause()
		if hEpoch != w.t.hKnown && w.GivesUpSilentRights {
			w.release(turn)
			continue
		}
		free, known := t.answerRecall(turn)
		w.note("recall of %d: free %t, known %t", turn, free, known)
		t.pause()
		if !known || !w.calm && w.chance(12) { // the answer is lost
			return
		}
		if !free {
			w.seen["refused"]++
			return
		}
		w.release(turn)
		w.seen["recalled"]++
	}
	t.pause()
	if w.t.active != u || w.t.deleting || !w.t.confirms || len(w.blocked()) > 0 {
		return
	}
	for h, to := range w.h.rows {
		if to == u && h%2 == 0 && w.t.hKnown == w.h.epoch && w.h.tKnown == w.t.epoch {
			w.report("I3: %d is deleted beside the blocking row %d", u, h)
		}
	}
	w.t.deleting, w.t.notice = true, len(w.t.grants) > 0
	w.seen["deleted"]++
	w.note("%d is deleted", u)
}

// finalise removes a target that does not wait for H.
func (w *World) finalise() {
	if w.t.deleting && !w.t.notice && w.t.confirms {
		w.note("%d is gone", w.t.active)
		for turn, g := range w.t.grants {
			if g.uid == w.t.active {
				delete(w.t.grants, turn)
			}
		}
		w.t.active, w.t.deleting = 0, false
		w.seen["gone"]++
	}
}

// resolve asks H about a right to block that was not confirmed for a while: H may have lost it.
func (t *task) resolve() {
	w := t.w
	for _, turn := range sorted(w.t.grants) {
		if !w.t.grants[turn].block {
			continue
		}
		gone := false
		if t.call(func() { gone = w.unknown(turn) }) && gone {
			w.release(turn)
			w.seen["resolved"]++
		}
		return
	}
}
