package recovery

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// referring is a world at which chance arrives too seldom: the database has a reference that was dropped, and
// possibly made anew, since its backup, and messages about that are late.
func referring(seed uint64, m HolderMistakes) *HolderWorld {
	w := NewHolder(seed, m)
	if seed%4 == 0 {
		return w
	}
	w.begin(0)
	w.Commit()
	w.backup = w.here.clone()
	first := w.here.reference[0]
	w.drop(0)
	if w.r.IntN(2) == 0 {
		w.Ask(first)
	} else {
		w.deliverAll()
	}
	switch seed % 4 {
	case 1:
		w.begin(0)
		w.Commit()
	case 2:
		w.Restore()
		for !w.here.announced {
			w.Announce()
			w.deliverAll()
		}
		w.Compare()
		w.Deliver(0, true)
	case 3: // restored twice, and to a database that refers to another kind before the first restore is compared
		w.Restore()
		for !w.here.announced {
			w.Announce()
			w.deliverAll()
		}
		w.begin(1)
		w.Commit()
		w.backup = w.here.clone()
		w.drop(1)
		w.deliverAll()
		w.begin(1)
		w.Commit()
		w.Restore()
	}
	return w
}

func playHolder(seed uint64, m HolderMistakes) *HolderWorld {
	w := referring(seed, m)
	steps := []func(){
		w.Begin, w.Commit, w.Commit, w.Drop, w.Delete, w.Announce, w.Announce, w.Confirm, w.Compare,
		func() {
			if all := sorted(w.blockades); len(all) > 0 {
				w.Ask(all[w.r.IntN(len(all))])
			}
		},
	}
	for range 40 {
		n := len(w.flight)
		switch chance := w.r.IntN(48); {
		case chance < 2:
			w.Restore()
		case chance == 2:
			w.backup = w.here.clone()
		case chance == 3 && w.r.IntN(4) == 0:
			w.Impostor()
		case n > 0 && chance < 20:
			w.Deliver(w.r.IntN(n), w.r.IntN(4) == 0)
		default:
			steps[w.r.IntN(len(steps))]()
		}
		if len(w.broken) > 0 {
			return w
		}
	}
	w.Rest()
	return w
}

// A holder's database is restored at any moment, also twice: an answer from a lost history lets no target go.
func TestRestoresOfHolders_I2_I5_I8_I13(t *testing.T) {
	t.Parallel()
	count := map[string]int{}
	for seed := range uint64(5 * schedules) {
		w := playHolder(seed, HolderMistakes{})
		require.Empty(t, w.broken, "seed %d", seed)
		for what, n := range w.count {
			count[what] += n
		}
	}
	t.Log(count)
	for _, what := range []string{"committed", "deleted", "restored", "outdone"} {
		require.Greater(t, count[what], schedules)
	}
	require.Greater(t, count["impostor"], schedules/4)
	require.Greater(t, count["deleted beside a kind that waits"], schedules/10)
}

func TestTheModelOfRestoredHoldersFindsMistakes_I2_I5(t *testing.T) {
	t.Parallel()
	of := reflect.TypeFor[HolderMistakes]()
	for i := range of.NumField() {
		t.Run(of.Field(i).Name, func(t *testing.T) {
			t.Parallel()
			var m HolderMistakes
			reflect.ValueOf(&m).Elem().Field(i).SetBool(true)
			for seed := range uint64(5 * schedules) {
				if w := playHolder(seed, m); len(w.broken) > 0 {
					t.Logf("at schedule %d: %s", seed, w.broken[0])
					return
				}
			}
			t.Error("no schedule shows it")
		})
	}
}
