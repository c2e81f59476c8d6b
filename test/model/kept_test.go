package model

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// playKept draws a schedule of a small world in which resources called x keep resources called y until they
// are removed, and all have finalizers.
func playKept(t *rapid.T, m Mistakes) []string {
	const sites = 2
	w := New(sites, m)
	w.Keeps = true
	site := func(label string) int { return draw(t, sites, label) }
	name := func(label string) string { return []string{"x", "y"}[draw(t, 2, label)] }
	write := func() {
		refs, targets := map[string]Reference{}, map[string]string{}
		at, n := site("at"), name("name")
		if n == "x" && draw(t, 4, "keeps") > 0 {
			refs["a"] = Reference{
				Behaviour: []Behaviour{Keep, Keep, Keep, Block}[draw(t, 4, "behaviour")],
				Home:      site("home"),
			}
			targets["a"] = "y"
		}
		if n == "x" && draw(t, 4, "cascades") == 0 {
			refs["b"] = Reference{Behaviour: Cascade, Home: site("home of b")}
			targets["b"] = "y"
		}
		w.Write(at, n, refs, targets)
	}
	steps := []func(){
		write,
		func() {
			for w.Writes() > 0 {
				w.Commit(0)
			}
		},
		func() { w.Delete(site("at"), name("name")) },
		func() { w.Clean(site("at")) },
		func() { w.Ask(site("at")) },
		func() {
			if w.Bag() > 0 {
				w.Deliver(draw(t, w.Bag(), "which"), draw(t, 3, "again") == 0)
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
	likely := []int{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 7, 8, 8, 9, 10}
	for range 10 + draw(t, 60, "steps") {
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

// A holder keeps its target until it is removed: the target is there, and its clean-up begins afterwards. A
// holder in DELETING refuses no delete. At rest all resources in DELETING are gone.
func TestKeptTargetsOnEverySchedule_I2_I3_I13_I33(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		if broken := playKept(t, Mistakes{}); len(broken) > 0 {
			t.Fatalf("%s", strings.Join(broken, "\n"))
		}
	})
}

// isOfKept reports whether a mistake shows only where holders keep targets.
func isOfKept(mistake string) bool {
	switch mistake {
	case "MarkReleasesKept", "LeavingIsGone", "CleanUpDoesNotWait", "RemovalForgetsKept", "ActiveIsLeaving":
		return true
	}
	return false
}

func TestTheModelFindsMistakesAboutKeptTargets(t *testing.T) {
	t.Parallel()
	for field := range reflect.TypeFor[Mistakes]().Fields() {
		if isOfKept(field.Name) {
			finds(t, field.Name, drawn(playKept))
		}
	}
}
