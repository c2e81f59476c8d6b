package strict

import (
	"flag"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

var schedules = flag.Int("schedules", 5_000, "schedules to play")

const holders = 4

// play plays one random schedule.
func play(seed uint64, m Mistakes) *World {
	w := newWorld(seed, m)
	defer func() {
		for len(w.tasks) > 0 {
			w.step(0, false)
		}
	}()
	processes := []func(*task){(*task).capture, (*task).capture, (*task).act, (*task).act, (*task).look, (*task).forget, (*task).finalise}
	for range 80 + w.r.IntN(160) {
		switch n := w.r.IntN(100); {
		case n < 12 && len(w.tasks) < 6:
			w.application()
		case n < 30 && len(w.tasks) < 8:
			w.start(processes[w.r.IntN(len(processes))])
		case n < 32 && len(w.tasks) > 0:
			w.step(w.r.IntN(len(w.tasks)), false)
		case n < 34:
			for _, r := range w.rights { // a while has passed
				r.kept, r.ending = false, r.ending && r.alone != nil
			}
		case len(w.tasks) > 0:
			w.step(w.r.IntN(len(w.tasks)), true)
		}
		if len(w.broken) > 0 {
			return w
		}
	}
	w.rest(processes)
	return w
}

// application starts the statements of people.
func (w *World) application() {
	h := w.r.IntN(holders)
	switch w.r.IntN(10) {
	case 0, 1, 2:
		w.start(func(t *task) { t.acquire(h%2 == 0) })
	case 3, 4, 5:
		w.start(func(t *task) { t.write(h) })
	case 6:
		if w.r.IntN(2) == 0 {
			w.start(func(t *task) { t.wait(3) })
			return
		}
		w.start(func(t *task) { t.drop(h) })
	case 7:
		w.start((*task).recall)
	case 8:
		cascade := w.r.IntN(2) == 0
		w.start(func(t *task) { t.remove(w.active, cascade) })
	default:
		w.insert()
	}
}

// rest lets everything end, and checks what holds then.
func (w *World) rest(processes []func(*task)) {
	w.finish()
	for range 20 {
		for _, r := range w.rights {
			r.kept, r.ending = false, false // a row in ending that a dead process left ends by its time
		}
		for _, tg := range w.targets {
			tg.tentative = false // resolved: nobody has committed it
		}
		for _, run := range processes {
			w.start(run)
			w.finish()
		}
	}
	if len(w.broken) > 0 {
		return
	}
	for h, u := range w.rows {
		if tg := w.targets[u]; tg == nil || !tg.deleting && w.refs[h] != u {
			w.report("I1: holder %d refers to %d, and its resource to %d", h, u, w.refs[h])
		}
	}
	for u, tg := range w.targets {
		if tg.proxies && !w.stored(u, true) && !w.named(u, true) {
			w.report("I13: a right to block %d stays, and nothing uses it", u)
		}
		if tg.deleting && !w.stored(u, true) && !w.named(u, true) {
			w.report("I13: %d stays in DELETING", u)
		}
	}
	w.progress()
}

// progress: a statement that waits for both rights to a target that stays gets them, while the controller goes on.
func (w *World) progress() {
	if tg := w.targets[w.active]; tg == nil || tg.deleting {
		return
	}
	written := false
	w.start(func(t *task) { written = t.wait(40) })
	for n := range 40 {
		if n%4 == 0 {
			w.start(func(t *task) { t.acquire(n%8 == 0) })
		}
		for i := len(w.tasks) - 1; i >= 0; i-- {
			w.step(i, true)
		}
	}
	w.finish()
	if !written {
		w.report("a statement that waits for two rights does not get them")
	}
}

func (w *World) finish() {
	for n := 0; len(w.tasks) > 0; n++ {
		w.step(n%len(w.tasks), true)
	}
}

// Statements under rights in any order with everything that ends a right, and with crashes.
func TestStrictReferencesOnManySchedules_I1_I3_I13_I30_I31(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for seed := range uint64(*schedules) { //nolint:gosec // positive
		w := play(seed, Mistakes{})
		if len(w.broken) > 0 {
			t.Fatalf("seed %d: %s\n%v", seed, w.broken[0], w.trace)
		}
		for what, n := range w.seen {
			seen[what] += n
		}
	}
	t.Log(seen)
	for _, what := range []string{"RD001", "RD002", "waits beside its right", "written after a wait", "written", "stored", "held", "recalled", "refused", "marked", "not stored", "cascaded", "cascaded by the index", "returned", "forgotten", "acquired"} {
		require.GreaterOrEqual(t, seen[what], *schedules/500, "%s is too rare: %v", what, seen)
	}
}

// shown is a schedule that is before the first one that shows a mistake, where the search for it is long.
var shown = map[string]uint64{"ActsBesideLater": 1_390_000}

// Each mistake is found on some schedule, or the test above shows nothing.
func TestTheModelOfStrictReferencesFindsMistakes(t *testing.T) {
	t.Parallel()
	of := reflect.TypeFor[Mistakes]()
	for i := range of.NumField() {
		t.Run(of.Field(i).Name, func(t *testing.T) {
			t.Parallel()
			var m Mistakes
			reflect.ValueOf(&m).Elem().Field(i).SetBool(true)
			for seed := range uint64(20_000) {
				if w := play(shown[of.Field(i).Name]+seed, m); len(w.broken) > 0 {
					t.Logf("%s at schedule %d: %.100s", of.Field(i).Name, shown[of.Field(i).Name]+seed, w.broken[0])
					return
				}
			}
			t.Error("no schedule shows it")
		})
	}
}
