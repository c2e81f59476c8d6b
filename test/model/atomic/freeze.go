package atomic

import "slices"

// work is a question of a coordinator: to freeze the holders of a target (or the root), or to look at a
// frozen member.
type work struct {
	kind string
	to   int
	uid  UID
}

// process coordinates a deletion, in memory.
type process struct {
	id        ID
	at, epoch int
	root      UID
	work      []work
	done      map[work]bool
	members   map[UID]bool
	epochs    map[int]int // the first of each participant
	blockers  map[UID]bool
	schedules bool // it is decided later
	purges    ID   // the scheduled deletion that it carries out; 0: none
}

// Start begins an atomic deletion.
func (w *World) Start(at int, root UID) {
	d := w.db[at]
	if w.decommissioned[at] || d.recovering || !d.active(root) {
		return
	}
	p := &process{
		id: ID(w.number()), at: at, epoch: d.epoch, root: root, done: map[work]bool{},
		members: map[UID]bool{}, epochs: map[int]int{}, blockers: map[UID]bool{},
	}
	p.owes(work{"freeze", at, root})
	w.processes[p.id], w.begun[p.id] = p, begin{at, root}
	w.note("%d begins: the root %d of %d", p.id, root, at)
}

func (p *process) owes(k work) {
	if !slices.Contains(p.work, k) {
		p.work = append(p.work, k)
	}
}

func (p *process) open() (left []work) {
	for _, k := range p.work {
		if !p.done[k] {
			left = append(left, k)
		}
	}
	return left
}

// Drive sends an open question, possibly once more, or decides when none is open.
func (w *World) Drive(id ID) {
	p := w.processes[id]
	if p == nil {
		return
	}
	if p.epoch != w.db[p.at].epoch && !w.OwnEpochNotCompared { // R3
		w.abort(p, "its database was restored")
		return
	}
	for _, k := range p.work {
		if w.db[p.at].left[k.to] && (!p.done[k] || !w.ParticipantsMayLeave) { // F7
			w.abort(p, "a participant is decommissioned")
			return
		}
	}
	left := p.open()
	if len(left) == 0 {
		w.decide(p)
		return
	}
	if _, over := w.db[p.at].records[id]; over { // it need not go on
		w.abort(p, "it is decided")
		return
	}
	if !w.calm {
		left = []work{left[w.pick(len(left))]}
	}
	for _, k := range left {
		w.send(message{kind: k.kind, id: id, from: p.at, to: k.to, epoch: p.epoch, uid: k.uid, own: p.epochs[k.to]})
	}
}

// freeze freezes the holders of a target, with all that cascades to them here, in one transaction.
func (w *World) freeze(m message) {
	d := w.db[m.to]
	over := d.left[m.from] && !w.DecommissionedFreezes || d.later(m)
	if d.recovering && !w.FreezesBesideRecovery || over { // F6, F7
		return
	}
	if !w.verified(m) || w.expired[m.id][m.to] && !w.ExpiredFreezes { // F8, F9
		return
	}
	if m.own != 0 && m.own != d.epoch && !w.AnyEpochFreezes { // F4
		w.send(message{kind: "refused", id: m.id, from: m.to, to: m.from, epoch: d.epoch})
		return
	}
	m.found = w.found(m)
	if w.ChecksBeforeLock && !m.looked {
		m.looked = true
		w.send(m)
		return
	}
	answer := message{kind: "frozen", id: m.id, from: m.to, to: m.from, epoch: d.epoch, uid: m.uid}
	if w.home[m.uid] != m.to && !w.RightsNotEnded { // F1
		delete(d.rights, m.uid)
		d.closes[m.uid]++
	}
	for _, uid := range m.found {
		if _, ok := d.rows[uid][m.id]; !ok || w.RepeatedIsTentative {
			d.put(uid, m.id, row{
				coordinator: m.from, epoch: m.epoch, via: w.via(m, uid), own: d.epoch,
				entries: w.entriesOf(m.to, uid),
			})
		} else if w.RepeatedNamesInserted {
			continue
		}
		answer.found = append(answer.found, uid) // F3
	}
	w.reach(m.id, m.to)
	w.count("frozen")
	w.send(answer)
}

