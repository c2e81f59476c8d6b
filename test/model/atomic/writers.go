package atomic

import "slices"

// write is under way: it has the answer of the target's deployment, and is not committed.
type write struct {
	at      int
	holder  UID // 0: a new one, without a uid yet
	fresh   bool
	ref     reference
	under   int // how often the right was ended; -1: it is under no right
	epochs  [2]int
	checked bool // only for a mistake: what is checked at the commit was checked before
}

// Begin begins a write of a reference: under a right, or with an attempt at the target's deployment.
func (w *World) Begin(at int, holder, to UID, b Behaviour) {
	d, home := w.db[at], w.home[to]
	if w.decommissioned[at] || w.decommissioned[home] || d.left[home] || w.db[home].left[at] {
		return
	}
	wr := &write{
		at: at, holder: holder, fresh: holder == 0, ref: reference{to: to, b: b}, under: -1,
		epochs: [2]int{d.epoch, d.knows[home]},
	}
	switch {
	case home == at:
	case d.rights[to] && b != Block:
		wr.under = d.closes[to]
		w.count("under a right")
	case !w.establish(wr):
		return
	}
	wr.checked = w.free(wr)
	w.writes = append(w.writes, wr)
}

// establish leaves the blockade of an attempt.
func (w *World) establish(wr *write) bool {
	home := w.home[wr.ref.to]
	a := w.db[home]
	if a.recovering || a.epoch != wr.epochs[1] || a.knows[wr.at] != wr.epochs[0] || !w.takes(home, wr.ref) {
		return false
	}
	if wr.holder == 0 {
		wr.holder = UID(w.number())
		w.home[wr.holder] = wr.at
	}
	wr.ref.attempt = w.number()
	a.blockades[wr.ref.attempt] = blockade{holder: wr.holder, home: wr.at, to: wr.ref.to, b: wr.ref.b, tentative: true}
	return true
}

// takes reports whether a target takes a new reference, behind its lock (Z1).
func (w *World) takes(home int, ref reference) bool {
	return w.db[home].active(ref.to) && (!w.db[home].frozen(ref.to) || w.FrozenTakesUnset && ref.b == Unset)
}

// free reports what the transaction of a write checks in its own database, behind the locks.
func (w *World) free(wr *write) bool {
	d := w.db[wr.at]
	if w.home[wr.ref.to] == wr.at && !w.takes(wr.at, wr.ref) {
		return false
	}
	return (wr.fresh || w.changes(wr.at, wr.holder)) && (wr.under < 0 || d.rights[wr.ref.to] &&
		d.closes[wr.ref.to] == wr.under)
}

// changes reports whether the references of a holder may change.
func (w *World) changes(at int, holder UID) bool {
	d := w.db[at]
	return d.active(holder) && (!d.frozen(holder) || w.OwnReferencesChange)
}

// Commit commits a write.
func (w *World) Commit(i int) {
	wr := w.writes[i]
	w.writes = slices.Delete(w.writes, i, i+1)
	d, home := w.db[wr.at], w.home[wr.ref.to]
	free := w.free(wr)
	if w.WritersCheckBeforeLock {
		free = wr.checked && (wr.fresh || d.active(wr.holder))
	}
	if !free || d.recovering || d.left[home] || d.epoch != wr.epochs[0] || d.knows[home] != wr.epochs[1] {
		return
	}
	if wr.holder == 0 {
		wr.holder = w.create(wr.at)
	}
	r := d.resources[wr.holder]
	r.refs = append(slices.Clone(r.refs), wr.ref)
	d.resources[wr.holder] = r
	w.note("%d of %d refers to %d: %d", wr.holder, wr.at, wr.ref.to, wr.ref.b)
	w.count("written")
}

// Drop drops a reference of a holder.
func (w *World) Drop(at int, holder UID, i int) {
	d := w.db[at]
	if !d.active(holder) || !w.changes(at, holder) || i >= len(d.resources[holder].refs) {
		return
	}
	w.dropRefs(at, holder, func(r reference) bool { i--; return i == -1 })
}

func (w *World) dropRefs(at int, holder UID, which func(r reference) bool) {
	r := w.db[at].resources[holder]
	r.refs = slices.DeleteFunc(slices.Clone(r.refs), which)
	w.db[at].resources[holder] = r
}

// refers reports whether a holder has the reference of an attempt.
func (d *database) refers(holder UID, attempt int) bool {
	return slices.ContainsFunc(d.resources[holder].refs, func(r reference) bool { return r.attempt == attempt })
}

