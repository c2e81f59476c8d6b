package atomic

import (
	"flag"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		_ = flag.Set("rapid.checks", "5000")
	}
	os.Exit(m.Run())
}

// draw returns a number below n with equal probability: rapid's own ranges prefer small ones.
func draw(t *rapid.T, n int) (i int) {
	for bits := 1; bits < 4*n; bits *= 2 {
		i *= 2
		if rapid.Bool().Draw(t, "bit") {
			i++
		}
	}
	return i % n
}

type step struct {
	weight int
	do     func()
}

// one returns one of these, or nothing.
func one[T any](w *World, all []T) (found T, ok bool) {
	if len(all) == 0 {
		return found, false
	}
	return all[w.pick(len(all))], true
}

// any is one of the resources that exist, and its deployment.
func (w *World) any() (d int, uid UID) {
	d, ok := one(w, w.there())
	if ok {
		uid, _ = one(w, sorted(w.db[d].resources))
	}
	return d, uid
}

// write begins a write. References lead to lower uids, unless the schedule has cycles.
func (w *World) write() {
	at, holder := w.any()
	if w.chance(2) || len(w.db[at].resources[holder].refs) > 1 {
		holder = 0
	}
	_, to := w.any()
	if to > 0 && w.home[to] == at && w.chance(2) { // most of them lead elsewhere
		_, to = w.any()
	}
	if to > 0 && (holder == 0 && len(w.home) < 12 || holder > to || w.cycles && holder != to) {
		w.Begin(at, holder, to, []Behaviour{Cascade, Cascade, Unset, Block}[w.pick(4)])
	}
}

// start begins a deletion, of the oldest resource of a deployment if there is a choice.
func (w *World) start() {
	at, root := w.any()
	if all := sorted(w.db[at].resources); len(all) > 0 && w.chance(2) {
		root = all[0]
	}
	if len(w.begun) >= 3 {
		return
	}
	before := len(w.begun)
	if w.Start(at, root); len(w.begun) > before {
		w.processes[w.newest()].schedules = w.chance(3)
	}
}

// hurry lets a deletion take some steps without a fault.
func (w *World) hurry(id ID) {
	for range 1 + w.pick(6) {
		w.Drive(id)
		w.deliverAll(func(m message) bool { return m.id == id && m.kind != "told" && m.kind != "confirmed" })
	}
}

func (w *World) deliverAll(which func(m message) bool) {
	for i := slices.IndexFunc(w.bag, which); i >= 0; i = slices.IndexFunc(w.bag, which) {
		w.Deliver(i, false)
	}
}

func (w *World) message(do func(i int)) {
	if len(w.bag) > 0 {
		do(w.pick(len(w.bag)))
	}
}

// frozen does something to one of the rows of a deployment.
func (w *World) frozen(do func(x int, uid UID, id ID)) {
	x, _ := one(w, w.there())
	if uid, ok := one(w, sorted(w.db[x].rows)); ok {
		id, _ := one(w, sorted(w.db[x].rows[uid]))
		do(x, uid, id)
	}
}

