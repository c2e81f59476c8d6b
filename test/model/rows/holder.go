package rows

import "slices"

// insert is a statement that names the target, in one transaction: it shares the right, or leaves a request.
// A strict one waits for the lock, and fails without a right. One above READ COMMITTED has the rights of its
// snapshot.
func (t *task) insert(h int, strict, repeatable bool) {
	w, block := t.w, h%2 == 0
	var found *right
	if r := w.counting(block); r != nil && !w.h.ending {
		found = r
	}
	version := 0
	if found != nil {
		version = found.version
	}
	t.pause()
	if found != nil && !w.SharesWithoutLock && !t.share(found, strict) {
		found = nil
	}
	if found != nil && repeatable && found.version != version && !w.RepeatableReadsTakeAnyRight {
		w.seen["40001"]++
		return
	}
	// PostgreSQL looks at the conditions again under the lock, by the present row.
	if found != nil && !repeatable && !w.counts(found) {
		found = nil
	}
	if found == nil && strict {
		w.seen["RD001"]++
		return
	}
	requests := found == nil || repeatable && !strict
	t.pause() // the commit
	if _, there := w.h.rows[h]; there {
		return
	}
	w.h.rows[h], w.h.meant[h] = 0, 0
	if w.t.active != 0 && !w.t.deleting {
		w.h.meant[h] = w.t.active
	}
	if found != nil {
		w.h.rows[h] = found.uid
	}
	if requests {
		w.h.requests = append(w.h.requests, request{w.number(), block})
		w.seen["request"]++
	}
	w.seen["written"]++
	w.note("row %d is written, to %d", h, w.h.rows[h])
}

// drop deletes a row in plain SQL.
func (t *task) drop(h int) {
	if _, there := t.w.h.rows[h]; there {
		delete(t.w.h.rows, h)
		t.w.note("row %d is deleted", h)
	}
}

// answer is the answer to a question for a right.
type answer struct {
	refused, missing bool
	uid              uid
	tEpoch           int
}

// grant asks for the right that requests, a missing value, or a lost epoch want.
func (t *task) grant(block bool) {
	w := t.w
	read := w.h.requests
	wanted := slices.ContainsFunc(read, func(o request) bool { return o.block == block })
	lost := slices.ContainsFunc(w.h.rights, func(r *right) bool {
		return r.block == block && w.lost(r) && r.state == granted
	})
	if !wanted && w.h.missing[block] == 0 && !lost {
		return
	}
	if r := w.counting(block); r != nil && wanted && !w.h.ending {
		// A right is there already: the requests go under a share of it.
		t.pause()
		if t.share(r, false) && w.counts(r) {
			w.take(r, block)
		}
		return
	}
	seqs := map[int]bool{}
	for _, o := range read {
		seqs[o.seq] = o.block == block
	}
	r := &right{turn: w.number(), block: block, state: asked, hEpoch: w.h.epoch, kept: true, sharers: map[*task]bool{}}
	w.h.rights = append(w.h.rights, r)
	var a answer
	if !t.call(func() { a = w.establish(r.turn, block, r.hEpoch) }) {
		if r.state == asked {
			r.set(ended)
			w.h.releases[r.turn] = true
		}
		return
	}
	t.store(r, a, seqs)
}

// store stores the answer to a question, in one transaction.
func (t *task) store(r *right, a answer, seqs map[int]bool) {
	w := t.w
	if !slices.Contains(w.h.rights, r) || r.state != asked && !w.GrantsAnEndedTurn {
		return
	}
	w.note("turn %d is answered: %+v", r.turn, a)
	if a.refused || a.tEpoch != w.h.tKnown || r.hEpoch != w.h.epoch {
		r.set(ended)
		w.h.releases[r.turn] = true
		return
	}
	if a.missing {
		r.set(ended)
		if w.counting(r.block) != nil && !w.LateMissingCounts { // a later question was answered before
			return
		}
		w.h.missing[r.block] = a.tEpoch
		w.h.requests = slices.DeleteFunc(w.h.requests, func(o request) bool {
			return o.block == r.block && (seqs[o.seq] || w.MissingTakesLaterRequests)
		})
		w.seen["missing"]++
		return
	}
	for _, o := range w.h.rights {
		if o.uid == a.uid && o.state == acted && !w.ActedOutlivesAGrant {
			o.set(ended) // T was restored to before the deletion
		}
	}
	r.set(granted)
	r.uid, r.tEpoch = a.uid, a.tEpoch
	w.take(r, r.block)
	w.seen["granted"]++
	w.note("turn %d is granted: %d, block %t", r.turn, r.uid, r.block)
}

