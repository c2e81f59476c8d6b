package model

import (
	"fmt"
	"slices"
)

type kind int

const (
	establish kind = iota
	established
	together // several attempts in one call
	outcomes // the answer to it
	confirm
	release
	abandon
	resolve
	resolved
	deletions
	acknowledge
	check   // asks about references of a confirm
	checked // the lost ones
	cleaned // removes the finalizer of a resource
	done    // acknowledges an owed message
)

func (k kind) String() string {
	return [...]string{
		"establish", "established", "together", "outcomes", "confirm", "release", "abandon", "resolve",
		"resolved", "deletions", "acknowledge", "check", "checked", "cleaned", "done",
	}[k]
}

// message is in flight. It may arrive late, several times, after later ones, or never.
type message struct {
	kind      kind
	from, to  int
	attempt   Attempt
	holder    UID
	name      string // of cleaned
	requests  []request
	targets   map[string]UID // of established: by path; nil when it was refused
	keys      []Key
	verdicts  []verdict
	deletions map[UID]bool // of acknowledge: the excepted deletions
	position  int
	owed      string // of done, check and checked
	unknown   bool   // of done: there were fewer tentative blockades than references
	// references: of confirm, the number of references that were established under the attempt.
	references int
	// of together: an establish each; of outcomes: an established each, or the establish that was left out
	parts   []message
	leftOut int // of together: the part that is left out; none when it is negative
}

type request struct {
	path, name string
	behaviour  Behaviour
}

type verdict int

const (
	undecided verdict = iota
	held
	gone
	leaving // held by a holder in DELETING
)

func (m message) String() string {
	return fmt.Sprintf("%s %d>%d attempt %d keys %v", m.kind, m.from, m.to, m.attempt, m.keys)
}

func (w *World) send(m message) { w.bag = append(w.bag, m) }

// owe keeps a message until its receiver has acknowledged it.
func (w *World) owe(m message) {
	w.deployments[m.from].outbox[m.String()] = m
	w.send(m)
}

// Bag returns the number of messages in flight.
func (w *World) Bag() int { return len(w.bag) }

// Deliver delivers a message; with again it also stays in flight.
func (w *World) Deliver(i int, again bool) {
	m := w.bag[i]
	if !again {
		w.bag = slices.Delete(w.bag, i, i+1)
	}
	w.receive(m)
}

// Lose loses a message.
func (w *World) Lose(i int) { w.bag = slices.Delete(w.bag, i, i+1) }

func (w *World) receive(m message) {
	d := w.deployments[m.to]
	switch m.kind {
	case establish:
		if w.waits(m) {
			w.send(m) // for the locks of its targets
			return
		}
		w.send(message{kind: established, from: m.to, to: m.from, attempt: m.attempt, targets: w.establish(m)})
	case established:
		w.established(m)
	case together:
		w.send(message{kind: outcomes, from: m.to, to: m.from, parts: w.establishTogether(m)})
	case outcomes:
		w.outcomes(m)
	case confirm:
		w.confirm(m)
	case check:
		w.send(message{kind: checked, from: m.to, to: m.from, attempt: m.attempt, keys: w.missing(m), owed: m.owed})
	case checked:
		w.repair(m)
	case release:
		if w.waits(m) {
			return
		}
		for _, key := range m.keys {
			for k, b := range d.blockades {
				same := k == key || w.ReleaseByName && k.Holder == key.Holder && k.Path == key.Path
				if same && b.from == m.from {
					delete(d.blockades, k)
				}
			}
			d.closed[key.Attempt] = true
		}
		w.answer(m)
	case abandon:
		if w.waits(m) {
			return
		}
		for k, b := range d.blockades {
			if k.Attempt == m.attempt && b.from == m.from {
				delete(d.blockades, k)
			}
		}
		d.closed[m.attempt] = true
		w.answer(m)
	case resolve:
		w.send(message{
			kind: resolved, from: m.to, to: m.from, keys: m.keys,
			verdicts: w.verdicts(m.to, m.from, m.keys),
		})
	case resolved:
		for i, k := range m.keys {
			b := d.blockades[k]
			if b == nil || b.from != m.from || w.locked[k.Target] {
				continue
			}
			switch m.verdicts[i] {
			case held:
				w.confirmOne(m.to, k, b)
			case leaving:
				if w.LeavingIsGone {
					delete(d.blockades, k)
					continue
				}
				w.confirmOne(m.to, k, b)
				b.leaving = true
			case gone:
				delete(d.blockades, k)
				d.closed[k.Attempt] = true
			case undecided:
			}
		}
	case deletions:
		if m.position >= d.position[m.from] { // a snapshot; of several the newest
			d.watched[m.from], d.position[m.from] = m.deletions, m.position
		}
	case acknowledge:
		for uid, by := range d.notices {
			if by[m.from] <= m.position && !m.deletions[uid] || w.AcknowledgesEverything {
				delete(by, m.from)
			}
		}
		for uid, by := range d.notices {
			if len(by) == 0 {
				delete(d.notices, uid)
			}
		}
	case cleaned:
		for _, r := range d.resources {
			if r.UID == m.holder || w.CleanedByName && r.Name == m.name {
				r.Finalizer = false
			}
		}
	case done:
		if m.unknown && !w.UnknownIsThrownAway {
			w.compare(m)
		} else {
			delete(d.outbox, m.owed)
		}
	}
	w.finalise(m.to)
}

