package model

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// playLosses draws a schedule of writes, in which databases lose tentative blockades.
func playLosses(t *rapid.T, m Mistakes) []string {
	const sites = 2
	w := New(sites, m)
	names := []string{"x", "y"}
	site := func(label string) int { return draw(t, sites, label) }
	name := func(label string) string { return names[draw(t, len(names), label)] }
	for at := range sites {
		for _, n := range names {
			w.Write(at, n, nil, nil)
		}
	}
	w.Rest()
	steps := []func(){
		func() {
			at := site("at")
			refs, targets := map[string]Reference{}, map[string]string{}
			for i, path := range []string{"a", "b", "c"} { // many are repeated, and few dropped
				if draw(t, 3, path) > 0 {
					refs[path] = Reference{Behaviour: []Behaviour{Block, Cascade, Unset}[i], Home: 1 - at}
					targets[path] = names[i%2]
				}
			}
			w.Write(at, name("name"), refs, targets)
		},
		func() {
			for w.Writes() > 0 {
				w.Commit(0)
			}
		},
		func() { w.Mislay(site("at"), draw(t, 4, "which")) },
		func() {
			if w.Bag() > 0 {
				w.Deliver(draw(t, w.Bag(), "which"), draw(t, 4, "again") == 0)
			}
		},
		func() {
			for range min(w.Bag(), 4) {
				w.Deliver(0, false)
			}
		},
		func() {
			if w.Bag() > 0 {
				w.Lose(draw(t, w.Bag(), "which"))
			}
		},
		func() { w.Send(site("at")) },
		func() { w.Expire(site("at")) },
		func() { w.Crash(site("at")) },
	}
	likely := []int{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 6, 7, 8}
	for range 10 + draw(t, 40, "steps") {
		steps[likely[draw(t, len(likely), "step")]]()
		if broken := w.Check(); len(broken) > 0 {
			return broken
		}
	}
	if !w.Rest() {
		return []string{"I28: it does not settle"}
	}
	return w.CheckAtRest()
}

// A confirm has the number of references that its attempt established; where fewer blockades are left, all of
// them or some, the references are compared and the lost ones are established again: at rest each reference
// has its blockade or entry.
func TestAConfirmNoticesWhatIsLost_I8(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		if broken := playLosses(t, Mistakes{}); len(broken) > 0 {
			t.Fatalf("%s", strings.Join(broken, "\n"))
		}
	})
}

// ofLosses are the mistakes that show only where blockades are lost.
var ofLosses = []string{
	"PartialLossIsNotCounted", "DroppedAreNotCounted", "UnknownIsThrownAway",
	"LostReferencesAreLeft",
}

func TestTheModelFindsMistakesAboutLosses(t *testing.T) {
	t.Parallel()
	for _, name := range ofLosses {
		finds(t, name, drawn(playLosses))
	}
}

// isOfLosses reports whether a mistake shows only where blockades are lost.
func isOfLosses(mistake string) bool { return slices.Contains(ofLosses, mistake) }
