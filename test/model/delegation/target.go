package delegation

import (
	"maps"
	"slices"
)

type state int

const (
	gone state = iota
	active
	deleting
)

type key struct {
	holder, attempt int
	uid             UID
}

type blockade struct {
	behaviour Behaviour
	tentative bool
}

// targets is the database of A.
type targets struct {
	epoch, peer             Epoch
	state                   map[UID]state
	closing                 map[UID]int // by target: deletes that wait
	blockades               map[key]blockade
	closed                  map[int]bool // attempts that establish nothing any more
	entries                 map[UID]bool // X has acting references to it
	looks                   map[UID]int  // by entry: X is asked whether it is used
	notices                 map[UID]int
	endings                 map[UID]bool // X has to end its rights to it, and has not said so
	told                    int
	unconfirmed, uncompared bool // nothing is deleted: A failed over, X failed over
	// After a failover, until X has answered in the epochs of both.
	doubted map[key]bool
}

// doubt begins the comparison of the blockades here with X.
func (a *targets) doubt() {
	a.doubted = map[key]bool{}
	for k := range a.blockades {
		a.doubted[k] = true
	}
}

// doubts reports whether X has yet to be asked about a blockade here.
func (a *targets) doubts() bool {
	for k := range a.blockades {
		if a.doubted[k] {
			return true
		}
	}
	return false
}

func (a *targets) copy() *targets {
	c := *a
	c.state, c.closing, c.blockades, c.closed = maps.Clone(a.state), map[UID]int{}, maps.Clone(a.blockades),
		maps.Clone(a.closed)
	c.doubted, c.entries, c.looks, c.notices, c.endings = maps.Clone(a.doubted), maps.Clone(a.entries),
		maps.Clone(a.looks), maps.Clone(a.notices), maps.Clone(a.endings)
	return &c
}

// receiveA handles a message at A, in one transaction under the lock of its target.
func (w *World) receiveA(m message) {
	a := w.a
	switch m.kind {
	case "close", "unused": // to X
		return
	case "announce X":
		w.announced(m)
		return
	case "acknowledge":
		if m.own == a.peer && m.theirs == a.epoch {
			maps.DeleteFunc(a.notices, func(uid UID, n int) bool { return n <= m.made && !m.uids[uid] })
			w.finalise()
		}
		return
	}
	answer := message{theirs: a.epoch}
	if m.own != a.peer && m.kind != "establish" {
		answer.verdict = "old"
	} else {
		w.handleA(m, &answer)
	}
	if m.call != 0 {
		w.answer(m, answer)
	}
	w.finalise()
}

func (w *World) handleA(m message, answer *message) {
	a := w.a
	open := a.state[m.uid] == active && a.closing[m.uid] == 0
	switch m.kind {
	case "establish":
		if !open || a.closed[m.attempt] {
			answer.verdict = "refused"
			return
		}
		k := key{m.holder, m.attempt, m.uid}
		if _, ok := a.blockades[k]; !ok {
			a.blockades[k] = blockade{m.behaviour, true}
		}
	case "confirm":
		w.confirm(m, answer)
	case "release":
		delete(a.blockades, key{m.holder, m.attempt, m.uid})
		a.closed[m.attempt] = true
	case "resolved":
		k := key{m.holder, m.attempt, m.uid}
		if m.theirs == a.epoch {
			delete(a.doubted, k)
		}
		b, ok := a.blockades[k]
		switch {
		case !ok:
		case m.verdict == "held" && (!w.HeldAsFree || m.holder != proxy):
			w.confirmOne(k, b)
		default:
			delete(a.blockades, k)
			a.closed[m.attempt] = true
		}
	case "check":
		answer.verdict = w.check(m)
	case "confirm epoch":
		if m.theirs == a.epoch {
			a.unconfirmed, a.uncompared = false, false
		} else {
			answer.verdict = "old"
		}
	}
}

// confirm answers which targets are granted: the entry stands, and the target is ACTIVE and not closing.
func (w *World) confirm(m message, answer *message) {
	a := w.a
	answer.uids, answer.verdict = map[UID]bool{}, "unknown"
	for k, b := range a.blockades {
		if k.attempt != m.attempt {
			continue
		}
		w.confirmOne(k, b)
		answer.verdict = ""
		open := a.state[k.uid] == active && a.closing[k.uid] == 0
		if a.entries[k.uid] && (a.looks[k.uid] == 0 || w.LeavingEntryGrants) && (open || w.GrantAfterClose) {
			answer.uids[k.uid] = true
		}
	}
	if answer.verdict == "unknown" && w.UnknownAsConfirmed {
		answer.uids[m.uid] = true
	}
}

func (w *World) confirmOne(k key, b blockade) {
	a := w.a
	if b.behaviour == Block {
		a.blockades[k] = blockade{Block, false}
		return
	}
	delete(a.blockades, k)
	if a.state[k.uid] == gone {
		return
	}
	a.entries[k.uid] = true
	delete(a.looks, k.uid)
	if a.state[k.uid] == deleting {
		w.tell(k.uid)
	}
}

