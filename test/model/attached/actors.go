package attached

import (
	"maps"
	"slices"
)

// visible returns the shadow of a row of A.
func (a *targets) visible(k key) uid {
	for u, s := range a.shadows {
		if s.of == k {
			return u
		}
	}
	return 0
}

// insertTarget inserts a row of A, by plain SQL.
func (t *task) insertTarget(k key) {
	if w := t.w; t.lock(rowOf("A", k)) {
		if _, ok := w.a.rows[k]; !ok {
			w.a.rows[k] = w.number()
			w.note("insert target %d", k)
		}
	}
}

// deleteTarget deletes a row of A, by plain SQL: the row, then the trigger, then the commit. Above READ COMMITTED the trigger sees the
// shadows and blockades of its snapshot, and fails when there is a newer shadow, or one that was established since.
func (t *task) deleteTarget(k key, snapshot bool) {
	w := t.w
	old := w.a.visible(k)
	version, blocked := w.a.shadows[old].version, w.blocked(old)
	t.pause()
	if !t.lock(rowOf("A", k)) {
		return
	}
	if _, ok := w.a.rows[k]; !ok {
		return
	}
	t.pause()
	u := w.a.visible(k)
	if snapshot && w.SnapshotTrusted {
		u = old
	}
	if u != 0 && !t.lock(shadowOf(u)) {
		return
	}
	switch {
	case snapshot && !w.SnapshotTrusted && (u != old || w.a.shadows[u].version != version):
		w.seen["40001"]++
		return
	case !snapshot:
		blocked = w.blocked(u)
	}
	if u != 0 && blocked {
		w.seen["refused"]++
		return
	}
	t.pause()
	for h, stored := range w.x.stored {
		if stored.uid == u && u != 0 && h%2 == 0 && !stored.missing && w.a.blocks[u][h] {
			w.report("I3: the row of %d is deleted beside holder %d", k, h)
		}
	}
	delete(w.a.rows, k)
	w.seen["deleted"]++
	w.note("delete target %d, uid %d, snapshot %t", k, u, snapshot)
	switch {
	case u != 0 && !w.GoneByName:
		w.a.notes = append(w.a.notes, note{seq: w.number(), name: k, gone: u})
	case u != 0:
		w.a.notes = append(w.a.notes, note{seq: w.number(), name: k})
	}
}

func (w *World) blocked(u uid) bool { return len(w.a.blocks[u]) > 0 }

// write sets the column of a row of X, by plain SQL; to < 0 deletes the row, and its trigger notes the uid of its resource.
func (t *task) write(h, to key) {
	w := t.w
	if !t.lock(rowOf("X", h)) {
		return
	}
	t.pause()
	w.note("holder %d refers to %d", h, to)
	_, there := w.x.rows[h]
	own := w.x.stored[h].own
	if to < 0 {
		delete(w.x.rows, h)
	} else {
		w.x.rows[h] = to
	}
	switch {
	case !w.x.triggers, to < 0 && (!there || own == 0), to == 0 && !there:
	case to < 0:
		w.x.notes = append(w.x.notes, note{seq: w.number(), name: h, gone: own})
	default:
		w.x.notes = append(w.x.notes, note{seq: w.number(), name: h, batch: w.r.IntN(2) == 0})
	}
}

// spread replaces a batch by the notes of its rows, in one statement.
func (t *task) spread() {
	w := t.w
	i := slices.IndexFunc(w.x.notes, func(n note) bool { return n.batch })
	if i < 0 {
		return
	}
	n := w.x.notes[i]
	n.batch = false
	if w.SpreadsInTwoSteps {
		w.x.notes = slices.Delete(w.x.notes, i, i+1)
		t.pause()
		w.x.notes = append(w.x.notes, n)
	} else {
		w.x.notes[i] = n
	}
	w.seen["spread"]++
}

// attach makes the triggers. With a planted mistake, rows are read before.
func (t *task) attach() {
	w := t.w
	if w.ReadsBeforeTriggers {
		for _, h := range slices.Sorted(maps.Keys(w.x.rows)) {
			w.x.notes = append(w.x.notes, note{seq: w.number(), name: h})
		}
		w.x.complete = true
		t.pause()
	}
	w.x.triggers = true
}

// fill reads the next page, of one row.
func (t *task) fill() {
	w := t.w
	if !w.x.triggers || w.x.complete {
		return
	}
	from, next := w.x.filled, key(0)
	for h := range w.x.rows {
		if h > from && (next == 0 || h < next) {
			next = h
		}
	}
	t.pause()
	if w.x.filled != from { // another process was first
		return
	}
	if next == 0 {
		w.x.complete = true
		return
	}
	w.x.filled = next
	if w.CursorBeforeNotes {
		t.pause()
	}
	w.x.notes = append(w.x.notes, note{seq: w.number(), name: next})
}

