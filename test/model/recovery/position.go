package recovery

// position is a place in the history of the target's database: the last number that was taken in an epoch.
// The watches of its deletions tell it, and the other deployments keep the newest one.
type position struct{ epoch, mark int }

// bookmark is a message of a watch. It says the position of the database; with a mistake it says another one.
type bookmark struct{ says, is position }

// watch is a stream with the deletions.
type watch struct {
	open   bool
	opened position   // of the database, when it was opened
	told   position   // the stored position, which it told then
	sent   []bookmark // in flight
}

// watching has the positions of a holder's deployment from its watches, of two processes.
type watching struct {
	stored position // durable
	newest position // the newest position that it has ever received, stored or not
	of     [2]watch
}

func (d *database) position() position { return position{d.epoch, d.mark} }

// isAhead reports whether a database cannot have told a position: it has lost commits since.
func (d *database) isAhead(p position) bool {
	return p.epoch > d.epoch || p.epoch == d.epoch && p.mark > d.mark
}

// commits begins a transaction of the target's database that stores a decision or a message, and waits for
// the disk. It returns false when the process finds that it has seen a greater number: the transaction has no
// effect, and a new epoch begins.
func (w *World) commits() bool {
	if w.a.mark++; w.a.mark <= w.process && !w.OwnMarkIsNotCompared {
		w.beginEpoch()
		return false
	}
	w.a.flushed, w.process = w.a.mark, max(w.process, w.a.mark)
	return true
}

// Number takes a number for a transaction that does not wait for the disk.
func (w *World) Number() { w.a.mark++ }

// Crash lets PostgreSQL end and start again: the numbers that are not on disk are given out again.
func (w *World) Crash() {
	w.a.mark = w.a.flushed
	w.endWatches()
}

// endWatches ends the watches. Their bookmarks in flight arrive.
func (w *World) endWatches() {
	for d := range w.watching {
		for i := range w.watching[d].of {
			w.watching[d].of[i].open = false
		}
	}
}

// Watch opens a watch of the deletions, which tells the stored position. One that is ahead of the database
// ends its epoch.
func (w *World) Watch(d, i int) {
	if !w.came[d] {
		return
	}
	h := &w.watching[d]
	ahead := w.a.isAhead(h.stored)
	switch {
	case w.LaterEpochsShowNothing:
		ahead = ahead && h.stored.epoch == w.a.epoch
	case w.EachOtherEpochIsLater:
		ahead = ahead || h.stored.epoch != 0 && h.stored.epoch != w.a.epoch
	}
	w.told = w.told || w.a.isAhead(h.newest)
	if ahead && !w.AheadIsResetAlone {
		w.beginEpoch()
	}
	if w.known != nil && !w.a.awaiting {
		w.heardOf[d] = true // also when the target's deployment ignores it
	}
	if !w.Admit(d, w.databases[d], h.stored, d) {
		return
	}
	h.of[i] = watch{open: true, told: h.stored, opened: w.a.position()}
}

// FirstPosition lets a deployment that has stored no position of the target's database, and is about to refer
// to it, ask for one: it shows later that the database has lost the deployment. It returns false when it has
// none.
func (w *World) FirstPosition(d int) bool {
	h := &w.watching[d]
	if h.stored != (position{}) {
		return true
	}
	if !w.Admit(d, w.databases[d], position{}, d) {
		return false
	}
	w.a.flushed = w.a.mark
	h.stored = w.a.position()
	h.newest = h.stored
	return true
}

// Bookmark sends the present position to an open watch, when the log is on disk up to it.
func (w *World) Bookmark(d, i int) {
	of := &w.watching[d].of[i]
	if !of.open {
		return
	}
	if !w.BookmarksBeforeTheDisk {
		w.a.flushed = w.a.mark
	}
	b := bookmark{w.a.position(), w.a.position()}
	if w.IdleBookmarksStay && !w.a.deleted {
		b.says = of.opened
	}
	of.sent = append(of.sent, b)
}

// Receive takes a bookmark. It replaces the stored position if its watch has told that.
func (w *World) Receive(d, i int) {
	h := &w.watching[d]
	of := &h.of[i]
	if len(of.sent) == 0 {
		return
	}
	b := of.sent[0]
	of.sent = of.sent[1:]
	if of.told != h.stored && !w.UntoldPositionsAreReplaced {
		*of = watch{}
		return
	}
	of.told, h.stored = b.says, b.says
	if b.is.epoch > h.newest.epoch || b.is.epoch == h.newest.epoch && b.is.mark > h.newest.mark {
		h.newest = b.is
	}
}

// RestartWatches ends the processes of a holder's deployment, with the bookmarks in flight.
func (w *World) RestartWatches(d int) {
	w.watching[d].of = [2]watch{}
	if w.PositionsAreInMemory {
		w.watching[d].stored = position{}
	}
}

// RestoreCopy puts an older copy of the database's files in its place. No operator announces it, and the
// server's identity does not show it. A process that goes on has seen the missing numbers; a process that
// starts has not.
func (w *World) RestoreCopy(running bool) {
	w.a = w.backup.clone()
	w.lost, w.told = true, false
	w.endWatches()
	if !running {
		w.process = 0
		w.known, w.seen[target] = nil, seen{}
		clear(w.heardOf)
	}
	w.count["copied"]++
}

// excusesCopy reports whether no process can know that the database is an older copy: the process has seen no
// greater number, and no position that the copy has not reached was told since. A position that no deployment
// received in time remains unknown, as docs/protocol/recovery.md says.
func (w *World) excusesCopy() bool {
	if !w.lost || w.told || w.process > w.a.mark {
		return w.blind
	}
	ahead := false
	for d := range w.watching {
		ahead = ahead || w.came[d] && w.a.isAhead(w.watching[d].newest)
	}
	w.blind = w.blind || !ahead
	return true
}

// beginEpoch begins a new epoch of the database that is in place. Its numbers skip the numbers that may be
// lost.
func (w *World) beginEpoch() {
	if !w.lost {
		w.report("needless: an epoch begins, and no commit is lost")
	}
	w.a.epoch, w.a.mayHaveLost, w.a.awaiting = w.number(), true, true
	w.a.mark += 1000
	w.a.flushed, w.process = w.a.mark, w.a.mark
	for d := range w.a.met { // another one may have taken its place before the references that are lost now
		if !w.a.related[d] && !w.FormerDatabasesCount {
			delete(w.a.met, d)
		}
	}
	w.lost, w.blind = false, false
	w.endWatches()
	w.count["restored"]++
}