// Settle asks the holder's deployment about an attempt, confirmed or not, and reports whether it is decided.
// One that is not committed may be
// denied. One to act becomes an entry, which grants the right.
func (w *World) Settle(a, attempt int) bool {
	d := w.db[a]
	b := d.blockades[attempt]
	x := w.db[b.home]
	if w.decommissioned[b.home] || x.recovering || d.recovering {
		return false
	}
	if i := slices.IndexFunc(w.writes, func(wr *write) bool { return wr.ref.attempt == attempt }); i >= 0 {
		if !w.calm && w.chance(2) {
			return false
		}
		w.writes = slices.Delete(w.writes, i, i+1)
	}
	switch {
	case !x.refers(b.holder, attempt):
		delete(d.blockades, attempt)
	case b.b == Block:
		b.tentative = false
		d.blockades[attempt] = b
	default:
		delete(d.blockades, attempt)
		d.entries[entry{b.to, b.home}] = true
		w.grant(a, b.home, b.to, b.b)
	}
	return true
}

// grant gives the right to act.
func (w *World) grant(a, x int, to UID, b Behaviour) {
	d := w.db[a]
	if d.active(to) && (!d.frozen(to) || w.FrozenGrants || w.FrozenTakesUnset && b == Unset) {
		w.send(message{
			kind: "grant", from: a, to: x, uid: to, epoch: d.epoch, own: w.db[x].epoch,
			turn: w.db[x].closes[to],
		})
	}
}

// Confirm repeats the confirm of a reference that acts: its first answer may be lost.
func (w *World) Confirm(x int, h UID, i int) {
	r := w.db[x].resources[h].refs[i]
	a := w.home[r.to]
	d := w.db[a]
	if a != x && !w.decommissioned[a] && !d.recovering && !w.db[x].recovering && r.b != Block &&
		d.entries[entry{r.to, x}] {
		w.grant(a, x, r.to, r.b)
	}
}

// granted takes a right, unless it was ended since it was asked for.
func (w *World) granted(m message) {
	d := w.db[m.to]
	if !d.recovering && d.epoch == m.own && d.knows[m.from] == m.epoch && (d.closes[m.uid] == m.turn || w.LateGrants) {
		d.rights[m.uid] = true
	}
}

// Delete is an ordinary deletion: it marks what nothing blocks, frozen or not (Z2).
func (w *World) Delete(a int, uid UID) {
	d := w.db[a]
	if w.decommissioned[a] || d.recovering || !d.active(uid) || len(w.holders(a, uid, Block)) > 0 {
		return
	}
	for _, b := range d.blockades {
		if b.to == uid {
			return
		}
	}
	w.mark(a, uid, 0)
}

// mark marks a resource and what cascades to it in the database. It drops their references.
func (w *World) mark(a int, uid UID, cause ID) {
	d := w.db[a]
	if !d.active(uid) {
		return
	}
	w.beforeMark(a, uid, cause)
	d.resources[uid] = resource{marked: true, cause: cause}
	w.dropRows(a, uid, cause)
	w.cascade(a, uid, cause)
}

func (w *World) cascade(d int, uid UID, cause ID) {
	for _, h := range w.holders(d, uid, Cascade) {
		w.mark(d, h, cause)
	}
	for _, h := range w.holders(d, uid, Unset) {
		w.dropRefs(d, h, func(r reference) bool { return r.to == uid && r.b == Unset })
	}
}

// Act acts at x upon a marked target of a, and acknowledges.
func (w *World) Act(a int, n entry) {
	d, x := w.db[a], w.db[n.from]
	r := d.resources[n.to]
	if !r.marked || !d.entries[n] || d.recovering || x.recovering || w.decommissioned[n.from] {
		return
	}
	delete(x.rights, n.to)
	x.closes[n.to]++
	w.cascade(n.from, n.to, r.cause)
	delete(d.entries, n)
}

// Release removes an entry by decision of an operator: the references there are not acted upon, and dangle.
func (w *World) Release(a int, n entry) {
	d, x := w.db[a], w.db[n.from]
	if !d.resources[n.to].marked || !d.entries[n] || d.recovering || x.recovering || w.decommissioned[n.from] {
		return
	}
	w.note("the entry of %d for %d is released", n.from, n.to)
	for id := range w.begun {
		w.void(id, "a forced release")
	}
	delete(x.rights, n.to)
	x.closes[n.to]++
	delete(d.entries, n)
}

