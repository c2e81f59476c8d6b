package model

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Thousands of schedules take a second; rapid's default is a hundred.
func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "5000")
	os.Exit(m.Run())
}

// draw returns a number below n with equal probability: rapid's own ranges prefer small ones.
func draw(t *rapid.T, n int, label string) (i int) {
	for bits := 1; bits < 4*n; bits *= 2 {
		i *= 2
		if rapid.Bool().Draw(t, label) {
			i++
		}
	}
	return i % n
}

// play draws a schedule and returns the violations.
func play(t *rapid.T, m Mistakes) []string {
	// small worlds, in which the same resources meet again
	sites, names := 2+draw(t, 2, "sites"), []string{"x", "y"}[:1+draw(t, 2, "names")]
	w := New(sites, m)
	site := func(label string) int { return draw(t, sites, label) }
	name := func(label string) string { return names[draw(t, len(names), label)] }
	write := func(at int, n string) {
		refs, targets := map[string]Reference{}, map[string]string{}
		for _, path := range []string{"a", "b"} {
			if rapid.Bool().Draw(t, path) {
				b := []Behaviour{Cascade, Cascade, Block, Unset}[draw(t, 4, "behaviour")]
				refs[path] = Reference{Behaviour: b, Home: site("home")}
				targets[path] = name("target")
			}
		}
		w.Write(at, n, refs, targets)
	}
	for range 2 { // resources and references from before any fault
		for at := range sites {
			for _, n := range names {
				write(at, n)
			}
		}
		if !w.Rest() {
			return []string{"I28: it does not settle"}
		}
	}
	steps := map[string]func(){
		"write": func() { write(site("at"), name("name")) },
		"commit": func() {
			if w.Writes() > 0 {
				w.Commit(draw(t, w.Writes(), "which"))
			}
		},
		"delete": func() { w.Delete(site("at"), name("name")) },
		"deliver": func() {
			if w.Bag() == 0 {
				return
			}
			if i := draw(t, w.Bag(), "which"); w.Establishes(i) && draw(t, 4, "together") == 0 {
				w.Gather(i, 2+draw(t, 3, "most"), draw(t, 4, "left out")-1)
			} else {
				w.Deliver(i, draw(t, 6, "again") == 0)
			}
		},
		"deliver the oldest": func() {
			for range min(w.Bag(), 1+draw(t, 4, "many")) {
				w.Deliver(0, false)
			}
		},
		"lose": func() {
			if w.Bag() > 0 {
				w.Lose(draw(t, w.Bag(), "which"))
			}
		},
		"expire": func() { w.Expire(site("at")) },
		"send":   func() { w.Send(site("at")) },
		"act":    func() { w.Act(site("at"), site("from")) },
		"crash":  func() { w.Crash(site("at")) },
	}
	likely := []string{
		"write", "write", "commit", "commit", "delete", "deliver", "deliver", "deliver", "deliver the oldest",
		"deliver the oldest",
		"deliver the oldest", "expire", "send", "act", "act",
	}
	for range 10 + draw(t, 60, "steps") {
		step := likely[draw(t, len(likely), "step")]
		if step == "expire" { // steps as rare as this one
			step = []string{"expire", "expire", "lose", "crash"}[draw(t, 4, "rare")]
		}
		steps[step]()
		if broken := w.Check(); len(broken) > 0 {
			return broken
		}
	}
	if !w.Rest() {
		return []string{"I28: it does not settle"}
	}
	return w.CheckAtRest()
}

// Messages are lost, repeated, reordered and delayed, and deployments crash: the invariants of each moment
// hold, and at rest exactly the closure of the deletions has left.
func TestTheProtocolOnEverySchedule_I1_I2_I4_I5_I7_I8_I11_I13_I28(t *testing.T) {
	t.Parallel()
	began, schedules := time.Now(), 0
	rapid.Check(t, func(t *rapid.T) {
		schedules++
		if broken := play(t, Mistakes{}); len(broken) > 0 {
			t.Fatalf("%s", strings.Join(broken, "\n"))
		}
	})
	t.Logf("%.0f schedules a second", float64(schedules)/time.Since(began).Seconds())
}

// Each planted mistake breaks an invariant on some schedule; otherwise the test above would prove nothing.
func TestTheModelFindsMistakes(t *testing.T) {
	t.Parallel()
	of := reflect.TypeFor[Mistakes]()
	for i := range of.NumField() {
		if isOfFinalizers(of.Field(i).Name) || isOfLosses(of.Field(i).Name) || isOfKept(of.Field(i).Name) ||
			isOfProgress(of.Field(i).Name) {
			continue
		}
		t.Run(of.Field(i).Name, func(t *testing.T) {
			t.Parallel()
			finds(t, of.Field(i).Name, drawn(play))
		})
	}
}

// finds plays a mistake until a schedule shows it, at most 20,000.
func finds(t *testing.T, mistake string, play func(seed int, m Mistakes) []string) {
	t.Helper()
	var m Mistakes
	reflect.ValueOf(&m).Elem().FieldByName(mistake).SetBool(true)
	for seed := range 20_000 {
		if broken := play(seed, m); len(broken) > 0 {
			t.Logf("%s at schedule %d: %.150s", mistake, seed, fmt.Sprint(broken))
			return
		}
	}
	t.Errorf("no schedule shows %s", mistake)
}

// drawn plays a schedule that rapid draws.
func drawn(play func(t *rapid.T, m Mistakes) []string) func(seed int, m Mistakes) []string {
	return func(seed int, m Mistakes) []string {
		return rapid.Custom(func(t *rapid.T) []string { return play(t, m) }).Example(seed)
	}
}