func (w *World) steps() []step {
	frozen := func(do func(x int, uid UID, id ID)) func() { return func() { w.frozen(do) } }
	recorded := func(do func(at int, id ID)) func() {
		return func() {
			at, _ := one(w, w.there())
			if id, ok := one(w, sorted(w.db[at].records)); ok {
				do(at, id)
			}
		}
	}
	running := func(do func(id ID)) func() {
		return func() {
			if id, ok := one(w, sorted(w.processes)); ok {
				do(id)
			}
		}
	}
	return []step{
		{10, w.write},
		{10, func() {
			if len(w.writes) > 0 {
				w.Commit(w.pick(len(w.writes)))
			}
		}},
		{3, func() { at, h := w.any(); w.Drop(at, h, w.pick(2)) }},
		{4, w.start},
		{20, running(w.Drive)},
		{5, running(w.hurry)},
		{30, func() { w.message(func(i int) { w.Deliver(i, w.chance(6)) }) }},
		{8, func() {
			for n := w.pick(6); n > 0 && len(w.bag) > 0; n-- {
				w.Deliver(0, false)
			}
		}},
		{2, func() { w.message(w.Lose) }},
		{1, func() { w.bag = nil }},
		{3, func() {
			x, h := w.any()
			for i := range w.db[x].resources[h].refs {
				w.Confirm(x, h, i)
			}
		}},
		{5, func() {
			a, _ := one(w, w.there())
			if k, ok := one(w, sorted(w.db[a].blockades)); ok {
				w.Settle(a, k)
			}
		}},
		{1, func() { w.Delete(w.any()) }},
		{4, func() {
			a, uid := w.any()
			for _, x := range w.entriesOf(a, uid) {
				w.Act(a, entry{uid, x})
			}
		}},
		{4, func() { w.Finalise(w.any()) }},
		{5, frozen(w.Ask)},
		{2, frozen(w.Follow)},
		{2, recorded(w.Tell)},
		{3, recorded(w.Forget)},
		{2, recorded(w.Undelete)},
		{3, recorded(w.Purge)},
		{1, running(w.Crash)},
		{2, func() {
			if id, ok := one(w, sorted(w.begun)); ok {
				w.Expire(id, w.pick(len(w.db)))
				w.Expire(id, w.begun[id].at)
			}
		}},
		{1, running(w.GiveUp)},
	}
}

func (w *World) faults() []step {
	return []step{
		{2, func() { w.Backup(w.pick(len(w.db))) }},
		{2, func() { w.Restore(w.pick(len(w.db))) }},
		{1, func() { w.Promote(w.pick(len(w.db))) }},
		{4, func() { w.Compare(w.pick(len(w.db))) }},
		{1, func() {
			if d := w.pick(len(w.db)); len(w.decommissioned) == 0 && w.chance(3) {
				w.Decommission(d)
			}
		}},
		{2, func() { w.Learn(w.pick(len(w.db)), w.pick(len(w.db))) }},
		{1, func() {
			if w.chance(4) {
				w.frozen(func(x int, _ UID, id ID) { w.OpenByOperator(x, id) })
			}
		}},
		{1, func() {
			a, uid := w.any()
			if from := w.entriesOf(a, uid); len(from) > 0 && w.chance(2) {
				w.Release(a, entry{uid, from[w.pick(len(from))]})
			}
		}},
	}
}

// decided begins a schedule with a decision, of which some participants have heard: what comes then is about
// lasting rows.
func (w *World) decided() {
	w.start()
	for n := 0; n < 50 && len(w.processes) > 0; n++ {
		for _, id := range sorted(w.processes) {
			w.Drive(id)
		}
		w.deliverAll(func(m message) bool { return m.kind != "told" || w.chance(3) })
	}
	for _, id := range sorted(w.begun) {
		for x := range w.db {
			if w.chance(2) {
				w.Expire(id, x)
			}
		}
	}
}

// play plays one schedule, which has weights of its own for the kinds of steps, some of which it leaves out.
func play(pick func(n int) int, m Mistakes) *World {
	w := New(2+pick(2), pick, m)
	w.cycles = w.chance(4)
	for range 4 + pick(6) { // references from before
		w.write()
		w.round()
	}
	w.Backup(w.there()...)
	if w.chance(3) {
		w.decided()
	}
	steps, total := w.steps(), 0
	if w.chance(2) {
		steps = append(steps, w.faults()...)
	}
	for i := range steps {
		steps[i].weight *= []int{0, 1, 1, 4}[pick(4)]
		total += steps[i].weight
	}
	for range 40 + pick(100) {
		if total == 0 || len(w.broken) > 0 {
			break
		}
		n := pick(total)
		for _, s := range steps {
			if n -= s.weight; n < 0 {
				s.do()
				break
			}
		}
	}
	if len(w.broken) == 0 {
		w.Rest()
	}
	return w
}