// Finalise removes a resource that waits for nothing.
func (w *World) Finalise(a int, uid UID) {
	d := w.db[a]
	if r := d.resources[uid]; r.marked && !d.recovering && w.waitsFor(a, uid) == "" {
		w.note("%d is removed", uid)
		w.count("removed")
		delete(d.resources, uid)
	}
}

func (w *World) waitsFor(a int, uid UID) string {
	d := w.db[a]
	if len(w.holders(a, uid, Block)) > 0 {
		return "a local reference"
	}
	if len(w.entriesOf(a, uid)) > 0 {
		return "an entry"
	}
	for _, b := range d.blockades {
		if b.to == uid {
			return "a blockade"
		}
	}
	return ""
}

// Compare ends the recovery of a deployment: all others compare with it, and it with them, in one step.
func (w *World) Compare(d int) {
	if w.decommissioned[d] || !w.db[d].recovering || w.ComparisonsWait && w.touchesFrozen(d) {
		return
	}
	w.note("%d is compared", d)
	w.writes = slices.DeleteFunc(w.writes, func(wr *write) bool { return wr.at == d || w.home[wr.ref.to] == d })
	w.db[d].recovering = false
	clear(w.db[d].rights)
	for _, o := range w.there() {
		w.askAgain(o, d) // R2, R4
		if o != d {
			w.compare(d, o, d)
			w.compare(d, d, o)
		}
	}
}

// compare compares the references of x with the database of a, after the restore of d.
func (w *World) compare(d, a, x int) {
	t, o := w.db[a], w.db[x]
	t.knows[a], t.knows[x], o.knows[a] = t.epoch, o.epoch, t.epoch
	for _, k := range sorted(t.blockades) {
		if b := t.blockades[k]; b.home == x && !o.refers(b.holder, k) {
			delete(t.blockades, k)
		}
	}
	for to := range o.rights {
		if w.home[to] == a {
			delete(o.rights, to)
		}
	}
	for _, h := range sorted(o.resources) {
		w.dropRefs(x, h, func(r reference) bool { // it dangles, until somebody drops it
			_, exists := t.resources[r.to]
			return w.home[r.to] == a && !exists && w.chance(2)
		})
		for _, r := range o.resources[h].refs {
			if _, exists := t.resources[r.to]; exists && w.home[r.to] == a {
				w.restoreReference(d, a, x, h, r)
			}
		}
	}
}

// restoreReference establishes a stored reference again, to a frozen target as well (Z3).
func (w *World) restoreReference(d, a, x int, h UID, r reference) {
	t := w.db[a]
	_, tentative := t.blockades[r.attempt]
	if tentative || r.b != Block && t.entries[entry{r.to, x}] {
		return
	}
	if r.b == Block {
		t.blockades[r.attempt] = blockade{holder: h, home: x, to: r.to, b: Block}
	} else {
		t.entries[entry{r.to, x}] = true
	}
	w.broughtBack(d, a, r.to)
}

func (w *World) touchesFrozen(d int) bool {
	for _, a := range w.there() {
		for uid := range w.db[a].rows {
			for b := range behaviours {
				if len(w.holders(d, uid, b)) > 0 {
					return true
				}
			}
		}
	}
	return false
}

// Decommission ends a deployment for ever. The others learn it one by one.
func (w *World) Decommission(d int) {
	w.note("%d is decommissioned", d)
	w.decommissioned[d] = true
	w.writes = slices.DeleteFunc(w.writes, func(wr *write) bool { return wr.at == d })
	w.lostDeployment(d)
}

// Learn lets a deployment learn of a decommissioning: what is about the other deployment goes, and the rows
// of its freezes.
func (w *World) Learn(x, gone int) {
	d := w.db[x]
	if !w.decommissioned[gone] || w.decommissioned[x] || d.left[gone] {
		return
	}
	w.note("%d learns that %d is decommissioned", x, gone)
	d.left[gone] = true
	for _, k := range sorted(d.blockades) {
		if d.blockades[k].home == gone {
			delete(d.blockades, k)
		}
	}
	for e := range d.entries {
		if e.from == gone {
			delete(d.entries, e)
		}
	}
	for _, h := range sorted(d.resources) {
		// or it dangles
		w.dropRefs(x, h, func(r reference) bool { return w.home[r.to] == gone && (r.b != Cascade || w.chance(2)) })
	}
	w.openRowsOf(x, gone)
}

// openRowsOf opens all that a coordinator has frozen.
func (w *World) openRowsOf(x, coordinator int) {
	w.db[x].each(func(uid UID, id ID, r row) {
		if r.coordinator == coordinator {
			w.open(x, uid, id)
		}
	})
}