// take makes a right stand for the rows of its kind that had none.
func (w *World) take(r *right, block bool) {
	w.h.requests = slices.DeleteFunc(w.h.requests, func(o request) bool { return o.block == block })
	delete(w.h.missing, block)
	for h, to := range w.h.rows {
		if to == 0 && (h%2 == 0) == block {
			w.h.rows[h] = r.uid
		}
	}
}

// actOnMissing removes the rows of a missing value, in one statement: unless a right is there, or a request
// that was not read before the last question.
func (t *task) actOnMissing() {
	w := t.w
	if w.h.missing[false] == 0 || w.h.missing[false] != w.h.tKnown && !w.MissingOutlivesAnEpoch ||
		w.counting(false) != nil || len(w.h.requests) > 0 && !w.MissingActsBesideARequest {
		return
	}
	w.removeRows("missing")
	delete(w.h.missing, false)
	w.h.requests = slices.DeleteFunc(w.h.requests, func(o request) bool {
		return !o.block && w.MissingActsBesideARequest
	})
}

// removeRows removes the rows that go with their target.
func (w *World) removeRows(why string) {
	for h := range w.h.rows {
		if h%2 == 0 {
			continue
		}
		if u := w.h.meant[h]; u != 0 && u == w.t.active && !w.t.deleting && w.h.tKnown == w.t.epoch {
			w.report("I11: row %d refers to %d, which is there, and is removed: %s", h, u, why)
		}
		delete(w.h.rows, h)
		w.seen["removed: "+why]++
	}
}

// free ends a right to block that no row uses: a look without a lock; then the name is ending, its rights are
// locked, and a later statement looks again. It reports whether the right has ended.
func (t *task) free(r *right) (free, known bool) {
	w := t.w
	if w.refer(true) {
		w.seen["held"]++
		return false, true
	}
	if r.state == asked { // the answer may be on its way: it does not fit any more
		r.set(ended)
		return true, true
	}
	w.h.ending = true
	t.pause()
	if !w.ReturnsBesideAShare {
		for _, o := range w.h.rights {
			if o.state != ended && !t.lock(o) {
				w.h.ending = false
				t.unlock()
				w.seen["undecided"]++
				return false, false
			}
		}
	}
	t.pause()
	if w.refer(true) && !w.LooksBeforeTheLock {
		w.h.ending = false
		t.unlock()
		w.seen["held after the lock"]++
		return false, true
	}
	r.set(ended)
	w.h.ending = false
	t.unlock()
	return true, true
}

// look returns a right that no row uses, or ends a right of a lost epoch whose name is claimed.
func (t *task) look() {
	w := t.w
	for _, r := range w.h.rights {
		switch {
		case r.state == granted && !w.counts(r) && w.claimed(r.block):
			if t.lock(r) && w.claimed(r.block) && r.state == granted {
				r.set(ended)
				w.h.releases[r.turn] = true
				w.seen["a lost right ended"]++
			}
			t.unlock()
			return
		case r.state == granted && r.block && !r.kept:
			if free, _ := t.free(r); free {
				w.h.releases[r.turn] = true
				w.seen["returned"]++
			}
			return
		}
	}
}

// release tells T of the first turn that is over, until it is answered.
func (t *task) release() {
	h := t.w.h
	turns := sorted(h.releases)
	if len(turns) > 0 && t.call(func() { t.w.release(turns[0]) }) {
		delete(h.releases, turns[0])
	}
}

// unknown reports whether H has no such right, or has ended it.
func (w *World) unknown(turn int) bool {
	i := slices.IndexFunc(w.h.rights, func(r *right) bool { return r.turn == turn })
	return i < 0 || w.h.rights[i].state == ended
}

// answerRecall answers T's question for a right to block.
func (t *task) answerRecall(turn int) (free, known bool) {
	w := t.w
	i := slices.IndexFunc(w.h.rights, func(r *right) bool { return r.turn == turn })
	if i < 0 || w.h.rights[i].state == ended {
		return true, true
	}
	return t.free(w.h.rights[i])
}