// Messages are lost, repeated and late, processes crash, databases are restored, deployments are
// decommissioned, deletions share members.
func TestAtomicDeletionsOnEverySchedule_A1_A2_A3_A4_A5(t *testing.T) {
	t.Parallel()
	began, schedules, seen := time.Now(), 0, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		schedules++
		w := play(func(n int) int { return draw(t, n) }, Mistakes{})
		if len(w.broken) > 0 {
			t.Fatalf("%s\n%v", w.broken[0], w.trace)
		}
		for what, n := range w.seen {
			seen[what] += n
		}
	})
	t.Logf("%.0f schedules a second; %v", float64(schedules)/time.Since(began).Seconds(), seen)
	for _, what := range []string{
		"answered aborted", "answered committed", "answered over", "answered scheduled", "committed",
		"committed by several", "forgotten", "kept", "marked by another", "lasting",
		"promoted", "purged", "refused", "removed", "restored", "scheduled", "shared", "under a right", "undeleted",
	} {
		require.GreaterOrEqual(t, seen[what], schedules/200, "%s is too rare: %v", what, seen)
	}
}

// aimed are schedules that chance finds too seldom. The deployments have the resources 1 and 4, 2, and 3.
var aimed = map[string]func(w *World){
	// A blocker goes with a member when the other member is looked at, and does not when its deployment is
	// reached.
	"ExcusesUnfrozen": func(w *World) {
		h := w.refer(1, 0, 1, Cascade)
		w.refer(1, h, 4, Block)
		w.refer(0, 4, 1, Cascade)
		w.Start(0, 1)
		for range 2 { // the freeze of the root, a look at 4
			w.drive(w.newest())
		}
		w.Drop(1, h, 0)
	},
	// A reference to unset is written after the look, and its confirm grants a right, under which a member is
	// written.
	"FrozenTakesUnset": func(w *World) {
		w.Start(0, 1)
		for p := w.processes[w.newest()]; len(p.open()) > 0; {
			w.drive(p.id)
		}
		w.begins(1, 2, 1, Unset)
		w.deliverAll(anything)
		w.begins(1, 0, 1, Cascade)
	},
	// A right was asked for before a Freeze ended it, arrives after that, and a member is written under it.
	"LateGrants": func(w *World) {
		w.begins(1, 2, 1, Cascade)
		w.Start(0, 1)
		for p := w.processes[w.newest()]; len(p.open()) > 0; {
			w.Drive(p.id)
			w.deliverAll(func(m message) bool { return m.kind != "grant" })
		}
		w.deliverAll(anything)
		w.begins(1, 0, 1, Cascade)
	},
	// A participant has lost a blocker of its member, and has not compared.
	"FreezesBesideRecovery": func(w *World) {
		w.refer(0, 1, 2, Cascade)
		w.Backup(0)
		w.refer(2, 3, 1, Block)
		w.Restore(0)
		w.Start(1, 2)
		for range 8 {
			w.drive(w.newest())
		}
	},
	// A freeze reaches a third deployment, which has learned that the coordinator's is decommissioned.
	"DecommissionedFreezes": func(w *World) {
		w.refer(0, 1, 3, Cascade)
		w.refer(1, 2, 1, Cascade)
		w.Start(2, 3)
		for range 8 {
			w.Drive(w.newest())
			w.deliverAll(func(m message) bool { return m.kind != "freeze" || m.to != 1 })
		}
		w.Decommission(2)
		w.Learn(1, 2)
		w.deliverAll(anything)
	},
	// A participant whose member has a holder of its own elsewhere is decommissioned before the decision.
	"ParticipantsMayLeave": func(w *World) {
		h := w.refer(1, 0, 1, Cascade)
		w.refer(0, 0, h, Cascade)
		w.Start(0, 1)
		for p := w.processes[w.newest()]; len(p.open()) > 0; {
			w.drive(p.id)
		}
		w.Decommission(1)
		w.Learn(0, 1)
	},
	"EpochsNotCompared":  losesAFreeze,
	"LaterEpochReplaces": losesAFreeze,
	// The root goes before a participant asks that holds neither it nor its holders.
	"RootRemovedIsDone": func(w *World) {
		h := w.refer(1, 0, 1, Cascade)
		g := w.refer(2, 0, h, Cascade)
		w.commits(0, 1)
		w.Act(0, entry{1, 1})
		w.Finalise(0, 1)
		w.ask(2, g)
		w.deliverAll(anything)
	},
	// The coordinator is restored to after its decision, which it forgets, and then a question arrives that
	// was asked before.
	"EpochBeforeForgotten": func(w *World) {
		h := w.refer(1, 0, 1, Cascade)
		w.Start(0, 1)
		for w.processes[w.newest()] != nil {
			w.Drive(w.newest())
			w.deliverAll(func(m message) bool { return m.kind != "told" })
		}
		w.ask(1, h)
		w.deliverAll(func(m message) bool { return m.kind != "ask" })
		w.Backup(0)
		w.Restore(0)
		w.Forget(0, w.newest())
	},
	// The coordinator is restored to after its decision, of which nobody has heard.
	"EpochBeforeRecord": func(w *World) {
		h := w.refer(1, 0, 1, Cascade)
		w.commits(0, 1)
		w.Backup(0)
		w.Restore(0)
		w.ask(1, h)
		w.deliverAll(anything)
	},
	// A question is under way until all participants have acknowledged the decision, and it is forgotten.
	"OverOpensLasting": func(w *World) {
		h := w.refer(1, 0, 1, Cascade)
		w.commits(0, 1)
		w.ask(1, h)
		w.isForgotten(func(m message) bool { return m.kind != "ask" })
	},
	// The coordinator is promoted, without a loss, when the decision is forgotten: the mark of the member still
	// comes, and a blocker that comes before would keep it.
	"RestoredOpensLasting": func(w *World) {
		h := w.refer(1, 0, 1, Cascade)
		w.commits(0, 1)
		w.isForgotten(anything)
		w.Promote(0)
		w.Compare(0)
		w.ask(1, h)
		w.deliverAll(anything)
		w.begins(2, 3, h, Block)
	},
	// A Freeze is repeated when its rows are lasting, and the decision is forgotten.
	"RepeatedIsTentative": func(w *World) {
		h := w.refer(1, 0, 1, Cascade)
		w.commits(0, 1)
		w.send(message{kind: "freeze", id: w.newest(), from: 0, to: 1, epoch: 1, uid: 1})
		w.isForgotten(func(m message) bool { return m.kind != "freeze" })
		w.ask(1, h)
		w.deliverAll(anything)
	},
	// An operator releases the entry of a member's deployment, and the target is removed.
	"GoneHolds": func(w *World) {
		w.refer(1, 2, 1, Cascade)
		w.commits(0, 1)
		w.Release(0, entry{1, 1})
	},
	// As before, but the member also blocks the target, which is not removed then.
	"ReleasedHolds": func(w *World) {
		w.refer(1, 2, 1, Cascade)
		w.refer(1, 2, 1, Block)
		w.commits(0, 1)
		w.Release(0, entry{1, 1})
	},
	// The members 3 and 4 refer to one another, and nothing leads to them any more. 3 is opened, and a Freeze
	// because of 4 comes late.
	"ExpiredFreezes": func(w *World) {
		w.refer(1, 2, 1, Cascade)
		w.refer(2, 3, 2, Cascade)
		w.refer(0, 4, 3, Cascade)
		w.refer(2, 3, 4, Cascade)
		w.commits(0, 1)
		w.Tell(0, w.newest())
		w.deliverAll(anything)
		w.Decommission(1)
		w.Learn(2, 1)
		w.Expire(w.newest(), 2)
		w.Follow(2, 3, w.newest())
		w.send(message{kind: "freeze", id: w.newest(), from: 0, to: 2, epoch: 1, uid: 4})
		w.deliverAll(anything)
		w.ask(2, 3)
		w.deliverAll(anything)
		w.Forget(0, w.newest())
	},
	// As before, but 3 is restored to before its freeze and its mark, when what it referred to is removed.
	"AnyEpochFreezes": func(w *World) {
		w.refer(1, 2, 1, Cascade)
		w.refer(2, 3, 2, Cascade)
		w.refer(0, 4, 3, Cascade)
		w.refer(2, 3, 4, Cascade)
		w.Backup(2)
		w.commits(0, 1)
		w.Act(0, entry{1, 1})
		w.Act(1, entry{2, 2})
		w.Finalise(1, 2)
		w.Restore(2)
		w.Compare(2)
		w.send(message{kind: "freeze", id: w.newest(), from: 0, to: 2, epoch: 1, uid: 4, own: 1})
		w.deliverAll(anything)
	},
	// The coordinator loses a decision, and hears itself tell it.
	"AnyEpochTells": func(w *World) {
		w.Start(0, 1)
		for p := w.processes[w.newest()]; len(p.open()) > 0; {
			w.drive(p.id)
		}
		w.Backup(0)
		w.Drive(w.newest())
		w.Restore(0)
		w.Compare(0)
		w.deliverAll(anything)
	},
}

