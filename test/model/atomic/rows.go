package atomic

import "slices"

// row says that a resource is frozen by a deletion. It is never changed in place.
type row struct {
	coordinator, epoch int
	via                UID   // the target because of which it is frozen; 0: it is of the root
	lasting            bool  // the deletion is known to be committed
	kept               bool  // the deletion is known to be scheduled
	asks               bool  // there was a restore since
	own                int   // the epoch of this database
	entries            []int // only for a mistake: what was read in the transaction of the freeze
}

// due reports whether a row is looked at from time to time: its deletion has expired here, or there was a
// restore.
func (w *World) due(x int, id ID, r row) bool { return w.expired[id][x] && !r.kept || r.asks }

// frozen reports whether any deletion freezes a resource.
func (d *database) frozen(uid UID) bool { return len(d.rows[uid]) > 0 }

// frozenBy lists what a deletion freezes.
func (d *database) frozenBy(id ID) []UID {
	return slices.DeleteFunc(sorted(d.rows), func(uid UID) bool { _, ok := d.rows[uid][id]; return !ok })
}

func (d *database) put(uid UID, id ID, r row) {
	if d.rows[uid] == nil {
		d.rows[uid] = map[ID]row{}
	}
	d.rows[uid][id] = r
}

func (d *database) drop(uid UID, id ID) {
	if delete(d.rows[uid], id); len(d.rows[uid]) == 0 {
		delete(d.rows, uid)
	}
}

// each calls for each row, in the order of the resources and deletions.
func (d *database) each(do func(uid UID, id ID, r row)) {
	for _, uid := range sorted(d.rows) {
		for _, id := range sorted(d.rows[uid]) {
			do(uid, id, d.rows[uid][id])
		}
	}
}

// open drops the row of a deletion without a mark.
func (w *World) open(x int, uid UID, id ID) {
	w.note("%d is opened by %d", uid, id)
	w.db[x].drop(uid, id)
	w.opened(id, uid)
}

// last makes the rows of a committed deletion lasting.
func (w *World) last(x int, id ID) {
	d := w.db[x]
	for _, uid := range d.frozenBy(id) {
		if w.CommittedOpens {
			w.open(x, uid, id)
			continue
		}
		if r := d.rows[uid][id]; !r.lasting {
			w.note("%d is frozen by %d until it is marked", uid, id)
			w.count("lasting")
			r.lasting, r.kept = true, false
			d.put(uid, id, r)
		}
	}
}

// askAgain lets a database ask for the decisions of a restored coordinator (R4), and about all that it has
// frozen if it was restored itself (R2). What lasts goes on to last.
func (w *World) askAgain(x, restored int) {
	d := w.db[x]
	d.each(func(uid UID, id ID, r row) {
		if x == restored || r.coordinator == restored {
			r.asks = !r.kept || !w.KeptAsksNever
			r.lasting = r.lasting && (x == restored || !w.RestoredOpensLasting)
			d.put(uid, id, r)
		}
	})
}

// dropRows drops the rows of a resource that is marked, of all deletions: the mark ends what they keep.
func (w *World) dropRows(a int, uid UID, cause ID) {
	d := w.db[a]
	for id := range d.rows[uid] {
		if id == cause || !w.MarkDropsOwnRow {
			d.drop(uid, id)
		}
	}
}

// via is the target because of which a resource is frozen here: of the Freeze, or one that was found before
// it.
func (w *World) via(m message, uid UID) UID {
	if w.home[m.uid] == m.to && m.uid == uid {
		return 0
	}
	for _, to := range append([]UID{m.uid}, m.found...) {
		if to != uid && w.db[m.to].refersTo(uid, to) {
			return to
		}
	}
	return m.uid
}

// refersTo reports whether a holder goes with a target.
func (d *database) refersTo(holder, to UID) bool {
	return slices.ContainsFunc(d.resources[holder].refs, func(r reference) bool { return r.to == to && r.b == Cascade })
}
