package strict

import "slices"

// insert makes the target, when the name is free.
func (w *World) insert() {
	if w.active == 0 {
		w.active = uid(w.number())
		w.targets[w.active] = &target{}
	}
}

// covers reports whether a right covers the reference of a holder.
func (w *World) covers(r *right, h int) bool {
	return r != nil && (h%2 == 0 && r.block || h%2 == 1 && (r.act || w.BlockCoversAct && r.block))
}

// write is a statement that makes a holder refer to the name, in one transaction: find the right, lock its row, check it, commit.
func (t *task) write(h int) {
	w := t.w
	var found, counted uid
	for _, u := range sorted(w.rights) {
		if r := w.rights[u]; w.covers(r, h) && !r.ending {
			found = u
		}
	}
	if found != 0 && !w.WritesUnlocked && !t.share(found) {
		return
	}
	t.pause() // the next statement
	for _, u := range sorted(w.rights) {
		if w.covers(w.rights[u], h) && (u == found || w.CountsUnlocked) {
			counted = u
		}
	}
	if counted == 0 {
		w.seen["RD001"]++
		return
	}
	t.pause() // the commit
	if w.rows[h] != 0 {
		return
	}
	w.rows[h] = counted
	w.notes = append(w.notes, note{w.number(), h})
	w.seen["written"]++
	w.note("holder %d refers to %d", h, counted)
	if w.targets[counted] == nil {
		w.report("I1: holder %d is written to %d, which is gone", h, counted)
	}
}

// wait is a statement of a transaction that makes two holders refer to the name, under both rights: it holds one while it waits for the other. It gives up
// after a while. It reports whether it has committed.
func (t *task) wait(patience int) (written bool) {
	w := t.w
	under := map[int]uid{}
	for n := 0; len(under) < 2; n++ {
		if n > patience {
			w.seen["RD002"]++
			return false
		}
		for h := range 2 {
			if _, has := under[h]; has {
				continue
			}
			for _, u := range sorted(w.rights) {
				r := w.rights[u]
				if !w.covers(r, h) || r.ending || !t.share(u) {
					continue
				}
				t.pause()
				if w.covers(w.rights[u], h) {
					under[h] = u
				}
				break
			}
			if len(under) == 1 {
				w.seen["waits beside its right"]++
			}
		}
		t.pause()
	}
	for h, u := range under {
		if w.rows[h] != 0 {
			continue
		}
		w.rows[h] = u
		w.notes = append(w.notes, note{w.number(), h})
		w.seen["written after a wait"]++
		if w.targets[u] == nil {
			w.report("I1: holder %d is written to %d, which is gone", h, u)
		}
	}
	return true
}

// drop deletes a row in plain SQL.
func (t *task) drop(h int) {
	w := t.w
	if w.rows[h] != 0 {
		delete(w.rows, h)
		w.notes = append(w.notes, note{w.number(), h})
		w.note("holder %d is deleted", h)
	}
}

// capture reads the notes of a row and the row, and stores the reference: under a right, or as the target's deployment answers. A reference that is refused
// is tried again.
func (t *task) capture() {
	w := t.w
	if len(w.notes) == 0 {
		return
	}
	h := w.notes[w.r.IntN(len(w.notes))].holder
	seqs := map[int]bool{}
	for _, n := range w.notes {
		if n.holder == h {
			seqs[n.seq] = true
		}
	}
	value := w.rows[h]
	t.pause()
	if w.rows[h] != value { // a change has a note of its own
		return
	}
	if value != 0 && !w.covers(w.rights[value], h) {
		if tg := w.targets[value]; tg == nil || tg.deleting {
			w.seen["not stored"]++
			return
		}
	}
	if value == 0 {
		delete(w.refs, h)
	} else {
		w.refs[h] = value
		w.seen["stored"]++
	}
	w.notes = slices.DeleteFunc(w.notes, func(n note) bool { return seqs[n.seq] })
}

// free reports whether nothing stands under the right to block a target, in two statements.
func (t *task) free(u uid, ignores bool) bool {
	w := t.w
	stored := w.stored(u, true)
	t.pause()
	return !stored && (ignores || !w.named(u, true))
}

// recall ends the right to block, if nothing was written under it, and deletes the target: a delete that looks ahead.
func (t *task) recall() {
	w := t.w
	u := w.active
	if u == 0 {
		return
	}
	if r := w.rights[u]; r != nil && r.proxy {
		early := t.free(u, w.RecallIgnoresRows)
		r.ending = true
		t.pause()
		if w.rights[u] != r || !t.lock(u) {
			return
		}
		t.pause()
		if free := w.RecallLooksFirst && early || !w.RecallLooksFirst && t.free(u, w.RecallIgnoresRows); !free {
			w.seen["held"]++
			r.ending = false
			t.unlock()
			return
		}
		r.block, r.proxy, r.ending, r.turn = false, false, false, w.number()
		w.release(u)
		w.seen["recalled"]++
		t.unlock()
		t.pause()
	}
	t.remove(u, false)
}

// release removes the blockade of a proxy at A.
func (w *World) release(u uid) {
	if tg := w.targets[u]; tg != nil {
		tg.proxies = false
	}
}