// losesAFreeze restores a participant to before its freeze, and goes on.
func losesAFreeze(w *World) {
	h := w.refer(1, 0, 1, Cascade)
	w.Backup(1)
	w.Start(0, 1)
	for p := w.processes[w.newest()]; !p.members[h]; {
		w.drive(p.id)
	}
	w.Restore(1)
	w.Compare(1)
}

// commits decides a deletion COMMITTED, and loses the messages of the decision to the participants.
func (w *World) commits(at int, root UID) {
	w.Start(at, root)
	for id := w.newest(); w.processes[id] != nil; {
		w.Drive(id)
		w.deliverAll(func(m message) bool { return m.kind != "told" })
	}
	w.bag = nil
}

// ask lets a row expire, and asks about it.
func (w *World) ask(x int, uid UID) {
	w.Expire(w.newest(), x)
	w.Ask(x, uid, w.newest())
}

// isForgotten lets all participants acknowledge the decision, which is forgotten then. Then the other
// messages arrive.
func (w *World) isForgotten(which func(m message) bool) {
	w.Tell(0, w.newest())
	w.deliverAll(which)
	w.Forget(0, w.newest())
	w.deliverAll(anything)
}

// begins begins a write, commits it if it may, and resolves attempts.
func (w *World) begins(at int, holder, to UID, b Behaviour) {
	w.Begin(at, holder, to, b)
	for len(w.writes) > 0 {
		w.Commit(0)
	}
	for _, k := range sorted(w.db[w.home[to]].blockades) {
		w.Settle(w.home[to], k)
	}
}

