package model

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// playFinalizers draws a schedule of a small world in which some resources have a finalizer: they are
// written, deleted and cleaned up after again and again, and reports of clean-ups are lost, repeated and
// late.
func playFinalizers(t *rapid.T, m Mistakes) []string {
	const sites = 2
	w := New(sites, m)
	w.Finalizers = true
	// most at one site, where the same names meet again
	site := func(label string) int { return min(draw(t, 3, label), 1) }
	name := func(label string) string { return []string{"x", "y", "y"}[draw(t, 3, label)] }
	steps := []func(){
		func() {
			refs, targets := map[string]Reference{}, map[string]string{}
			if draw(t, 3, "refers") == 0 {
				refs["a"] = Reference{
					Behaviour: []Behaviour{Cascade, Cascade, Block, Unset}[draw(t, 4, "behaviour")],
					Home:      site("home"),
				}
				targets["a"] = name("target")
			}
			w.Write(site("at"), name("name"), refs, targets)
		},
		func() {
			for w.Writes() > 0 {
				w.Commit(0)
			}
		},
		func() { w.Delete(site("at"), name("name")) },
		func() { w.Clean(site("at")) },
		func() {
			if w.Bag() > 0 {
				w.Deliver(draw(t, w.Bag(), "which"), draw(t, 2, "again") == 0)
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
		func() {
			for at := range sites {
				w.Send(at)
				w.Act(at, 1-at)
			}
		},
		func() { w.Expire(site("at")) },
		func() { w.Crash(site("at")) },
	}
	likely := []int{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4, 4, 4, 5, 6, 7, 8, 9}
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

// A resource with a finalizer is removed after its holder has cleaned up after that incarnation, and not
// before; otherwise the protocol is the same: it takes no references, its holders cascade, it blocks nothing,
// and at rest it is gone.
func TestFinalizersOnEverySchedule_I33(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		if broken := playFinalizers(t, Mistakes{}); len(broken) > 0 {
			t.Fatalf("%s", strings.Join(broken, "\n"))
		}
	})
}

// isOfFinalizers reports whether a mistake shows only where there are finalizers.
func isOfFinalizers(mistake string) bool {
	return mistake == "FinalisesUncleaned" || mistake == "CleanedByName" || mistake == "DeletingKeepsReferences"
}

func TestTheModelFindsMistakesInFinalizers(t *testing.T) {
	t.Parallel()
	for field := range reflect.TypeFor[Mistakes]().Fields() {
		if isOfFinalizers(field.Name) {
			finds(t, field.Name, drawn(playFinalizers))
		}
	}
}
