package rows

import (
	"flag"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var schedules = flag.Int("schedules", 5_000, "schedules to play")

const numbers = 4 // of rows

// play plays one random schedule. Each of them has weights of its own for the kinds of steps, some of which
// it leaves out: so rare orders of few kinds come (swarm testing: Groce and others, 2012).
func play(seed uint64, m Mistakes) *World {
	w := newWorld(seed, m)
	defer w.kill()
	steps, total := w.steps(), 0
	for i := range steps {
		steps[i].weight *= []int{0, 1, 1, 4}[w.r.IntN(4)]
		total += steps[i].weight
	}
	if total == 0 {
		return w
	}
	begins := 10 + w.r.IntN(40) // of a hundred
	for range 120 + w.r.IntN(240) {
		switch n := w.r.IntN(100); {
		case n < begins && len(w.tasks) < 8 || len(w.tasks) == 0:
			one := w.r.IntN(total)
			for _, s := range steps {
				if one -= s.weight; one < 0 {
					s.do()
					break
				}
			}
		default:
			w.step(w.r.IntN(len(w.tasks)), n > 1) // a process dies
		}
		if len(w.broken) > 0 {
			return w
		}
	}
	w.rest()
	return w
}

type step struct {
	weight int
	do     func()
}

func (w *World) steps() []step {
	starts := func(run func(*task)) func() { return func() { w.start(run) } }
	kinds := func(run func(*task, bool)) func() {
		return func() {
			block := w.chance(2)
			w.start(func(t *task) { run(t, block) })
		}
	}
	return []step{
		{16, func() {
			h, strict, repeatable := w.r.IntN(numbers), w.chance(2), w.chance(4)
			w.start(func(t *task) { t.insert(h, strict, repeatable) })
		}},
		{8, func() { h := w.r.IntN(numbers); w.start(func(t *task) { t.drop(h) }) }},
		{5, starts((*task).remove)},
		{5, func() { w.create() }},
		{14, kinds((*task).grant)},
		{5, starts((*task).look)},
		{5, starts((*task).release)},
		{10, starts((*task).act)},
		{5, starts((*task).recover)},
		{3, starts((*task).resolve)},
		{3, starts((*task).actOnMissing)},
		{8, func() { w.announced(w.h.epoch); w.finalise() }},
		{4, func() {
			for _, r := range w.h.rights { // a while has passed
				r.kept = false
			}
		}},
		{4, func() {
			if len(w.late) > 0 {
				i := w.r.IntN(len(w.late))
				w.late[i]()
				w.late = append(w.late[:i], w.late[i+1:]...)
			}
		}},
		{2, func() { w.restore() }},
		{2, func() { w.oldH, w.oldT = w.h.copied(), w.t.copied() }},
	}
}

// restore replaces one of the databases by an earlier copy, with which an epoch begins. All processes of both
// deployments die: the other one's processes would meet the new epoch at their next step.
func (w *World) restore() {
	w.kill()
	w.late = nil
	if w.chance(2) {
		w.restoreH()
	} else {
		w.restoreT()
	}
}

func (w *World) restoreH() {
	w.h = w.oldH.copied()
	w.h.epoch, w.h.uncertain, w.h.ending = w.number(), true, false
	w.note("H is restored, epoch %d", w.h.epoch)
	w.seen["H is restored"]++
}

func (w *World) restoreT() {
	w.t = w.oldT.copied()
	w.t.epoch, w.t.confirms = w.number(), false
	w.note("T is restored, epoch %d", w.t.epoch)
	w.seen["T is restored"]++
}

// rest lets all work end, and checks the invariants of a world at rest.
func (w *World) rest() {
	w.finish()
	for range 30 {
		w.announced(w.h.epoch)
		for _, r := range w.h.rights {
			r.kept = false
			if r.state == asked { // its process has died: another one gives it up
				r.set(ended)
				w.h.releases[r.turn] = true
			}
		}
		w.h.ending = false
		for _, run := range []func(*task){
			(*task).recover, (*task).recover, (*task).recover, func(t *task) {
				t.grant(true)
			}, func(t *task) { t.grant(false) },
			(*task).act, (*task).look, (*task).look, (*task).release, (*task).release, (*task).resolve, (*task).resolve,
		} {
			w.start(run)
			w.finish()
		}
		w.finalise()
		if len(w.broken) > 0 {
			return
		}
	}
	w.settled()
}

func (w *World) settled() {
	there := w.t.active != 0
	if w.t.deleting {
		w.report("I13: %d stays in DELETING", w.t.active)
	}
	if len(w.h.requests) > 0 {
		w.report("I13: a request stays without an answer")
	}
	for h, to := range w.h.rows {
		block := h%2 == 0
		switch r := w.counting(block); {
		case !there && w.h.missing[block] == 0:
			w.report("I1: row %d refers to %d, which is gone, and nothing says so", h, to)
		case there && (r == nil || r.uid != w.t.active):
			w.report("I1: row %d has no right to %d", h, w.t.active)
		case there && w.t.grants[r.turn].uid != w.t.active:
			w.report("I8: row %d has a right to %d that T does not know", h, w.t.active)
		}
	}
	for turn, g := range w.t.grants {
		if g.block && !w.refer(true) {
			w.report("I13: a right to block %d stays, turn %d, and no row uses it", g.uid, turn)
		}
	}
}

func (w *World) finish() {
	for n := 0; len(w.tasks) > 0 && n < 10_000; n++ {
		w.step(n%len(w.tasks), true)
	}
}

// Statements on tables without copies in any order with everything that ends a right, with crashes, lost
// calls, and restores of either database.
func TestRowsWithoutCopiesOnManySchedules_I1_I3_I8_I13_I34(t *testing.T) {
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
	for _, what := range []string{
		"written", "request", "RD001", "40001", "granted", "missing", "held", "held after the lock", "undecided",
		"refused", "recalled", "returned", "resolved", "deleted", "gone",
		"removed: its target is deleted", "removed: missing", "rows came meanwhile", "another target", "acknowledged",
		"confirmed", "a lost right ended", "H is restored", "T is restored",
	} {
		require.Positive(t, seen[what], "%s: %v", what, seen)
	}
}

// aimed are schedules for mistakes that few random ones show.
var aimed = map[string]func(w *World){
	"ClosesLeaveQuestions": func(w *World) {
		w.run(insert(1))
		asks := w.begin(grants(false), 2) // the answer is on its way
		w.run((*task).remove)
		w.run((*task).act)
		w.finalise()
		w.run(insert(3))
		w.end(asks)
	},
	"ClosesLeaveNoTrace": func(w *World) { // H has lost the right for which T tells the deletion
		w.run(insert(1))
		w.die(w.begin(grants(false), 2))
		w.run(func(t *task) { t.drop(1) })
		w.run((*task).remove)
		old := w.begin((*task).act, 2)
		w.run((*task).act)
		w.finalise()
		w.create()
		w.run(insert(3))
		w.end(old)
	},
	"LateMissingCounts": func(w *World) {
		w.run((*task).remove)
		w.finalise()
		w.run(insert(0))
		asks := w.begin(grants(true), 2) // there is none
		w.create()
		w.run(grants(true))
		w.end(asks)
		w.oldH = w.h.copied()
		w.restoreH()
		for range 3 {
			w.announced(w.h.epoch)
			w.run((*task).recover)
			w.run((*task).look)
			w.run((*task).release)
		}
		w.run((*task).remove)
	},
	"ActedOutlivesAGrant": func(w *World) {
		w.run(insert(1))
		w.run(grants(false))
		w.oldT = w.t.copied()
		w.run((*task).remove)
		w.run((*task).act)
		w.finalise()
		w.restoreT()
		w.run((*task).recover)
		w.run(insert(1))
		w.run(grants(false))
		w.run((*task).remove)
		w.run((*task).act)
		w.finalise()
	},
	"ActsWithoutALook": func(w *World) {
		old := w.oldProcess()
		w.run((*task).act)
		w.finalise()
		w.create()
		w.run(insert(3))
		w.run(grants(false))
		w.end(old)
	},
	"ActedAfterTheAcknowledgement": func(w *World) {
		old := w.oldProcess()
		w.die(w.begin((*task).act, 5)) // T has taken the acknowledgement
		w.finalise()
		w.create()
		w.run(insert(3))
		w.end(old)
	},
	"GrantsAnEndedTurn": func(w *World) {
		w.run(insert(0))
		asks := w.begin(grants(true), 2)
		w.run(func(t *task) { t.drop(0) })
		w.run((*task).remove) // its recall ends the question
		w.finalise()
		w.end(asks)
		w.run(insert(0))
	},
	"MissingOutlivesAnEpoch": func(w *World) {
		w.run(insert(1))
		w.run((*task).remove)
		w.finalise()
		w.run(grants(false))
		w.restoreT() // to before the deletion
		w.end(w.begin((*task).recover, 0))
		w.run((*task).actOnMissing)
	},
	"MissingTakesLaterRequests": func(w *World) {
		w.run((*task).remove)
		w.finalise()
		w.run(insert(1))
		asks := w.begin(grants(false), 2)
		w.create()
		w.run(insert(3))
		w.end(asks)
		w.run((*task).actOnMissing)
	},
}

func insert(h int) func(*task)      { return func(t *task) { t.insert(h, false, false) } }
func grants(block bool) func(*task) { return func(t *task) { t.grant(block) } }

// oldProcess acts upon a deletion, and stops before it removes rows.
func (w *World) oldProcess() *task {
	w.run(insert(1))
	w.run(grants(false))
	w.run((*task).remove)
	return w.begin((*task).act, 2)
}

func (w *World) run(do func(*task)) { w.end(w.begin(do, 0)) }

// begin starts a task and lets it take some steps.
func (w *World) begin(do func(*task), steps int) *task {
	w.start(do)
	t := w.tasks[len(w.tasks)-1]
	for range steps {
		w.step(slices.Index(w.tasks, t), true)
	}
	return t
}

func (w *World) end(t *task) {
	for slices.Contains(w.tasks, t) {
		w.step(slices.Index(w.tasks, t), true)
	}
}

func (w *World) die(t *task) { w.step(slices.Index(w.tasks, t), false) }

func playAimed(script func(*World), m Mistakes) *World {
	w := newWorld(0, m)
	defer w.kill()
	w.calm = true
	script(w)
	w.rest()
	return w
}

// Each mistake is found on some schedule, or the test above shows nothing.
func TestTheModelOfRowsWithoutCopiesFindsMistakes(t *testing.T) {
	t.Parallel()
	of := reflect.TypeFor[Mistakes]()
	for i := range of.NumField() {
		t.Run(of.Field(i).Name, func(t *testing.T) {
			t.Parallel()
			var m Mistakes
			reflect.ValueOf(&m).Elem().Field(i).SetBool(true)
			if script := aimed[of.Field(i).Name]; script != nil {
				require.Empty(t, playAimed(script, Mistakes{}).broken, "without the mistake")
				w := playAimed(script, m)
				require.NotEmpty(t, w.broken, "%v", w.trace)
				t.Log(w.broken[0])
				return
			}
			for seed := range uint64(20_000) {
				if w := play(seed, m); len(w.broken) > 0 {
					t.Logf("at schedule %d: %.100s", seed, w.broken[0])
					return
				}
			}
			t.Error("no schedule shows it")
		})
	}
}