// refer writes a reference, and returns its holder. 0: a new one.
func (w *World) refer(at int, holder, to UID, b Behaviour) UID {
	w.Begin(at, holder, to, b)
	holder = w.writes[0].holder
	w.Commit(0)
	for range 2 {
		for d := range w.db {
			w.work(d)
		}
	}
	return holder
}

func (w *World) drive(id ID) {
	w.Drive(id)
	w.deliverAll(anything)
}

func anything(message) bool { return true }

func (w *World) newest() ID {
	all := sorted(w.begun)
	return all[len(all)-1]
}

func playAimed(script func(w *World), m Mistakes) *World {
	w := New(3, func(n int) int { return n - 1 }, m)
	script(w)
	w.Rest()
	return w
}

// A blocker that goes with another member does not refuse the deletion.
func TestAFrozenBlockerIsExcused_A1(t *testing.T) {
	t.Parallel()
	w := playAimed(func(w *World) {
		h := w.refer(1, 0, 1, Cascade)
		w.refer(1, h, 4, Block)
		w.refer(0, 4, 1, Cascade)
		w.Start(0, 1)
	}, Mistakes{})
	require.Empty(t, w.broken)
	require.Equal(t, "committed", w.outcome[w.newest()])
	require.True(t, w.gone(w.newest()))
}

// Each mistake is found on some schedule, or the test above shows nothing.
func TestTheModelOfAtomicDeletionsFindsMistakes(t *testing.T) {
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
			for seed := range uint64(30_000) {
				if w := play(rand.New(rand.NewPCG(seed, 1)).IntN, m); len(w.broken) > 0 {
					t.Logf("at schedule %d: %s", seed, w.broken[0])
					return
				}
			}
			t.Error("no schedule shows it")
		})
	}
}