// act closes the rights to a deleted target, acts upon its rows, and acknowledges.
func (t *task) act() {
	w, h := t.w, t.w.h
	if !w.t.notice || h.uncertain || w.t.epoch != h.tKnown {
		return
	}
	u, tEpoch := w.t.active, w.t.epoch
	var mine []*right
	t.pause()
	for _, r := range h.rights {
		if r.state == asked && !w.ClosesLeaveQuestions { // its answer may name this target
			r.set(ended)
			h.releases[r.turn] = true
		}
		if r.uid != u || r.state != granted && r.state != closed {
			continue
		}
		if !w.ClosesWithoutWaiting && !t.lock(r) {
			t.unlock()
			return
		}
		if r.state == granted {
			r.set(closed)
		}
		mine = append(mine, r)
		t.unlock()
	}
	done := slices.ContainsFunc(h.rights, func(r *right) bool { return r.uid == u && r.state == acted })
	if len(mine) == 0 && !done && !w.ClosesLeaveNoTrace { // there is no right: the deletion has a row all the same
		r := &right{
			turn: w.number(), uid: u, state: closed, hEpoch: h.epoch, tEpoch: h.tKnown,
			sharers: map[*task]bool{},
		}
		h.rights, mine = append(h.rights, r), append(mine, r)
	}
	t.pause()
	// Each batch is a transaction, and looks first.
	for _, r := range h.rights {
		later := r.state == granted && r.uid != u
		if later && !w.ActsWithoutALook {
			w.seen["another target"]++
			return
		}
	}
	if slices.ContainsFunc(h.rights, func(r *right) bool {
		return r.uid == u && r.state == acted
	}) && !w.ActsWithoutALook {
		w.acknowledge(t, u, tEpoch)
		return
	}
	w.removeRows("its target is deleted")
	t.pause()
	if w.refer(false) { // rows that came meanwhile have requests, and go with the next batch
		w.seen["rows came meanwhile"]++
		return
	}
	end := func() {
		for _, r := range mine {
			r.set(acted)
		}
	}
	if !w.ActedAfterTheAcknowledgement {
		end()
	}
	if w.acknowledge(t, u, tEpoch) && w.ActedAfterTheAcknowledgement {
		end()
	}
}

func (w *World) acknowledge(t *task, u uid, tEpoch int) bool {
	hEpoch := w.h.epoch
	ok := t.call(func() {
		if w.t.active == u && w.t.epoch == tEpoch && w.t.hKnown == hEpoch && w.t.confirms {
			w.t.notice = false
			w.seen["acknowledged"]++
		}
	})
	return ok
}

// claimed reports whether the rights of a kind that are lost were asked for anew, and answered.
func (w *World) claimed(block bool) bool {
	return w.counting(block) != nil || w.h.missing[block] == w.h.tKnown
}

// recover claims the rights of lost epochs first, and confirms when all are claimed or answered.
func (t *task) recover() {
	w := t.w
	if w.h.tKnown != w.t.epoch {
		t.pause()
		w.h.tKnown, w.h.uncertain = w.t.epoch, true // T has told it
		w.seen["H hears of an epoch"]++
	}
	if !w.h.uncertain && w.t.confirms {
		return
	}
	for _, block := range []bool{true, false} {
		lost := slices.ContainsFunc(w.h.rights, func(r *right) bool {
			return r.block == block && r.state == granted && !w.counts(r)
		})
		requested := slices.ContainsFunc(w.h.rights, func(r *right) bool {
			return r.block == block && r.state == closed
		})
		old := w.h.missing[block] > 0 && w.h.missing[block] != w.h.tKnown
		if (lost && !w.claimed(block) || old && !w.MissingOutlivesAnEpoch) && !w.ConfirmsBeforeClaims {
			t.grant(block)
			return
		}
		if requested { // of such a close nothing is acted upon any more: it is asked anew
			for _, r := range w.h.rights {
				if r.block == block && r.state == closed {
					w.h.requests = append(w.h.requests, request{w.number(), block})
					r.set(ended)
				}
			}
		}
	}
	hEpoch, tEpoch, h := w.h.epoch, w.h.tKnown, w.h
	if t.call(func() { w.confirm(hEpoch, tEpoch) }) && h.epoch == hEpoch && h.tKnown == tEpoch {
		h.uncertain = false
	}
}
