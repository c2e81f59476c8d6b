package model

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// busy plays applications that never stop: they write and delete between any two steps of the controllers,
// and always hold the lock of some row, by preference of a holder that a deletion is to act upon, though
// never of the same row in two rounds. First messages and blockades are lost; then the controllers are only
// as fast as weak fairness makes them: each of their steps is taken once a round. It returns the work that
// they have not ended after 12 rounds, and the violations.
func busy(seed int, m Mistakes) []string {
	const sites, expiry, rounds, clients = 2, 4, 12, 4
	r := rand.New(rand.NewPCG(uint64(seed), uint64(seed)))
	w := New(sites, m)
	// blockades; a delete before they are established again may be accepted wrongly, so there is none
	loses := seed%2 == 0
	names := []string{"u", "v", "w", "x", "y", "z"}
	write := func() {
		at, name := r.IntN(sites), r.IntN(len(names))
		refs, targets := map[string]Reference{}, map[string]string{}
		if at > 0 { // most resources of one deployment refer to the other's, and so do their successors
			refs["a"], targets["a"] = Reference{Behaviour: []Behaviour{Cascade, Cascade, Unset}[name%3]}, names[name/3]
		}
		if r.IntN(3) == 0 {
			refs["b"], targets["b"] = Reference{Behaviour: Behaviour(r.IntN(3)), Home: r.IntN(sites)},
				names[r.IntN(len(names))]
		}
		w.Write(at, names[name], refs, targets)
	}
	applications := func() {
		switch n := r.IntN(12); {
		case loses && r.IntN(3) == 0:
			w.touch(r.IntN(sites), names[r.IntN(len(names))])
		case n == 0 && !loses:
			w.Delete(0, names[r.IntN(2)])
		case n < 7 && w.Writes() < clients:
			write()
		case w.Writes() > 0:
			if i := r.IntN(w.Writes()); w.writes[i].lost == nil && (len(w.writes[i].waiting) == 0 || r.IntN(8) == 0) {
				w.Commit(i)
			}
		}
	}
	for range 60 {
		applications()
		switch n := r.IntN(10); {
		case n < 5 && w.Bag() > 0:
			w.Deliver(r.IntN(w.Bag()), r.IntN(6) == 0)
		case n == 5 && w.Bag() > 0:
			w.Lose(r.IntN(w.Bag()))
		case n == 6 && loses:
			w.Mislay(r.IntN(sites), r.IntN(4))
		case n == 7:
			w.Act(r.IntN(sites), r.IntN(sites))
		case n == 8:
			w.Send(r.IntN(sites))
		}
	}
	for range 3 {
		before := w.outstanding()
		for round := range rounds {
			w.lock(r)
			w.Round(r.IntN, applications)
			if round%expiry == 0 {
				for at := range sites {
					w.Expire(at)
				}
			}
			if broken := w.Check(); len(broken) > 0 {
				return broken
			}
		}
		after := w.outstanding()
		maps.DeleteFunc(before, func(work string, _ bool) bool { return !after[work] })
		if len(before) > 0 {
			return append([]string{"I28: applications that write keep for ever:"}, slices.Sorted(maps.Keys(before))...)
		}
	}
	if !w.Rest() {
		return []string{"I28: it does not settle"}
	}
	return w.CheckAtRest()
}

// touch writes a resource without a change of its first reference: the second one comes and goes, to a target
// in the same database.
func (w *World) touch(at int, name string) {
	h := w.deployments[at].named(name)
	if h == nil {
		return
	}
	refs, targets := map[string]Reference{}, map[string]string{}
	if a, ok := h.Refs["a"]; ok && w.deployments[a.Home].resources[a.Target] != nil {
		refs["a"], targets["a"] = Reference{Behaviour: a.Behaviour, Home: a.Home},
			w.deployments[a.Home].resources[a.Target].Name
	}
	if _, ok := h.Refs["b"]; !ok {
		for _, t := range w.deployments[at].resources {
			if t.Name != name && !t.Deleting {
				refs["b"], targets["b"] = Reference{Behaviour: Unset, Home: at}, max(targets["b"], t.Name)
			}
		}
	}
	before := w.Writes()
	if w.Write(at, name, refs, targets); w.Writes() > before {
		w.Commit(before)
	}
}

// lock lets the applications' transactions end and begin: in each deployment they lock a row that they had
// not locked.
func (w *World) lock(r *rand.Rand) {
	had := w.locked
	w.locked = map[UID]bool{}
	for at, d := range w.deployments {
		var rows []UID
		for from, home := range w.deployments {
			for _, target := range slices.Sorted(maps.Keys(home.resources)) {
				if home.resources[target].Deleting {
					rows = append(rows, slices.Sorted(maps.Keys(d.actions(from, target)))...)
				}
			}
		}
		if len(rows) == 0 && r.IntN(2) == 0 {
			rows = slices.Sorted(maps.Keys(d.resources))
		}
		rows = slices.DeleteFunc(rows, func(uid UID) bool { return had[uid] || w.isLocked(at, uid) })
		if len(rows) > 0 {
			w.locked[rows[r.IntN(len(rows))]] = true
		}
	}
}

// Applications write for ever, and hold locks for longer than the controllers wait: all work that there is at
// any moment ends nevertheless, and a row that is locked delays no other.
func TestWorkEndsBesideApplicationsThatNeverStop_I20_I28(t *testing.T) {
	t.Parallel()
	for seed := range 400 {
		if broken := busy(seed, Mistakes{}); len(broken) > 0 {
			t.Fatalf("seed %d:\n%s", seed, strings.Join(broken, "\n"))
		}
	}
}

// ofProgress are the mistakes that show only beside applications that never stop.
var ofProgress = []string{"LockedAreAcknowledged", "OneLockStopsAll", "RepairsWholeHolders"}

func TestTheModelFindsMistakesAboutProgress(t *testing.T) {
	t.Parallel()
	for _, name := range ofProgress {
		finds(t, name, busy)
	}
}

// isOfProgress reports whether a mistake shows only beside applications that never stop.
func isOfProgress(mistake string) bool { return slices.Contains(ofProgress, mistake) }
