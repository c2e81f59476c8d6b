package delegation

import (
	"flag"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var schedules = flag.Int("schedules", 2_000, "schedules to play")

// play plays one random schedule, and once more with a trace when it breaks an invariant.
func play(seed uint64, m Mistakes) *World {
	if w := once(seed, m, false); len(w.broken) == 0 {
		return w
	}
	return once(seed, m, true)
}

func once(seed uint64, m Mistakes, traced bool) *World {
	w := New(seed, m)
	w.traced = traced
	defer func() {
		for _, t := range slices.Clone(w.tasks) {
			w.kill(t)
		}
	}()
	uids := []UID{2, 3}
	uid := func() UID { return uids[w.r.IntN(len(uids))] }
	steps := []func(){
		func() { // a write, of no reference now and then
			u := uid()
			if w.chance(3) {
				u = 0
			}
			w.put(w.r.IntN(holdersOfX), u)
		},
		func() { w.putTogether(map[int]UID{0: uid(), 1: uid(), 2: uid()}) },
		func() { w.remove(uid()) },
		func() {
			if work := sortedWork(w.x.work); len(work) > 0 {
				k := work[w.r.IntN(len(work))]
				w.start("work", func(t *task) { t.do(k) })
			}
		},
		func() { w.sendA() },
		func() { w.wants(uid()) },
		func() { w.wants(uid()) },
		func() { w.releaseEntry(uid()) },
		func() { w.takeBack(uid()) },
		func() { w.releaseUnconfirmed(uid()) },
		func() { w.lookAtEntry(uid()) },
		func() { // a new target, which X has never referred to
			if w.chance(2) {
				u := UID(w.number())
				w.a.state[u] = active
				uids[w.r.IntN(2)] = u
			}
		},
	}
	rare := []func(){
		func() {
			if u := uid(); w.a.state[u] == active && !w.a.unconfirmed && !w.a.uncompared { // a cascade that reaches it
				w.mark(u)
			}
		},
		func() { w.tidy(uid()) },
		w.sendX,
		w.switchVersion,
		func() {
			if len(w.tasks) > 0 { // a process dies
				w.kill(w.tasks[w.r.IntN(len(w.tasks))])
			}
		},
		func() { w.backupA = w.a.copy() },
		func() { w.backupX = w.x.copy() },
		func() { w.failover(true) },
		func() { w.failover(false) },
	}
	for range 2 { // the state before the first fault
		for holder := range holdersOfX {
			w.put(holder, uid())
		}
		w.wants(uids[0])
		w.wants(uids[1])
		if w.rest(); len(w.broken) > 0 {
			return w
		}
	}
	w.calm = false
	// A schedule prefers some of the rare steps: chance brings them together too seldom.
	often, failing := rare[:4], false
	switch w.r.IntN(3) {
	case 1:
		often, failing = rare[5:], true
	case 2:
		often, failing = rare, true
	}
	for range 40 + w.r.IntN(200) {
		switch n := w.r.IntN(100); {
		case n < 12:
			steps[w.r.IntN(len(steps))]()
		case n < 15:
			often[w.r.IntN(len(often))]()
		case n < 16:
			if i := w.r.IntN(len(rare)); failing || i != 7 && i != 8 {
				rare[i]()
			}
		case n < 40 && len(w.bag) > 0:
			if i := w.r.IntN(len(w.bag)); w.chance(10) {
				w.bag = slices.Delete(w.bag, i, i+1)
			} else {
				w.deliver(i, w.chance(6))
			}
		case len(w.tasks) > 0:
			for range 1 + w.r.IntN(10) {
				if i := w.r.IntN(max(1, len(w.tasks))); i < len(w.tasks) && (!w.tasks[i].slow || w.chance(12)) {
					w.step(i)
				}
			}
		}
		if len(w.broken) > 0 {
			return w
		}
	}
	if w.rest(); len(w.broken) == 0 {
		w.atRest()
	}
	return w
}

// Messages are lost, repeated and late, processes pause, and deployments fail over, tidy up and switch their
// versions.
func TestDelegationsOnManySchedules_I1_I3_I8_I13_I28_I30_I31_I32(t *testing.T) {
	t.Parallel()
	began, seen := time.Now(), map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for part := range 2 {
		all.Go(func() {
			for seed := part; seed < *schedules; seed += 2 {
				w := play(uint64(seed), Mistakes{})
				mu.Lock()
				if len(w.broken) > 0 {
					t.Errorf("seed %d: %s", seed, w.broken[0])
				}
				for what, n := range w.seen {
					seen[what] += n
				}
				failed := t.Failed()
				mu.Unlock()
				if failed {
					return
				}
			}
		})
	}
	all.Wait()
	t.Logf("%.0f schedules a second; %v", float64(*schedules)/time.Since(began).Seconds(), seen)
	for _, what := range []string{
		"acting right taken", "block right taken", "acting written", "block written", "batch",
		"written beside a deletion", "held", "deleted", "removed", "dangling", "entry released", "forsaken", "insisted",
		"taken back", "entry left", "entry used", "entry taken again", "unused right taken", "unused right used",
		"unconfirmed released",
	} {
		require.GreaterOrEqual(t, seen[what], *schedules/1000, "%s is too rare: %v", what,
			slices.Sorted(maps.Keys(seen)))
	}
}

// grantsAfterClose is a schedule that chance finds once in hundreds of thousands: a blocking reference that
// was established before its target was marked is confirmed after X has closed the target, which has an entry
// for other references.
func grantsAfterClose(m Mistakes) *World {
	w := New(1, m)
	w.calm = true
	w.put(0, 2) // acting
	w.rest()
	w.put(1, 2) // blocking; it is held back when it is established
	held := w.tasks[0]
	for len(w.bag) == 0 && len(w.broken) == 0 {
		w.step(0)
	}
	if len(w.broken) > 0 {
		return w
	}
	w.deliver(0, false)
	w.mark(2)
	w.send(message{kind: "notices", theirs: w.a.epoch, own: w.a.peer, uids: map[UID]bool{2: true}, made: w.a.told})
	work := func() {
		for _, k := range sortedWork(w.x.work) {
			w.start("work", func(t *task) { t.do(k) })
		}
		w.settle()
	}
	w.tasks = nil
	w.settle()
	work() // the look after the close, and its return
	work()
	w.tasks = append(w.tasks, held)
	w.settle()
	work()      // the confirm
	w.put(2, 2) // acting: refused
	w.settle()
	w.put(1, 0)
	if w.rest(); len(w.broken) == 0 {
		w.atRest()
	}
	return w
}

// takesLate is another one: the answer to a confirm grants the acting right, and X takes it after it has
// closed the target; tidies: and has removed the row.
func takesLate(m Mistakes, tidies bool) *World {
	w := New(1, m)
	w.calm = true
	w.put(0, 2) // acting
	w.settle()
	w.start("work", func(t *task) { t.do(sortedWork(w.x.work)[0]) })
	held := w.tasks[0]
	for len(w.bag) == 0 {
		w.step(0)
	}
	w.deliver(0, false)
	w.mark(2)
	w.send(message{kind: "notices", theirs: w.a.epoch, own: w.a.peer, uids: map[UID]bool{2: true}, made: w.a.told})
	w.tasks = nil
	w.settle()
	if tidies {
		w.tidy(2)
		w.settle()
	}
	w.tasks = append(w.tasks, held)
	w.settle()
	w.put(2, 2) // acting
	if w.rest(); len(w.broken) == 0 {
		w.atRest()
	}
	return w
}

// releasedEarly is a schedule in which X is asked to close a target before the mark, and gets the acting
// right anew until the entry is released.
func releasedEarly(m Mistakes) *World {
	w := New(1, m)
	w.calm = true
	w.put(0, 2) // acting
	w.rest()
	w.releaseEntry(2)
	held := w.tasks[0]
	if w.step(0); len(w.bag) > 0 {
		w.deliver(0, false)
	}
	w.tasks = slices.DeleteFunc(w.tasks, func(t *task) bool { return t == held })
	w.settle()
	w.put(2, 2) // acting
	w.rest()
	w.mark(2)
	w.tasks = append(w.tasks, held)
	w.settle()
	w.put(0, 0)
	w.settle()
	w.put(0, 2)
	if w.rest(); len(w.broken) == 0 {
		w.atRest()
	}
	return w
}

// releasedBlocking is another one: nothing stands under the right to block a target when its entry is
// released.
func releasedBlocking(m Mistakes) *World {
	w := New(1, m)
	w.calm = true
	w.put(1, 2) // blocking
	w.rest()
	works := func() { // A asks nothing: the right stays
		for _, k := range sortedWork(w.x.work) {
			w.start("work", func(t *task) { t.do(k) })
		}
		w.settle()
	}
	w.wants(2)
	works() // acquires
	works() // confirms
	w.put(1, 0)
	w.settle()
	works() // releases
	w.mark(2)
	w.releaseEntry(2)
	w.settle()
	if w.rest(); len(w.broken) == 0 {
		w.atRest()
	}
	return w
}

// releasedUnconfirmed is a schedule in which a right is used after its proxy was released, because X had
// never confirmed it.
func releasedUnconfirmed(m Mistakes) *World {
	w := New(1, m)
	w.calm = true
	w.put(0, 2) // acting
	w.rest()
	w.start("acquire", func(t *task) { t.do(work{kind: acquire, uid: 2, holder: 1}) })
	w.settle()
	w.put(1, 2) // blocking, under the right
	w.settle()
	w.releaseUnconfirmed(2)
	if w.rest(); len(w.broken) == 0 {
		w.atRest()
	}
	return w
}

// entryLeaves is a schedule in which X answers that it does not use an entry, and before changes the world
// until A has the answer.
func entryLeaves(m Mistakes, backed bool, before func(w *World, work func())) *World {
	w := New(1, m)
	w.calm = true
	w.put(0, 2) // acting
	w.rest()
	if backed {
		w.backupX = w.x.copy()
	}
	w.put(0, 0)
	w.rest()
	w.lookAtEntry(2)
	looks := w.tasks[0]
	for len(w.bag) == 0 {
		w.step(0)
	}
	w.tasks = nil
	w.settle() // X has answered
	before(w, func() {
		for _, k := range sortedWork(w.x.work) {
			w.start("work", func(t *task) { t.do(k) })
		}
		w.settle()
	})
	w.tasks = append(w.tasks, looks)
	w.settle()
	if !backed {
		w.put(2, 2) // acting
	}
	if w.rest(); len(w.broken) == 0 {
		w.atRest()
	}
	return w
}

// entryGrants confirms a blocking reference meanwhile: its target has an entry, which does not grant.
func entryGrants(m Mistakes) *World {
	return entryLeaves(m, false, func(w *World, work func()) {
		w.put(1, 2)
		w.settle()
		work()
	})
}

// entryOfLost replaces the database of X by a copy of before, which has the reference.
func entryOfLost(m Mistakes) *World {
	return entryLeaves(m, true, func(w *World, _ func()) {
		w.x = w.backupX.copy()
		w.backupX = nil
		w.x.epoch = Epoch(w.number())
		w.x.work[work{kind: compare, epoch: w.x.epoch}] = true
		w.rest()
	})
}

// entryConfirmed confirms an acting reference meanwhile.
func entryConfirmed(m Mistakes) *World {
	return entryLeaves(m, false, func(w *World, work func()) {
		w.put(0, 2)
		w.settle()
		work()
	})
}

func TestAnEntryThatIsNotUsedLeaves_I8_I30(t *testing.T) {
	t.Parallel()
	w := entryLeaves(Mistakes{}, false, func(*World, func()) {})
	require.Empty(t, w.broken)
	require.NotZero(t, w.seen["entry left"])
	for _, play := range []func(Mistakes) *World{entryGrants, entryOfLost, entryConfirmed} {
		require.Empty(t, play(Mistakes{}).broken)
	}
	require.NotEmpty(t, entryGrants(Mistakes{LeavingEntryGrants: true}).broken)
	require.NotEmpty(t, entryOfLost(Mistakes{EntryLeavesInAnotherEpoch: true}).broken)
	require.NotEmpty(t, entryConfirmed(Mistakes{EntryLeavesBesideConfirm: true}).broken)
}

func TestAnEntryIsReleasedAfterTheClose_I13_I30(t *testing.T) {
	t.Parallel()
	require.Empty(t, releasedEarly(Mistakes{}).broken)
	require.NotEmpty(t, releasedEarly(Mistakes{EntryAskedBeforeMark: true}).broken)
	w := releasedBlocking(Mistakes{})
	require.Empty(t, w.broken)
	require.NotZero(t, w.seen["entry released"])
	require.NotEmpty(t, releasedBlocking(Mistakes{EntryEndsActingOnly: true}).broken)
}

func TestAReleasedRightIsCheckedWhereItWasUsed_I8_I31(t *testing.T) {
	t.Parallel()
	w := releasedUnconfirmed(Mistakes{})
	require.Empty(t, w.broken)
	require.NotZero(t, w.seen["unconfirmed released"])
	require.NotEmpty(t, releasedUnconfirmed(Mistakes{ReleasedRightGoesOn: true}).broken)
	require.NotEmpty(t, releasedUnconfirmed(Mistakes{ClosedIsNotChecked: true}).broken)
}

func TestNoGrantAfterAClose_I30(t *testing.T) {
	t.Parallel()
	require.Empty(t, grantsAfterClose(Mistakes{}).broken)
	require.NotEmpty(t, grantsAfterClose(Mistakes{GrantAfterClose: true}).broken)
	for _, tidies := range []bool{false, true} {
		require.Empty(t, takesLate(Mistakes{}, tidies).broken)
		require.NotEmpty(t, takesLate(Mistakes{GrantWithoutTurn: !tidies, RowMadeByAnswer: tidies}, tidies).broken)
	}
}

// Each mistake is found on some schedule, or the test above shows nothing.
func TestTheModelOfDelegationsFindsMistakes_I30_I31_I32(t *testing.T) {
	t.Parallel()
	of := reflect.TypeFor[Mistakes]()
	for i := range of.NumField() {
		t.Run(of.Field(i).Name, func(t *testing.T) {
			t.Parallel()
			var m Mistakes
			reflect.ValueOf(&m).Elem().Field(i).SetBool(true)
			for _, w := range []*World{
				grantsAfterClose(m), takesLate(m, false), takesLate(m, true), releasedEarly(m),
				releasedBlocking(m), releasedUnconfirmed(m), entryGrants(m), entryOfLost(m), entryConfirmed(m),
			} {
				if len(w.broken) > 0 {
					return
				}
			}
			for seed := range uint64(200_000) {
				if w := play(seed, m); len(w.broken) > 0 {
					t.Logf("at schedule %d: %.100s", seed, w.broken[0])
					return
				}
			}
			t.Error("no schedule shows it")
		})
	}
}
