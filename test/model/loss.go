package model

import (
	"maps"
	"slices"
)

// Mislay lets a deployment's database lose one tentative blockade that no comparison has found, as a restored
// copy has. It returns false when there is none. A blockade that is lost later is lost as a confirmed one is:
// no confirm shows that, but an epoch and verify do.
func (w *World) Mislay(at, which int) bool {
	d := w.deployments[at]
	var tentative []Key
	for k, b := range d.blockades {
		if b.tentative && !b.compared {
			tentative = append(tentative, k)
		}
	}
	if len(tentative) == 0 {
		return false
	}
	slices.SortFunc(tentative, Key.compare)
	delete(d.blockades, tentative[which%len(tentative)])
	return true
}

// counted returns a message as it is sent. With a mistake, a confirm has the number of the references that
// are left.
func (w *World) counted(m message) message {
	if m.kind != confirm || !w.DroppedAreNotCounted {
		return m
	}
	m.references = 0
	for _, r := range w.deployments[m.from].resources {
		for _, ref := range r.Refs {
			if ref.Home == m.to && ref.Attempt == m.attempt {
				m.references++
			}
		}
	}
	return m
}

// confirm confirms the blockades of an attempt, and reports whether there were fewer than established
// references.
func (w *World) confirm(m message) {
	if w.waits(m) {
		return
	}
	d := w.deployments[m.to]
	found := 0
	for k, b := range d.blockades {
		if k.Attempt != m.attempt || b.from != m.from {
			continue
		}
		if b.tentative {
			found++
		}
		w.confirmOne(m.to, k, b)
	}
	least := max(1, m.references)
	if w.PartialLossIsNotCounted {
		least = 1
	}
	w.send(message{kind: done, from: m.to, to: m.from, owed: m.String(), unknown: found < least})
}

// compare asks the targets' deployment about the references of an attempt of which it knew too few blockades.
func (w *World) compare(answer message) {
	d := w.deployments[answer.to]
	owed, ok := d.outbox[answer.owed]
	if !ok {
		return
	}
	m := message{kind: check, from: answer.to, to: answer.from, attempt: owed.attempt, owed: answer.owed}
	for _, holder := range slices.Sorted(maps.Keys(d.resources)) {
		refs := d.resources[holder].Refs
		for _, path := range slices.Sorted(maps.Keys(refs)) {
			if ref := refs[path]; ref.Home == answer.from && ref.Attempt == owed.attempt {
				m.keys = append(m.keys, Key{holder, path, ref.Target, ref.Attempt})
				m.requests = append(m.requests, request{path: path, behaviour: ref.Behaviour})
			}
		}
	}
	w.send(m)
}

// missing returns the keys of references of which nothing is known: neither a blockade nor an entry.
func (w *World) missing(m message) (lost []Key) {
	d := w.deployments[m.to]
	for i, k := range m.keys {
		entered := !m.requests[i].behaviour.Blocks() && d.entries[k.Target][m.from]
		if b := d.blockades[k]; b != nil {
			b.compared = true
		} else if !entered {
			lost = append(lost, k)
		}
	}
	return lost
}

// repair establishes lost references that still exist under a new attempt. The confirm is done when none is
// lost; one without a target dangles, which Check reports.
func (w *World) repair(m message) {
	d, targets := w.deployments[m.to], w.deployments[m.from].resources
	lost := slices.DeleteFunc(slices.Clone(m.keys), func(k Key) bool {
		return !d.refers(m.from, k) || targets[k.Target] == nil
	})
	if len(lost) == 0 || w.LostReferencesAreLeft {
		delete(d.outbox, m.owed)
		return
	}
	r := d.resources[lost[0].Holder] // an attempt has one holder
	wr := &write{
		at: m.to, holder: r.UID, name: r.Name, refs: maps.Clone(r.Refs), targets: map[string]string{},
		attempt: Attempt(w.number()),
		waiting: map[int]bool{m.from: true}, before: maps.Clone(r.Refs), lost: lost,
	}
	ask := message{kind: establish, from: m.to, to: m.from, attempt: wr.attempt, holder: r.UID}
	for _, k := range lost {
		ref, name := r.Refs[k.Path], targets[k.Target].Name
		ref.Attempt = wr.attempt
		wr.refs[k.Path], wr.targets[k.Path] = ref, name
		ask.requests = append(ask.requests, request{path: k.Path, name: name, behaviour: ref.Behaviour})
	}
	w.writes = append(w.writes, wr)
	w.send(ask)
}

// renew ends a repair: the lost references that still exist get its attempt, also when an application has
// changed their holder since.
func (w *World) renew(wr *write) {
	d := w.deployments[wr.at]
	if _, decided := d.decided[wr.attempt]; decided || len(wr.waiting) > 0 || wr.refused || w.locked[wr.holder] {
		w.callOff(wr)
		return
	}
	home, renewed, dropped := 0, 0, []Key{}
	for _, k := range wr.lost {
		ref := wr.refs[k.Path]
		if home = ref.Home; ref.Target == k.Target && d.refers(home, k) {
			d.resources[k.Holder].Refs[k.Path] = ref
			renewed++
		} else {
			dropped = append(dropped, Key{k.Holder, k.Path, ref.Target, wr.attempt})
		}
	}
	if renewed == 0 {
		w.callOff(wr)
		return
	}
	d.decided[wr.attempt] = true
	if len(dropped) > 0 {
		w.owe(message{kind: release, from: wr.at, to: home, keys: dropped})
	}
	w.owe(message{kind: confirm, from: wr.at, to: home, attempt: wr.attempt, references: renewed})
}

// refers reports whether a reference to a target at home exists.
func (d *deployment) refers(home int, k Key) bool {
	r := d.resources[k.Holder]
	if r == nil {
		return false
	}
	ref, ok := r.Refs[k.Path]
	return ok && ref.Home == home && ref.Target == k.Target && ref.Attempt == k.Attempt
}
