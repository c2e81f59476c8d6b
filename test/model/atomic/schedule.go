package atomic

// schedule decides that a deletion is decided later: its members are frozen and hidden until then.
func (w *World) schedule(p *process) {
	w.note("%d is scheduled", p.id)
	w.count("scheduled")
	by := sorted(p.epochs)
	w.db[p.at].records[p.id] = record{scheduled: true, by: by, waits: by}
	delete(w.processes, p.id)
	w.Tell(p.at, p.id)
}

// Undelete decides a scheduled deletion ABORTED.
func (w *World) Undelete(at int, id ID) {
	d := w.db[at]
	if r := d.records[id]; r.scheduled {
		w.count("undeleted")
		d.records[id] = record{waits: r.by}
		w.aborted(id)
		w.Tell(at, id)
		if w.UndeleteIsToldOnce {
			d.records[id] = record{}
		}
	}
}

// Purge begins the deletion that carries out a scheduled one: an atomic deletion of its own, which freezes
// the members again.
func (w *World) Purge(at int, id ID) {
	d := w.db[at]
	if !d.records[id].scheduled || len(w.begun) > 6 {
		return
	}
	before := len(w.begun)
	if w.Start(at, w.begun[id].root); len(w.begun) == before {
		return
	}
	p := w.processes[ID(w.n)]
	p.purges = id
	if w.PurgeDoesNotFreeze {
		p.work = nil
	}
}

// keep makes the rows of a scheduled deletion wait without asking (S2).
func (w *World) keep(x int, id ID) {
	for _, uid := range w.db[x].frozenBy(id) {
		if r := w.db[x].rows[uid][id]; !r.lasting {
			w.count("kept")
			r.kept, r.asks = true, false
			w.db[x].put(uid, id, r)
		}
	}
}

// purged decides a scheduled deletion COMMITTED, in the transaction that decides its purge. What the one has
// frozen, the other has frozen too.
func (w *World) purged(p *process) {
	d, id := w.db[p.at], p.purges
	by := d.records[id].by
	w.count("purged")
	w.decides(id, "committed")
	if !w.PurgeEndsNothing {
		d.records[id] = record{committed: true, waits: by}
	}
	members := map[UID]bool{}
	for _, x := range w.there() {
		if w.reached[id][x] && (w.db[x].recovering || w.db[x].epoch != 1) {
			w.void(id, "a restore while it was scheduled")
		}
		for _, uid := range w.db[x].frozenBy(id) {
			members[uid] = true
		}
	}
	for x := range w.decommissioned {
		if w.reached[id][x] {
			w.void(id, "a decommissioning while it was scheduled")
		}
	}
	if w.excused[p.id] != "" {
		w.void(id, "as for its purge")
	}
	for _, uid := range sorted(members) {
		if w.excused[id] == "" && !w.members[p.id][uid] && !w.cascadesToMarked(uid) {
			w.report("A1: %d is purged, and its member %d is not frozen by the purge", id, uid)
		}
	}
	w.members[id] = members
}

// scheduleAgain lets a restored coordinator tell its scheduled deletions again: it may have lost an undelete.
func (w *World) scheduleAgain(at int) {
	d := w.db[at]
	for id, r := range d.records {
		if r.scheduled && !w.RestoreSchedulesOnce {
			r.waits = r.by
			d.records[id] = r
		}
	}
}

// halfUndeleted checks that a deletion is scheduled everywhere, or nowhere.
func (w *World) halfUndeleted() {
	for _, at := range w.there() {
		for _, id := range sorted(w.db[at].records) {
			for _, x := range w.db[at].records[id].by {
				if w.db[at].records[id].scheduled && !w.decommissioned[x] && w.db[x].closed[id] {
					w.report("A5: %d is scheduled, and %d has opened its members", id, x)
				}
			}
		}
	}
}

// end ends the scheduled deletions at rest, one way or the other.
func (w *World) end() {
	for range 3 {
		w.round()
	}
	w.halfUndeleted()
	for _, at := range w.there() {
		for _, id := range sorted(w.db[at].records) {
			if w.db[at].records[id].scheduled && w.chance(2) {
				w.Undelete(at, id)
				continue
			}
			w.Purge(at, id)
		}
	}
	for n := 0; n < 50 && len(w.processes) > 0; n++ {
		w.round()
	}
	for _, at := range w.there() { // the purge was refused
		for _, id := range sorted(w.db[at].records) {
			w.Undelete(at, id)
		}
	}
}