// capture reads the notes of a row, then the row, then its resource; establishes; and stores under the lock of the row.
func (t *task) capture() {
	w := t.w
	changed := slices.DeleteFunc(slices.Clone(w.x.notes), func(n note) bool { return n.gone != 0 || n.batch })
	if len(changed) == 0 {
		return
	}
	h := changed[w.r.IntN(len(changed))].name
	seqs := map[int]bool{}
	for _, n := range changed {
		if n.name == h {
			seqs[n.seq] = true
		}
	}
	t.pause()
	value, there := w.x.rows[h]
	t.pause()
	before := w.x.stored[h]
	if there && w.x.going(h, before.own) && !w.StoresBesideGone { // the resource is that of the row before
		w.seen["going itself"]++
		return
	}
	if w.NotesRemovedFirst {
		w.forget(h, seqs)
		t.pause()
	}
	stored := holder{own: before.own, target: value}
	switch {
	case !there:
		stored = holder{}
	case value == 0:
	case before.target == value && before.uid != 0 && !before.missing:
		stored = before
	default:
		u, missing, ok := t.establish(h, value)
		if !ok {
			return
		}
		stored.uid, stored.missing = u, missing
		if stored.own == 0 {
			stored.own = uid(w.number())
		}
	}
	t.pause()
	if !t.lock(rowOf("X", h)) {
		return
	}
	if now, still := w.x.rows[h]; (now != value || still != there || w.x.stored[h] != before) && !w.StoresWithoutCompare {
		w.seen["changed meanwhile"]++
		return
	}
	w.note("store holder %d: %+v", h, stored)
	w.x.stored[h] = stored
	if stored == (holder{}) {
		delete(w.x.stored, h)
	}
	if before.uid != 0 && before.uid != stored.uid {
		w.release(h, before.uid)
	}
	w.seen["stored"]++
	if !stored.missing { // a reported one stays, and is tried again
		w.forget(h, seqs)
	}
}

func (w *World) forget(h key, seqs map[int]bool) {
	w.x.notes = slices.DeleteFunc(w.x.notes, func(n note) bool { return n.name == h && !n.batch && (seqs[n.seq] || w.RemovesNotesByName) })
}

func (w *World) release(h key, u uid) { delete(w.a.blocks[u], h) }

// going reports whether the row of a resource was deleted, and that is not carried out.
func (x *holders) going(h key, own uid) bool {
	return slices.ContainsFunc(x.notes, func(n note) bool { return n.name == h && n.gone == own && own != 0 })
}

// end carries out the deletion of a row of X.
func (t *task) end() {
	w := t.w
	i := slices.IndexFunc(w.x.notes, func(n note) bool { return n.gone != 0 })
	if i < 0 {
		return
	}
	n := w.x.notes[i]
	t.pause()
	if s := w.x.stored[n.name]; s.own == n.gone {
		delete(w.x.stored, n.name)
		w.release(n.name, s.uid)
		w.note("the resource %d of holder %d ends", n.gone, n.name)
		w.seen["ended"]++
	}
	w.x.notes = slices.DeleteFunc(w.x.notes, func(o note) bool { return o.seq == n.seq })
}

// establish runs at A: the row is locked, then its shadow, and deletions are read afterwards.
func (t *task) establish(h, k key) (u uid, missing, ok bool) {
	w := t.w
	t.pause()
	if !w.EstablishesWithoutRow && !t.lock(rowOf("A", k)) {
		return 0, false, false
	}
	row, there := w.a.rows[k]
	if u = w.a.visible(k); u == 0 && !there {
		t.unlock()
		return 0, true, true
	}
	t.pause()
	if u == 0 {
		u = uid(w.number())
	}
	if !t.lock(shadowOf(u)) {
		return 0, false, false
	}
	if _, exists := w.a.shadows[u]; !exists && w.a.visible(k) != 0 { // another process made one
		t.unlock()
		return 0, false, false
	}
	t.pause()
	going := slices.ContainsFunc(w.a.notes, func(n note) bool { return n.name == k && n.gone == u })
	if w.a.shadows[u].deleting || going && !w.EstablishIgnoresGoing || !there {
		w.seen["going"]++
		t.unlock()
		return 0, false, false
	}
	if _, exists := w.a.shadows[u]; !exists {
		w.a.shadows[u] = shadow{of: k, row: row}
	}
	s := w.a.shadows[u]
	s.version = w.number()
	w.a.shadows[u] = s
	if h%2 == 0 {
		if w.a.blocks[u] == nil {
			w.a.blocks[u] = map[key]bool{}
		}
		w.a.blocks[u][h] = true
	} else {
		w.a.entries[u] = true
	}
	w.seen["established"]++
	t.unlock()
	return u, false, true
}