// waits reports whether a message is for a target that an application has locked: its transaction runs into
// its lock timeout.
func (w *World) waits(m message) bool {
	if len(w.locked) == 0 {
		return false
	}
	d := w.deployments[m.to]
	for _, r := range m.requests {
		if t := d.named(r.name); t != nil && w.locked[t.UID] {
			return true
		}
	}
	for _, k := range m.keys {
		if w.locked[k.Target] {
			return true
		}
	}
	for k, b := range d.blockades {
		if k.Attempt == m.attempt && b.from == m.from && w.locked[k.Target] {
			return true
		}
	}
	return false
}

func (w *World) answer(m message) {
	w.send(message{kind: done, from: m.to, to: m.from, owed: m.String()})
}

// establish creates a tentative blockade for each reference of an attempt, all or nothing.
func (w *World) establish(m message) map[string]UID {
	d := w.deployments[m.to]
	if d.closed[m.attempt] {
		return nil
	}
	targets := map[string]UID{}
	for _, r := range m.requests {
		t := d.named(r.name)
		if t == nil || t.Deleting && !w.DeletingTakesReferences {
			return nil
		}
		targets[r.path] = t.UID
	}
	for _, r := range m.requests {
		k := Key{m.holder, r.path, targets[r.path], m.attempt}
		if d.blockades[k] == nil {
			d.blockades[k] = &blockade{from: m.from, behaviour: r.behaviour, tentative: true}
		}
	}
	return targets
}

// confirmOne confirms a blocking blockade, and replaces one of an acting reference by an entry. A target that
// was marked meanwhile gets a newer notice, so that only a later acknowledgement counts.
func (w *World) confirmOne(at int, k Key, b *blockade) {
	d := w.deployments[at]
	if b.behaviour.Blocks() {
		b.tentative = false
		return
	}
	delete(d.blockades, k)
	t := d.resources[k.Target]
	if t == nil || w.EntryForgotten {
		return
	}
	if d.entries[k.Target] == nil {
		d.entries[k.Target] = map[int]bool{}
	}
	d.entries[k.Target][b.from] = true
	if t.Deleting && !w.LateConfirmTellsNobody {
		d.tell(k.Target, b.from)
	}
}

// verdicts returns the verdicts on blockades. An expired attempt without a decision is decided: it can never
// commit afterwards.
func (w *World) verdicts(at, target int, keys []Key) []verdict {
	d := w.deployments[at]
	out := make([]verdict, len(keys))
	for i, k := range keys {
		if _, decided := d.decided[k.Attempt]; !decided && !w.ResolverDoesNotAbort {
			d.decided[k.Attempt] = false
		}
		out[i] = gone
		if r := d.resources[k.Holder]; r != nil {
			if ref, ok := r.Refs[k.Path]; ok && ref.Home == target && ref.Target == k.Target &&
				ref.Attempt == k.Attempt {
				if out[i] = held; r.Deleting || w.ActiveIsLeaving {
					out[i] = leaving
				}
			}
		}
	}
	return out
}
