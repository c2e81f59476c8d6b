package atomic

import "slices"

// decide is the transaction of the coordinator's database that commits a deletion, or refuses it.
func (w *World) decide(p *process) {
	d := w.db[p.at]
	if why := w.stops(p); why != "" {
		w.abort(p, why)
		return
	}
	for _, h := range sorted(p.blockers) {
		if !p.members[h] {
			w.count("refused")
			w.abort(p, "blocked")
			return
		}
	}
	if p.schedules {
		w.schedule(p)
		return
	}
	waits := sorted(p.epochs) // with its own deployment
	d.records[p.id] = record{committed: true, waits: slices.DeleteFunc(waits, func(x int) bool {
		return x == p.at && w.TellsOthersOnly
	})}
	w.committed(p)
	if p.purges != 0 {
		w.purged(p)
	}
	w.mark(p.at, p.root, p.id)
	delete(w.processes, p.id)
	w.Tell(p.at, p.id)
	w.Tell(p.at, p.purges)
}

// stops says why a deletion cannot commit.
func (w *World) stops(p *process) string {
	d := w.db[p.at]
	_, over := d.records[p.id]
	switch {
	case over && !w.DecidesWithoutCompeting:
		return "it is decided"
	case p.id <= d.forgotten && !w.ForgottenCommits: // O4
		return "it is over"
	case p.epoch != d.epoch && !w.OwnEpochNotCompared: // F5
		return "its database was restored"
	case d.recovering: // F6
		return "a recovery waits"
	case !d.active(p.root):
		return "its root is gone"
	case p.purges != 0 && !d.records[p.purges].scheduled && !w.PurgeDoesNotCompete: // S3
		return "it is undeleted"
	}
	for _, x := range sorted(p.epochs) {
		if p.epochs[x] != d.knows[x] && x != p.at && !w.EpochsNotCompared { // F4
			return "a participant was restored"
		}
	}
	return ""
}

// abort ends a process. It says so where it may have frozen resources.
func (w *World) abort(p *process, why string) {
	w.note("%d is aborted: %s", p.id, why)
	d := w.db[p.at]
	delete(w.processes, p.id)
	if _, ok := d.records[p.id]; !ok && p.id > d.forgotten {
		d.records[p.id] = record{}
	}
	if d.records[p.id].committed {
		return
	}
	w.aborted(p.id)
	var sent []int
	for _, k := range p.work {
		if k.kind == "freeze" && !slices.Contains(sent, k.to) {
			sent = append(sent, k.to)
			w.send(message{kind: "told", id: p.id, from: p.at, to: k.to, epoch: d.epoch, verdict: "aborted"})
		}
	}
}

// Expire lets the deadline of a deletion pass, and so the `until` of its rows, by the clock of a deployment.
func (w *World) Expire(id ID, x int) {
	if w.expired[id] == nil {
		w.expired[id] = map[int]bool{}
	}
	w.expired[id][x] = true
}

// GiveUp ends a process at its deadline.
func (w *World) GiveUp(id ID) {
	if p := w.processes[id]; p != nil && w.expired[id][p.at] {
		w.abort(p, "its deadline has passed")
	}
}

// Ask asks the coordinator of a tentative row that has expired.
func (w *World) Ask(x int, uid UID, id ID) {
	r, ok := w.db[x].rows[uid][id]
	if !ok || !w.due(x, id, r) || r.lasting && !w.LastingAsks {
		return
	}
	if w.OpenedByTime {
		w.openRows(x, id)
	}
	if !w.NeverAsks {
		w.send(message{kind: "ask", id: id, from: x, to: r.coordinator, epoch: r.epoch})
	}
}

