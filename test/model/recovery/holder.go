package recovery

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// HolderMistakes can be planted in a HolderWorld.
type HolderMistakes struct {
	// Of the holder's deployment.
	DeniesBeforeItsEpochIsKnown, CommitsOfLostEpochs, NothingIsCompared, UndecidedIsGone bool
	LaterEpochIsRefused, LaterEpochIsTaken, LaterEpochIsOutdoneSilently                  bool
	// Of the target's deployment.
	AnnouncerIsNotAwaited, OldVerdictsCount, OldReleasesCount, OldConfirmationsCount, OwnKindsAreHeld,
	KindsOfTheFirstEpochStay bool
}

// kinds are the kinds of targets, with one target each.
const kinds = 2

// holderDatabase is the database of the holder's deployment. It has at most one reference to each target,
// which is the attempt that has established it.
type holderDatabase struct {
	epoch     int
	reference [kinds]int // 0: none
	decided   map[int]bool
	announced bool // the target's deployment has answered that it knows the epoch
	compared  bool // and that the comparison in it has ended
	dangling  [kinds]bool
}

func (d *holderDatabase) clone() holderDatabase {
	c := *d
	c.decided = maps.Clone(d.decided)
	return c
}

// referred are the kinds to whose targets the database has references.
func (d *holderDatabase) referred() (out [kinds]bool) {
	for k, a := range d.reference {
		out[k] = a != 0
	}
	return out
}

type holderMessage struct {
	arrives func(epoch int)
	epoch   int // of the database from which it was read
}

// HolderWorld models the restore of a holder's database, in which references may stand by earlier attempts,
// or be lost; the clock of the restored one may be behind; and a thief of the certificate may announce an
// epoch in the name of the holder's deployment, and answer at its address. The registry knows both
// deployments. Messages are lost, repeated and late. While the holder's deployment has not compared, targets
// are kept whose kind it refers to in the epoch that it has announced, and no others.
type HolderWorld struct {
	HolderMistakes
	r            *rand.Rand
	here, backup holderDatabase
	began        map[int]int // attempts under way, with the epoch in which they began
	of           map[int]int // the target of each attempt
	// wanted: the last acknowledged write refers to the target.
	wanted [kinds]bool

	// The targets' deployment.
	deleted, waits [kinds]bool
	knows          int  // the epoch of the holder's database
	confirming     bool // the holder's deployment has not heard of the comparison in that epoch
	blockades      map[int]bool
	closed         map[int]bool

	flight []holderMessage
	last   int
	count  map[string]int
	broken []string
}

// NewHolder makes a world in which the targets exist, and the holder refers to none.
func NewHolder(seed uint64, m HolderMistakes) *HolderWorld {
	w := &HolderWorld{
		HolderMistakes: m, r: rand.New(rand.NewPCG(seed, 2)), began: map[int]int{}, of: map[int]int{},
		blockades: map[int]bool{}, closed: map[int]bool{}, count: map[string]int{},
	}
	w.here = holderDatabase{epoch: w.number(), decided: map[int]bool{}, announced: true, compared: true}
	w.knows, w.backup = w.here.epoch, w.here.clone()
	return w
}

// number returns a number for an attempt, or for an epoch that is later than all before. Between two are the
// epochs of clocks that are behind.
func (w *HolderWorld) number() int { w.last += 100; return w.last }