// remove marks the target. A cascade marks it beside rights to block; the target then waits for them.
func (t *task) remove(u uid, cascade bool) {
	w, tg := t.w, t.w.targets[u]
	if w.active != u || tg == nil || tg.deleting || tg.tentative || tg.proxies && !cascade {
		w.seen["refused"]++
		return
	}
	if !cascade {
		for h, to := range w.rows {
			if to == u && h%2 == 0 {
				w.report("I3: %d is deleted beside the blocking holder %d", u, h)
			}
		}
	}
	tg.deleting, tg.notice = true, tg.entry || tg.proxies
	w.seen["marked"]++
	w.note("%d is marked, cascade %t", u, cascade)
}

// act closes the rights to a deleted target, acts upon the holders by their stored references and by the index, and acknowledges when the last look has found no
// row. A target without a row here is of no concern.
func (t *task) act() {
	w := t.w
	for _, u := range sorted(w.targets) {
		if !w.targets[u].notice {
			continue
		}
		early, r := w.named(u, false), w.rights[u]
		if r != nil {
			r.ending = true
			t.pause()
			if w.rights[u] != r || !t.lock(u) {
				return
			}
			r.block, r.act, r.ending, r.turn = false, false, false, w.number()
			t.unlock()
		}
		t.pause()
		for h, to := range w.refs {
			if to == u && h%2 == 1 && w.rows[h] == u {
				delete(w.rows, h)
				delete(w.refs, h)
				w.seen["cascaded"]++
			}
		}
		t.pause()
		if r != nil && !w.ActIgnoresRows && (!w.ActLooksFirst || early) && (w.ActsBesideLater || !w.later(u)) {
			for h, to := range w.rows {
				if h%2 == 1 && to != 0 {
					delete(w.rows, h)
					delete(w.refs, h)
					w.seen["cascaded by the index"]++
					if to != u {
						w.report("holder %d of %d goes with %d", h, to, u)
					}
				}
			}
		}
		t.pause()
		if tg := w.targets[u]; tg != nil {
			tg.notice = false
		}
		return
	}
}

// look returns a right to block that nothing needs.
func (t *task) look() {
	w := t.w
	for _, u := range sorted(w.rights) {
		r := w.rights[u]
		if !r.proxy || r.kept && r.block {
			continue
		}
		early := t.free(u, w.LookIgnoresRows)
		r.ending = true
		t.pause()
		if w.rights[u] != r || !t.lock(u) {
			return
		}
		if w.LookLooksFirst && early || !w.LookLooksFirst && t.free(u, w.LookIgnoresRows) {
			r.block, r.proxy, r.turn = false, false, w.number()
			w.release(u)
			w.seen["returned"]++
		}
		r.ending = false
		t.unlock()
		return
	}
}

// forget tidies a row away that nothing refers to, in one statement under its lock.
func (t *task) forget() {
	w := t.w
	for _, u := range sorted(w.rights) {
		if r := w.rights[u]; !r.proxy && !r.kept && t.lock(u) {
			if !r.proxy && !r.kept && !w.stored(u, true) && !w.stored(u, false) && (!w.named(u, true) && !w.named(u, false) || w.ForgetIgnoresRows) {
				delete(w.rights, u)
				w.seen["forgotten"]++
			}
			t.unlock()
			return
		}
	}
}

// finalise removes a target that waits for nobody.
func (t *task) finalise() {
	w := t.w
	for _, u := range sorted(w.targets) {
		if tg := w.targets[u]; tg.deleting && !tg.notice && !tg.proxies && !tg.tentative {
			delete(w.targets, u)
			w.active = 0
			w.note("%d is gone", u)
			for h, to := range w.rows {
				if to == u {
					w.report("I1: %d is gone, and holder %d refers to it", u, h)
				}
			}
		}
	}
}

// acquire asks for a right: which target has the name; a row for it, which has a turn; the question; and the answer, for that turn.
func (t *task) acquire(block bool) {
	w := t.w
	u := w.active
	if u == 0 || w.targets[u].deleting {
		return
	}
	t.pause()
	if !w.AnswerMakesRow && w.rights[u] == nil {
		w.rights[u] = &right{turn: w.number(), kept: true, sharers: map[*task]bool{}}
	}
	turn := 0
	if r := w.rights[u]; r != nil {
		turn = r.turn
	}
	t.pause()
	tg := w.targets[u]
	if tg == nil || tg.deleting {
		return
	}
	had := tg.proxies
	if block {
		tg.tentative = true
	} else {
		tg.entry = true
	}
	t.pause()
	w.take(u, turn, block, had)
}

func (w *World) take(u uid, turn int, block, had bool) {
	r, tg := w.rights[u], w.targets[u]
	if r == nil && w.AnswerMakesRow {
		r = &right{turn: turn, kept: true, sharers: map[*task]bool{}}
		w.rights[u] = r
	}
	if block && tg != nil {
		tg.tentative = false
	}
	if r == nil || r.turn != turn && !w.TakesAnyTurn || r.alone != nil || w.GrantsAlone && len(r.sharers) > 0 || tg == nil || block && tg.deleting && !tg.notice && !had {
		return
	}
	if block {
		r.block, r.proxy, tg.proxies = true, true, true
	} else {
		r.act = true
	}
	w.seen["acquired"]++
}