// answer answers a participant: the decision first, then what shows that there can be none.
func (w *World) answer(m message) {
	d := w.db[m.to]
	r, decided := d.records[m.id]
	verdict := "undecided"
	switch _, rooted := d.resources[w.begun[m.id].root]; {
	case decided && r.scheduled && w.ScheduledIsUndecided && w.expired[m.id][m.to]:
		d.records[m.id] = record{}
		verdict = "aborted"
	case decided && r.scheduled && m.epoch <= d.epoch: // S2
		verdict = "scheduled"
	case w.EpochBeforeRecord && m.epoch < d.epoch:
		verdict = "aborted"
	case decided && r.committed && w.RootRemovedIsDone && !rooted:
		verdict = "over"
	case decided && r.committed:
		verdict = "committed"
	case decided:
		verdict = "aborted"
	case m.id <= d.forgotten && !w.EpochBeforeForgotten: // O4
		verdict = "over"
	case m.epoch < d.epoch: // O1
		verdict = "aborted"
	case w.expired[m.id][m.to] && w.AnswersWithoutRecord:
		verdict = "aborted"
	case w.expired[m.id][m.to]: // O2
		d.records[m.id] = record{}
		verdict = "aborted"
	}
	if verdict == "aborted" {
		w.aborted(m.id)
	}
	w.count("answered " + verdict)
	w.send(message{kind: "told", id: m.id, from: m.to, to: m.from, epoch: d.epoch, verdict: verdict})
}

// told takes a decision to a participant.
func (w *World) told(m message) {
	if w.db[m.to].later(m) && !w.AnyEpochTells { // R4
		return
	}
	switch m.verdict {
	case "aborted", "over":
		w.openRows(m.to, m.id)
		w.db[m.to].closed[m.id] = true
		w.send(message{kind: "confirmed", id: m.id, from: m.to, to: m.from, verdict: "aborted"})
	case "scheduled":
		if w.db[m.to].recovering {
			return
		}
		if w.db[m.to].closed[m.id] { // S5
			w.send(message{kind: "confirmed", id: m.id, from: m.to, to: m.from, verdict: "aborted"})
			return
		}
		w.keep(m.to, m.id)
		w.send(message{kind: "confirmed", id: m.id, from: m.to, to: m.from, verdict: m.verdict})
	case "committed":
		if w.db[m.to].recovering {
			return
		}
		w.send(message{kind: "confirmed", id: m.id, from: m.to, to: m.from, verdict: m.verdict})
		if !w.ConfirmsBeforeItLasts || w.chance(2) { // the process may crash between
			w.last(m.to, m.id)
		}
	}
}

// later reports whether a deployment knows a later epoch of the sender than that of the message.
func (d *database) later(m message) bool {
	if m.from == m.to {
		return d.epoch > m.epoch
	}
	return d.knows[m.from] > m.epoch
}

// openRows drops the tentative rows of a deletion.
func (w *World) openRows(x int, id ID) {
	w.db[x].each(func(uid UID, by ID, r row) {
		if by == id && (!r.lasting || w.LastingAsks || w.OverOpensLasting) || by != id && w.AbortedOpensAll {
			w.open(x, uid, by)
		}
	})
}

// confirmed is told that the rows of a participant are lasting.
func (w *World) confirmed(m message) {
	d := w.db[m.to]
	if m.verdict == "aborted" { // S5
		w.Undelete(m.to, m.id)
	}
	if r, ok := d.records[m.id]; ok && (m.verdict == r.verdict() || w.AnyAcknowledgementCounts) {
		r.waits = slices.DeleteFunc(slices.Clone(r.waits), func(x int) bool { return x == m.from })
		d.records[m.id] = r
	}
}

// waits lists the participants whose acknowledgement a decision waits for.
func (w *World) waits(at int, id ID) (all []int) {
	for _, x := range w.db[at].records[id].waits {
		if !w.db[at].left[x] {
			all = append(all, x)
		}
	}
	return all
}

// Forget forgets a decision that nobody needs.
func (w *World) Forget(at int, id ID) {
	d := w.db[at]
	r, ok := d.records[id]
	if !ok || r.scheduled || len(w.waits(at, id)) > 0 && (!r.committed || !w.ForgetsCommittedEarly) {
		return
	}
	w.note("%d is forgotten", id)
	w.count("forgotten")
	delete(d.records, id)
	d.forgotten = max(d.forgotten, id)
}

// Tell tells the participants of a deletion again.
func (w *World) Tell(at int, id ID) {
	for _, x := range w.waits(at, id) {
		w.send(message{
			kind: "told", id: id, from: at, to: x, epoch: w.db[at].epoch,
			verdict: w.db[at].records[id].verdict(),
		})
	}
}

// OpenByOperator opens the rows of a coordinator by decision of an operator; the coordinator may come back
// all the same.
func (w *World) OpenByOperator(x int, id ID) {
	if !w.expired[id][x] { // F9
		return
	}
	w.void(id, byOperator)
	for _, uid := range w.db[x].frozenBy(id) {
		w.open(x, uid, id)
	}
}