// verified asks the deployment of a target whether this deletion has frozen it there, if it is neither the
// coordinator's nor the own one.
func (w *World) verified(m message) bool {
	a := w.home[m.uid]
	if a == m.from || a == m.to {
		return true
	}
	_, frozen := w.db[a].rows[m.uid][m.id]
	return !w.decommissioned[a] && !w.db[a].recovering && (frozen || !w.db[a].active(m.uid))
}

// found lists what a freeze is about.
func (w *World) found(m message) (found []UID) {
	d := w.db[m.to]
	switch {
	case m.looked:
		return slices.DeleteFunc(m.found, func(uid UID) bool { return !d.active(uid) })
	case w.home[m.uid] != m.to:
		found = w.holders(m.to, m.uid, Cascade)
	case d.active(m.uid):
		found = []UID{m.uid}
	}
	return w.closure(m.to, found)
}

func (w *World) entriesOf(d int, uid UID) (from []int) {
	for o := range w.db {
		if w.db[d].entries[entry{uid, o}] {
			from = append(from, o)
		}
	}
	return from
}

// look is the answer about a frozen member: after the freeze, attempts are resolved, and then entries and
// blockers are read (F2).
func (w *World) look(m message) {
	d := w.db[m.to]
	if d.recovering && !w.FreezesBesideRecovery {
		return
	}
	answer := message{kind: "seen", id: m.id, from: m.to, to: m.from, epoch: d.epoch, uid: m.uid}
	for _, k := range sorted(d.blockades) {
		if b := d.blockades[k]; b.to == m.uid && b.tentative && !w.Settle(m.to, k) && !w.UndecidedIsRead {
			answer.undecided = true
		}
	}
	if d.active(m.uid) {
		answer.entries = w.entriesOf(m.to, m.uid)
		if r, ok := d.rows[m.uid][m.id]; ok && w.EntriesBeforeResolution {
			answer.entries = r.entries
		}
		answer.blockers = w.holders(m.to, m.uid, Block)
		for _, k := range sorted(d.blockades) {
			if b := d.blockades[k]; b.to == m.uid && !b.tentative {
				answer.blockers = append(answer.blockers, b.holder)
			}
		}
	}
	w.send(answer)
}

// answered takes an answer to the coordinator.
func (w *World) answered(m message) {
	d := w.db[m.to]
	p := w.processes[m.id]
	if d.left[m.from] {
		return
	}
	d.knows[m.from] = max(d.knows[m.from], m.epoch)
	if p == nil {
		return
	}
	if first, ok := p.epochs[m.from]; !ok || w.LaterEpochReplaces {
		p.epochs[m.from] = m.epoch
	} else if first != m.epoch && !w.EpochsNotCompared { // F4
		w.abort(p, "a participant was restored")
		return
	}
	switch {
	case m.undecided, m.kind == "refused":
	case m.kind == "frozen":
		p.done[work{"freeze", m.from, m.uid}] = true
		if m.uid == p.root && m.from == p.at && len(m.found) == 0 && !w.RepeatedNamesInserted {
			w.abort(p, "its root is gone")
		}
		for _, uid := range m.found {
			p.members[uid] = true
			p.owes(work{"look", m.from, uid})
		}
	default:
		p.done[work{"look", m.from, m.uid}] = true
		for _, from := range m.entries {
			p.owes(work{"freeze", from, m.uid})
		}
		for _, h := range m.blockers {
			if !w.ExcusesUnfrozen || !w.cascades(p, h) {
				p.blockers[h] = true
			}
		}
	}
}

// cascades reports whether a holder refers to a member now, as a look-ahead would say.
func (w *World) cascades(p *process, h UID) bool {
	return slices.ContainsFunc(w.db[w.home[h]].resources[h].refs, func(r reference) bool {
		return r.b == Cascade && p.members[r.to]
	})
}
