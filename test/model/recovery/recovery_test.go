package recovery

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

const schedules = 20_000

// begun is a world at which chance arrives too seldom: the target's database is restored to before a holder
// referred to it, after an empty database was met; or to before the late deployment came, and possibly the
// registry's as well.
func begun(seed uint64, m Mistakes) *World {
	w := New(seed, m)
	if seed%8 == 4 {
		w.Impersonate(holder)
		w.backup = w.a.clone()
		w.Establish(holder)
		w.Commit(holder)
		w.Restore()
	}
	if seed%4 == 0 {
		return w
	}
	w.Come(late)
	w.Establish(late)
	w.Commit(late)
	if seed%4 == 1 {
		return w
	}
	w.Restore()
	w.RestoreRegistry(w.r.IntN(4) > 0)
	for range w.r.IntN(3) {
		w.change()
	}
	return w
}

// change enables or disables the target's deployment in the registry.
func (w *World) change() {
	l := w.registry.listed[target]
	l.disabled = !l.disabled
	w.list(target, l)
}

// copied is a world in which positions were told, and an older copy of the database is in its place, possibly
// from an earlier epoch.
func copied(seed uint64, m Mistakes) *World {
	w := New(seed, m)
	w.backup = w.a.clone()
	if w.r.IntN(3) == 0 {
		w.Restore()
		w.Rest()
	}
	for range w.r.IntN(3) {
		w.Number()
	}
	for i := range 2 {
		w.Watch(holder, i)
		w.Bookmark(holder, i)
	}
	if w.r.IntN(2) == 0 {
		w.Receive(holder, 0)
	}
	w.Establish(holder)
	w.Commit(holder)
	w.Bookmark(holder, 0)
	if w.r.IntN(3) == 0 {
		w.Crash()
	} else {
		w.RestoreCopy(w.r.IntN(3) == 0)
	}
	w.Open(target)
	return w
}

func play(seed uint64, m Mistakes) *World {
	begin := begun
	if seed%3 == 2 {
		begin = copied
	}
	w := begin(seed, m)
	any := func() int { return holder + w.r.IntN(2) }
	steps := []func(){
		func() { w.Establish(any()) },
		func() { w.Establish(any()) },
		func() { w.Commit(any()) },
		func() { w.Commit(any()) },
		func() { w.Drop(any()) },
		w.Delete,
		w.Recover,
		func() { w.Open(w.r.IntN(deployments)) },
		func() { w.Open(target) },
		func() { w.Compare(any()) },
		func() { w.Compare(any()) },
		func() {
			if len(w.bag) > 0 {
				w.Deliver(w.r.IntN(len(w.bag)), w.r.IntN(4) == 0)
			}
		},
	}
	which := func() int { return w.r.IntN(2) }
	steps = append(steps,
		func() { w.Watch(any(), which()) },
		func() { w.Bookmark(any(), which()) },
		func() { w.Receive(any(), which()) },
		func() { w.Receive(any(), which()) },
	)
	rare := []func(){
		w.Number,
		w.Crash,
		func() { w.RestoreCopy(w.r.IntN(2) == 0) },
		func() { w.RestartWatches(any()) },
		func() { w.Come(late) },
		w.Restore,
		func() { w.RestoreRegistry(true) },
		func() { w.RestoreRegistry(false) },
		w.ApplyAll,
		w.ApplyListed,
		w.Restart,
		func() { w.Disable(late, w.r.IntN(2) == 0) },
		func() { w.Impersonate(any()) },
		w.Attack,
		func() { w.backup = w.a.clone() },
		func() {
			w.list(target, listing{
				database: w.databases[target], appliedIn: w.registry.server,
				disabled: w.r.IntN(2) == 0,
			})
		}, // a change like any other
	}
	for range 60 {
		if w.r.IntN(4) == 0 {
			rare[w.r.IntN(len(rare))]()
		} else {
			steps[w.r.IntN(len(steps))]()
		}
		if len(w.broken) > 0 {
			return w
		}
	}
	w.Rest()
	return w
}

// Both databases are restored, in any order and to any moment; nothing is deleted beside a reference, and
// everything comes to rest.
func TestRecoveriesBesideARestoredRegistry_I2_I8_I13_I15(t *testing.T) {
	t.Parallel()
	count := map[string]int{}
	for seed := range uint64(schedules) {
		w := play(seed, Mistakes{})
		require.Empty(t, w.broken, "seed %d", seed)
		for what, n := range w.count {
			count[what] += n
		}
	}
	t.Log(count)
	for _, what := range []string{"committed", "deleted", "restored", "recovered", "copied"} {
		require.Greater(t, count[what], schedules/20, slices.Sorted(maps.Keys(count)))
	}
}

// Each mistake is found on some schedule, or the test above shows nothing.
func TestTheModelOfRecoveriesFindsMistakes_I2_I15(t *testing.T) {
	t.Parallel()
	of := reflect.TypeFor[Mistakes]()
	for i := range of.NumField() {
		t.Run(of.Field(i).Name, func(t *testing.T) {
			t.Parallel()
			var m Mistakes
			reflect.ValueOf(&m).Elem().Field(i).SetBool(true)
			for seed := range uint64(5 * schedules) {
				if w := play(seed, m); len(w.broken) > 0 {
					t.Logf("at schedule %d: %s", seed, w.broken[0])
					return
				}
			}
			t.Error("no schedule shows it")
		})
	}
}