// check compares a reference of X with its protection here.
func (w *World) check(m message) string {
	a := w.a
	b, established := a.blockades[key{m.holder, m.attempt, m.uid}]
	switch {
	case a.state[m.uid] == gone:
		return "gone"
	case m.behaviour == Acting && a.entries[m.uid], established && b.behaviour == m.behaviour:
		return "there"
	case a.state[m.uid] == deleting:
		return "gone" // it will be removed without X
	}
	return "lost"
}

// announced stores the epoch of X. Messages that X may have lost are sent again, and questions are repeated.
func (w *World) announced(m message) {
	a := w.a
	if m.own <= a.peer {
		return
	}
	a.peer, a.uncompared = m.own, true
	a.doubt()
	for _, uid := range slices.Sorted(maps.Keys(a.state)) {
		if a.state[uid] == deleting && (a.entries[uid] || a.delegated(uid)) {
			w.tell(uid)
		}
	}
}

func (w *World) tell(uid UID) {
	w.a.told++
	w.a.notices[uid] = w.a.told
}

// mark is the point of no return.
func (w *World) mark(uid UID) {
	a := w.a
	a.state[uid] = deleting
	if a.entries[uid] || a.delegated(uid) && !w.CascadeTellsEntriesOnly {
		w.tell(uid)
	}
	w.note("mark %d", uid)
	w.finalise()
}

// delegated reports whether X has, or may have, the right to block a target.
func (a *targets) delegated(uid UID) bool {
	for k := range a.blockades {
		if k.uid == uid && k.holder == proxy {
			return true
		}
	}
	return false
}

// blocked returns the blockades of a target. The proxy's blockades are asked about, like tentative ones: a
// question recalls the right.
func (a *targets) blocked(uid UID) (confirmed, tentative []key) {
	for k, b := range a.blockades {
		switch {
		case k.uid != uid:
		case b.tentative || k.holder == proxy:
			tentative = append(tentative, k)
		default:
			confirmed = append(confirmed, k)
		}
	}
	return sorted(confirmed), sorted(tentative)
}

func sorted(keys []key) []key {
	slices.SortFunc(keys, func(a, b key) int {
		return slices.Compare([]int{a.holder, a.attempt}, []int{b.holder, b.attempt})
	})
	return keys
}

func (w *World) finalise() {
	a := w.a
	if a.unconfirmed || a.uncompared {
		return
	}
	for _, uid := range slices.Sorted(maps.Keys(a.state)) {
		confirmed, tentative := a.blocked(uid)
		if w.FinalisesBesideProxy {
			tentative = slices.DeleteFunc(tentative, func(k key) bool { return k.holder == proxy })
		}
		if a.state[uid] != deleting || a.notices[uid] != 0 || len(confirmed)+len(tentative) > 0 {
			continue
		}
		w.note("finalise %d", uid)
		w.removed(uid)
		delete(a.state, uid)
		delete(a.entries, uid)
		delete(a.looks, uid)
		maps.DeleteFunc(a.blockades, func(k key, _ blockade) bool { return k.uid == uid })
	}
}

// resolve asks X about blockades.
func (w *World) resolve(keys []key, sweeps bool) {
	for _, k := range keys {
		w.send(message{
			kind: "resolve", sweeps: sweeps, holder: k.holder, attempt: k.attempt, uid: k.uid,
			theirs: w.a.epoch, own: w.a.peer,
		})
	}
}

// remove is a user's delete: it asks about undecided attempts, recalls rights, and looks again, until it is
// refused, accepted, or gives up.
func (w *World) remove(uid UID) {
	w.start("delete", func(t *task) {
		epoch := w.a.epoch
		waits := false
		defer func() {
			if waits && w.a.closing[uid] > 0 {
				w.a.closing[uid]--
			}
		}()
		for range 6 {
			a := w.a
			if a.epoch != epoch || a.unconfirmed || a.uncompared || a.state[uid] != active {
				return
			}
			confirmed, tentative := a.blocked(uid)
			switch {
			case len(confirmed) > 0:
				return
			case len(tentative) == 0 || w.MarkWithoutRecall && !slices.ContainsFunc(tentative, func(k key) bool {
				return k.holder != proxy
			}):
				w.accepted(uid)
				w.mark(uid)
				return
			}
			if !waits {
				waits, a.closing[uid] = true, a.closing[uid]+1
			}
			w.resolve(tentative, false)
			for range 3 {
				t.pause()
			}
		}
	})
}

// sendA repeats the messages that A owes: notices, questions, and its epoch.
func (w *World) sendA() {
	a := w.a
	w.send(message{kind: "announce A", theirs: a.epoch})
	uids := map[UID]bool{}
	for uid := range a.notices {
		uids[uid] = true
	}
	if len(uids) > 0 {
		w.send(message{kind: "notices", theirs: a.epoch, own: a.peer, uids: uids, made: a.told})
	}
	for _, uid := range slices.Sorted(maps.Keys(a.endings)) {
		w.endRights(uid)
	}
	var keys []key
	for k, b := range a.blockades {
		if b.tentative || a.doubted[k] || k.holder == proxy && !w.calm && w.chance(40) {
			keys = append(keys, k)
		}
	}
	w.resolve(sorted(keys), !w.chance(4))
}
