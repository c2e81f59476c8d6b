package atomic

// holds reports whether a mark at x may still come from a target: a deletion has frozen it, or it is marked,
// and x
// has an entry there (L4).
func (w *World) holds(a int, id ID, to UID, x int) bool {
	d := w.db[a]
	_, frozen := d.rows[to][id]
	r, exists := d.resources[to]
	acts := a == x || d.entries[entry{to, x}] || w.ReleasedHolds
	return frozen || r.marked && acts && !w.MarkedIsBroken || !exists && w.GoneHolds
}

// Follow asks for the target because of which a lasting row is there, in its own database or elsewhere (L4).
func (w *World) Follow(x int, uid UID, id ID) {
	d := w.db[x]
	r, ok := d.rows[uid][id]
	if !ok || !r.lasting || r.via == 0 || !w.due(x, id, r) || d.recovering || w.BrokenStays {
		return
	}
	switch a := w.home[r.via]; {
	case !d.refersTo(uid, r.via), d.left[a], a == x && !w.holds(x, id, r.via, x):
		w.breaks(x, uid, id)
	case a != x:
		w.send(message{kind: "holds?", id: id, from: x, to: a, uid: r.via})
	}
}

// followed answers for a target. Its deployment does not answer while it recovers.
func (w *World) followed(m message) {
	if d := w.db[m.to]; !d.recovering && !w.holds(m.to, m.id, m.uid, m.from) {
		w.send(message{kind: "holds not", id: m.id, from: m.to, to: m.from, uid: m.uid})
	}
}

// unheld takes the answer.
func (w *World) unheld(m message) {
	d := w.db[m.to]
	if d.recovering {
		return
	}
	for _, uid := range d.frozenBy(m.id) {
		if r := d.rows[uid][m.id]; r.lasting && r.via == m.uid {
			w.breaks(m.to, uid, m.id)
		}
	}
}

// breaks opens a lasting row that no mark will reach.
func (w *World) breaks(x int, uid UID, id ID) {
	w.count("broken")
	w.open(x, uid, id)
}
