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
	// Of the target's deployment.
	AnnouncerIsNotAwaited, OldVerdictsCount, OldReleasesCount, OldConfirmationsCount bool
}

// holderDatabase is the database of the holder's deployment. A reference is that of the attempt that has established it.
type holderDatabase struct {
	epoch     int
	reference int // 0: none
	decided   map[int]bool
	announced bool // the target's deployment has answered that it knows the epoch
	compared  bool // and that the comparison in it has ended
	dangling  bool
}

func (d holderDatabase) clone() holderDatabase {
	d.decided = maps.Clone(d.decided)
	return d
}

type holderMessage struct {
	arrives func(epoch int)
	epoch   int // of the database from which it was read
}

// HolderWorld models the other restore: that of a holder's database, in which the reference may stand by an earlier attempt, or be lost. The
// registry knows both deployments. Messages are lost, repeated and late.
type HolderWorld struct {
	HolderMistakes
	r            *rand.Rand
	here, backup holderDatabase
	began        map[int]int // attempts under way, with the epoch in which they began
	// wanted: the last acknowledged write refers to the target.
	wanted bool

	// The target's deployment.
	deleted, waits bool
	knows          int // the epoch of the holder's database
	blockades      map[int]bool
	closed         map[int]bool

	flight []holderMessage
	last   int
	count  map[string]int
	broken []string
}

// NewHolder makes a world in which the target exists, and the holder does not refer to it.
func NewHolder(seed uint64, m HolderMistakes) *HolderWorld {
	w := &HolderWorld{
		HolderMistakes: m, r: rand.New(rand.NewPCG(seed, 2)), began: map[int]int{}, blockades: map[int]bool{}, closed: map[int]bool{}, count: map[string]int{},
	}
	w.here = holderDatabase{epoch: w.number(), decided: map[int]bool{}, announced: true, compared: true}
	w.knows, w.backup = w.here.epoch, w.here.clone()
	return w
}

func (w *HolderWorld) number() int { w.last++; return w.last }

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

// Begin begins a write that refers to the target: it establishes the reference.
func (w *HolderWorld) Begin() {
	if w.here.reference != 0 || w.deleted {
		return
	}
	n := w.number()
	w.began[n], w.blockades[n] = w.here.epoch, true
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
	epoch := w.began[n]
	delete(w.began, n)
	if w.here.reference != 0 || w.here.decided[n] || epoch != w.here.epoch && !w.CommitsOfLostEpochs {
		return // another write has stored the reference, or the attempt is over: its blockade is asked about later
	}
	w.here.reference, w.here.decided[n], w.here.dangling, w.wanted = n, true, false, true
	if w.count["committed"]++; w.deleted {
		w.report("I1: a reference is committed after its target was deleted")
	}
}

// Drop drops the reference by an acknowledged write.
func (w *HolderWorld) Drop() {
	if w.here.reference == 0 {
		return
	}
	w.release(w.here.reference)
	w.here.reference, w.wanted = 0, false
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
	if w.here.reference == attempt {
		return // held
	}
	w.send(func(epoch int) {
		if epoch >= w.knows || w.OldVerdictsCount {
			w.remove(attempt)
		}
	})
}

// Delete deletes the target, unless something blocks it or may block it.
func (w *HolderWorld) Delete() {
	if w.deleted || w.waits || len(w.blockades) > 0 {
		return
	}
	w.deleted = true
	if w.count["deleted"]++; w.wanted && w.here.reference != 0 && !w.here.dangling {
		w.report("I2: the target is deleted beside a reference by attempt %d", w.here.reference)
	}
}

// Restore puts the backup in the place of the holder's database, in a new epoch.
func (w *HolderWorld) Restore() {
	w.here = w.backup.clone()
	w.here.epoch, w.here.announced, w.here.compared = w.number(), false, false
	w.wanted = w.wanted && w.here.reference != 0 // a reference that is lost keeps no target
	w.count["restored"]++
}

// Announce tells the epoch. The answer may be lost: then it is told again.
func (w *HolderWorld) Announce() {
	epoch := w.here.epoch
	w.send(func(int) {
		if epoch > w.knows {
			w.knows, w.waits = epoch, !w.AnnouncerIsNotAwaited
		}
		if epoch == w.knows && w.knows == w.here.epoch && w.r.IntN(3) > 0 {
			w.here.announced = true
		}
	})
}

// Compare compares the reference with the target's deployment, in the epoch that was announced, and establishes it again under a new attempt.
func (w *HolderWorld) Compare() {
	if !w.here.announced || w.here.compared {
		return
	}
	if a := w.here.reference; a != 0 && !w.here.dangling && !w.blockades[a] && !w.NothingIsCompared {
		if w.deleted {
			w.here.dangling = true
		} else {
			n := w.number()
			w.blockades[n], w.here.reference, w.here.decided[n] = true, n, true
		}
	}
	epoch := w.here.epoch
	w.send(func(int) {
		if epoch == w.knows || w.OldConfirmationsCount {
			w.waits = false
		}
		if epoch == w.knows && w.knows == w.here.epoch && !w.here.compared { // from now on its references keep their targets
			w.here.compared = true
			w.wanted = w.here.reference != 0 && !w.here.dangling
		}
	})
}

// Rest lets every message arrive, and checks that nothing waits and nothing is lost.
func (w *HolderWorld) Rest() {
	clear(w.began)
	for range 3 {
		for range 8 { // an answer to an announcement may be lost
			w.Announce()
			w.deliverAll()
		}
		w.Compare()
		for _, a := range sorted(w.blockades) {
			w.Ask(a)
		}
		w.deliverAll()
	}
	if w.waits {
		w.report("I13: the target's deployment waits at rest")
	}
	live := w.here.reference != 0 && !w.here.dangling
	if live && w.deleted {
		w.report("I1: the reference points to nothing, and is not reported")
	}
	for a := range w.blockades {
		if a != w.here.reference {
			w.report("I8: a blockade of attempt %d is left", a)
		}
	}
	if live && !w.blockades[w.here.reference] {
		w.report("I8: the reference has no blockade")
	}
}

func (w *HolderWorld) deliverAll() {
	for len(w.flight) > 0 {
		w.Deliver(0, false)
	}
}