// resolve asks X about a blockade: one that no stored row and no running attempt has is removed.
func (t *task) resolve() {
	w := t.w
	for u, blocks := range w.a.blocks {
		for h := range blocks {
			if s := w.x.stored[h]; s.uid != u && !slices.ContainsFunc(w.tasks, func(o *task) bool { return o.name == "capture" }) {
				delete(blocks, h)
			}
		}
	}
}

// carryOut carries out the deletion of a row of A.
func (t *task) carryOut() {
	w := t.w
	if len(w.a.notes) == 0 {
		return
	}
	n := w.a.notes[0]
	u := n.gone
	if u == 0 { // planted: the name alone
		u = w.a.visible(n.name)
	}
	t.pause()
	if u != 0 && !t.lock(shadowOf(u)) {
		return
	}
	t.pause()
	if s, ok := w.a.shadows[u]; ok && !s.deleting {
		if now, there := w.a.rows[s.of]; there && now == s.row {
			w.report("I9: the resource of row %d is deleted, and the row is there", s.of)
		}
		s.deleting = true
		w.a.shadows[u] = s
		w.a.notices[u] = w.a.entries[u]
		w.note("mark %d of %d", u, s.of)
	}
	w.a.notes = slices.DeleteFunc(w.a.notes, func(o note) bool { return o.seq == n.seq })
}

// act follows a deletion at X, and acknowledges.
func (t *task) act() {
	w := t.w
	told := slices.Sorted(maps.Keys(w.a.notices))
	for _, u := range told {
		if !w.a.notices[u] {
			delete(w.a.notices, u)
			continue
		}
		of := w.a.shadows[u].of
		for _, h := range slices.Sorted(maps.Keys(w.x.stored)) {
			if s := w.x.stored[h]; h%2 == 0 || s.uid != u && (!w.ActsByName || s.target != of) {
				continue
			}
			t.pause()
			if !t.lock(rowOf("X", h)) {
				return
			}
			t.pause()
			if s := w.x.stored[h]; s.uid != u && (!w.ActsByName || s.target != of) {
				t.unlock()
				continue
			}
			if slices.ContainsFunc(w.x.notes, func(n note) bool { return n.name == h && (!n.batch || !w.ActsBesideBatches) }) && !w.ActsBesideNotes {
				w.seen["behind"]++
				return
			}
			w.cascade(h, u)
			t.unlock()
		}
		t.pause()
		if slices.ContainsFunc(slices.Collect(maps.Values(w.x.stored)), func(s holder) bool { return s.uid == u }) {
			continue // it was stored meanwhile
		}
		delete(w.a.notices, u)
	}
}

func (w *World) cascade(h key, u uid) {
	s := w.x.stored[h]
	if w.x.rows[h] != w.a.shadows[u].of {
		w.report("I10: row %d is deleted with %d, and refers to %d", h, w.a.shadows[u].of, w.x.rows[h])
	}
	if s.uid != u {
		w.report("I9: row %d is deleted with uid %d, and its reference is to uid %d", h, u, s.uid)
	}
	w.note("row %d is deleted with uid %d", h, u)
	w.seen["cascaded"]++
	delete(w.x.rows, h)
	delete(w.x.stored, h)
	w.x.notes = append(w.x.notes, note{seq: w.number(), name: h})
}

// finalise removes a resource of A that nobody refers to any more.
func (t *task) finalise() {
	w := t.w
	for _, u := range slices.Sorted(maps.Keys(w.a.shadows)) {
		if _, told := w.a.notices[u]; w.a.shadows[u].deleting && !told && !w.blocked(u) {
			delete(w.a.shadows, u)
			delete(w.a.entries, u)
			delete(w.a.blocks, u)
		}
	}
}

// restore replaces a database by its earlier copy: rows, notes and resources together. X then compares its references with A: a target with a uid
// that A has lost is read again.
func (w *World) restore(atA bool) {
	for len(w.tasks) > 0 { // the processes of both lose their connections
		w.step(0, false)
	}
	if atA && w.backupA != nil {
		w.a = w.backupA.a.copy()
	} else if w.backupX != nil {
		w.x = w.backupX.x.copy()
	}
	w.seen["restored"]++
	w.note("restore of A: %t", atA)
	for _, h := range slices.Sorted(maps.Keys(w.x.stored)) {
		s := w.x.stored[h]
		sh, ok := w.a.shadows[s.uid]
		switch {
		case s.missing, s.uid == 0:
		case !ok && !w.RestoreKeepsReferences:
			w.x.stored[h] = holder{own: s.own, target: s.target, missing: true}
			w.x.notes = append(w.x.notes, note{seq: w.number(), name: h})
		case ok && h%2 == 0:
			if w.a.blocks[s.uid] == nil {
				w.a.blocks[s.uid] = map[key]bool{}
			}
			w.a.blocks[s.uid][h] = true
		case ok:
			if w.a.entries[s.uid] = true; sh.deleting {
				w.a.notices[s.uid] = true
			}
		}
	}
}