func (w *HolderWorld) report(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

func (w *HolderWorld) send(arrives func(epoch int)) {
	w.flight = append(w.flight, holderMessage{arrives, w.here.epoch})
}

// Deliver delivers a message; with again it also stays in flight.
func (w *HolderWorld) Deliver(i int, again bool) {
	m := w.flight[i]
	if !again {
		w.flight = slices.Delete(w.flight, i, i+1)
	}
	m.arrives(m.epoch)
}

// Begin begins a write that refers to a target: it establishes the reference.
func (w *HolderWorld) Begin() { w.begin(w.r.IntN(kinds)) }

func (w *HolderWorld) begin(k int) {
	if w.here.reference[k] != 0 || w.deleted[k] {
		return
	}
	n := w.number()
	w.began[n], w.of[n], w.blockades[n] = w.here.epoch, k, true
}

// attempt is one of those under way.
func (w *HolderWorld) attempt() (n int, ok bool) {
	all := sorted(w.began)
	if len(all) == 0 {
		return 0, false
	}
	return all[w.r.IntN(len(all))], true
}

// Commit commits a write, unless its attempt was decided, or its epoch has ended.
func (w *HolderWorld) Commit() {
	n, ok := w.attempt()
	if !ok {
		return
	}
	epoch, k := w.began[n], w.of[n]
	delete(w.began, n)
	if w.here.reference[k] != 0 || w.here.decided[n] || epoch != w.here.epoch && !w.CommitsOfLostEpochs {
		return // another write has stored the reference, or the attempt is over: its blockade is asked about later
	}
	w.here.reference[k], w.here.decided[n], w.here.dangling[k], w.wanted[k] = n, true, false, true
	if w.count["committed"]++; w.deleted[k] {
		w.report("I1: a reference is committed after its target was deleted")
	}
}

// Drop drops a reference by an acknowledged write.
func (w *HolderWorld) Drop() { w.drop(w.r.IntN(kinds)) }

func (w *HolderWorld) drop(k int) {
	if w.here.reference[k] == 0 {
		return
	}
	w.release(w.here.reference[k])
	w.here.reference[k], w.wanted[k] = 0, false
}

func (w *HolderWorld) release(attempt int) {
	w.send(func(epoch int) {
		if epoch >= w.knows || w.OldReleasesCount {
			w.remove(attempt)
		}
	})
}

func (w *HolderWorld) remove(attempt int) {
	delete(w.blockades, attempt)
	w.closed[attempt] = true
}

// Ask asks the holder's deployment about a blockade. Its answer may be late.
func (w *HolderWorld) Ask(attempt int) {
	if !w.here.announced && !w.DeniesBeforeItsEpochIsKnown {
		return // unavailable
	}
	if !w.here.decided[attempt] && !w.UndecidedIsGone {
		w.here.decided[attempt] = true // ABORTED: the blockade has expired
	}
	if w.here.reference[w.of[attempt]] == attempt {
		return // held
	}
	w.send(func(epoch int) {
		if epoch >= w.knows || w.OldVerdictsCount {
			w.remove(attempt)
		}
	})
}

// Delete deletes a target, unless a reference blocks it or may block it.
func (w *HolderWorld) Delete() {
	k := w.r.IntN(kinds)
	if w.deleted[k] || w.waits[k] || w.blockaded(k) {
		return
	}
	w.deleted[k] = true
	if w.waits[1-k] {
		w.count["deleted beside a kind that waits"]++
	}
	if w.count["deleted"]++; w.wanted[k] && w.here.reference[k] != 0 && !w.here.dangling[k] {
		w.report("I2: a target is deleted beside a reference by attempt %d", w.here.reference[k])
	}
}

func (w *HolderWorld) blockaded(k int) bool {
	for a := range w.blockades {
		if w.of[a] == k {
			return true
		}
	}
	return false
}

// Restore puts the backup in the place of the holder's database, in a new epoch, which is earlier than the
// lost one where the clock is behind.
func (w *HolderWorld) Restore() {
	epoch := w.here.epoch - 1
	if w.r.IntN(4) > 0 {
		epoch = w.number()
	}
	w.here = w.backup.clone()
	w.here.epoch, w.here.announced, w.here.compared = epoch, false, false
	for k, a := range w.here.reference {
		w.wanted[k] = w.wanted[k] && a != 0 // a reference that is lost keeps no target
	}
	w.count["restored"]++
}

// Announce tells the epoch, until it is known. Who is told of a later one calls back, and is answered with
// the epoch and the kinds that the database refers to; who knows a later one says so. The call, its answer,
// and the answer to the announcement may be lost: then it is told again.
func (w *HolderWorld) Announce() {
	if w.here.announced {
		return
	}
	epoch := w.here.epoch
	w.send(func(int) {
		switch {
		case epoch == w.knows:
			w.answer(epoch)
		case epoch < w.knows:
			known := w.knows
			w.send(func(int) { w.outdo(known) })
		case epoch == w.here.epoch:
			held := w.here.referred()
			w.send(func(int) { w.learn(epoch, held) })
		}
	})
}

// Impostor announces an epoch in the name of the holder's deployment, and answers at its address, to hold
// deletes up. With the certificate it could also release each blockade of that deployment, which nothing
// prevents.
func (w *HolderWorld) Impostor() {
	held := w.waits
	held[w.r.IntN(kinds)] = true
	w.learn(w.number(), held)
	w.count["impostor"]++
}

// outdo begins an epoch that is later than one that the targets' deployment knows and this database does not:
// it has lost it, or never begun it.
func (w *HolderWorld) outdo(known int) {
	if known <= w.here.epoch {
		return
	}
	w.count["outdone"]++
	w.here.epoch = known
	if !w.LaterEpochIsTaken {
		w.here.epoch = w.number()
	}
	if !w.LaterEpochIsOutdoneSilently {
		w.here.announced, w.here.compared = false, false
	}
}

// Confirm tells the holder's deployment that the targets' one has compared its own references in the epoch
// that it knows. It is told again until it is heard of.
func (w *HolderWorld) Confirm() {
	if !w.confirming {
		return
	}
	known := w.knows
	w.send(func(int) {
		if !w.LaterEpochIsRefused {
			w.outdo(known)
		}
		if known == w.knows && w.knows == w.here.epoch {
			w.confirming = false
		}
	})
}

// learn records an epoch, and the kinds to which its database refers.
func (w *HolderWorld) learn(epoch int, held [kinds]bool) {
	if epoch > w.knows {
		if w.OwnKindsAreHeld {
			for k := range held {
				held[k] = w.blockaded(k)
			}
		}
		w.knows, w.confirming = epoch, true
		switch waiting := w.waits != [kinds]bool{}; {
		case w.AnnouncerIsNotAwaited, waiting && w.KindsOfTheFirstEpochStay:
		default:
			w.waits = held
		}
	}
	w.answer(epoch)
}

func (w *HolderWorld) answer(epoch int) {
	if epoch == w.knows && w.knows == w.here.epoch && w.r.IntN(3) > 0 {
		w.here.announced = true
	}
}

// Compare compares the references with the targets' deployment, in the epoch that was announced, and
// establishes them again under new attempts.
func (w *HolderWorld) Compare() {
	if !w.here.announced || w.here.compared {
		return
	}
	for k, a := range w.here.reference {
		switch {
		case a == 0 || w.here.dangling[k] || w.blockades[a] || w.NothingIsCompared:
		case w.deleted[k]:
			w.here.dangling[k] = true
		default:
			n := w.number()
			w.of[n], w.blockades[n], w.here.reference[k], w.here.decided[n] = k, true, n, true
		}
	}
	epoch := w.here.epoch
	w.send(func(int) {
		if epoch == w.knows || w.OldConfirmationsCount {
			w.waits = [kinds]bool{}
		}
		// from now on its references keep their targets
		if epoch == w.knows && w.knows == w.here.epoch && !w.here.compared {
			w.here.compared = true
			for k, a := range w.here.reference {
				w.wanted[k] = a != 0 && !w.here.dangling[k]
			}
		}
	})
}

// Rest lets every message arrive, and checks that nothing waits and nothing is lost.
func (w *HolderWorld) Rest() {
	clear(w.began)
	for range 3 {
		for range 8 { // an answer to an announcement may be lost
			w.Announce()
			w.Confirm()
			w.deliverAll()
		}
		w.Compare()
		for _, a := range sorted(w.blockades) {
			w.Ask(a)
		}
		w.deliverAll()
	}
	if w.waits != [kinds]bool{} {
		w.report("I13: the targets' deployment waits at rest")
	}
	for k, a := range w.here.reference {
		live := a != 0 && !w.here.dangling[k]
		if live && w.deleted[k] {
			w.report("I1: a reference points to nothing, and is not reported")
		}
		if live && !w.blockades[a] {
			w.report("I8: a reference has no blockade")
		}
	}
	for a := range w.blockades {
		if a != w.here.reference[w.of[a]] {
			w.report("I8: a blockade of attempt %d is left", a)
		}
	}
}

func (w *HolderWorld) deliverAll() {
	for len(w.flight) > 0 {
		w.Deliver(0, false)
	}
}
