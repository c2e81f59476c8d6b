// Package delegation is a model of delegations: rights of a holder's deployment to refer to targets of
// another one without asking. Deployment A has the targets, deployment X the holders. The processes of X run
// as coroutines that pause between any two statements of a transaction, with their locks, so that a schedule
// also has commits that come late. Messages are lost, repeated and late; both databases fail over to an
// earlier copy; X switches its version; X removes rows that it does not need.
//
// The exact protocol (establish, confirm, resolve, release) is there as far as delegations meet it; package
// model has all of it.
package delegation

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

type (
	// UID of a target.
	UID int
	// Turn of a row of X about a target.
	Turn int
	// Epoch of a database. The greater one is the later one.
	Epoch int
	// Behaviour of a reference.
	Behaviour int
)

// The behaviours, and the rights that cover them.
const (
	Acting Behaviour = iota
	Block
)

// proxy is the holder that stands for all references of X under the right to block a target. Its blockade is
// the record of the right at A: the exact protocol establishes, confirms, resolves and releases it.
const proxy = -1

func (b Behaviour) String() string { return [...]string{"acting", "block"}[b] }

// Mistakes that can be planted, to see that the checks find them.
type Mistakes struct {
	GrantAfterClose, GrantWithoutTurn, MarkWithoutRecall, GrantOfLostEpoch, ReturnBeforeLook, ReleaseBeforeEnd,
	FreeWithoutEnd, HeldAsFree,
	CloseWithoutWaiting, UnknownAsConfirmed, RowMadeByAnswer, OneRightIncludes, ActsBeforeClose, AcknowledgesUnclosed,
	SwitchKeepsDelegated,
	EarlierProxyKept, ProxyUnknownIsGone, EndsWithoutLook, FinalisesBesideProxy, CascadeTellsEntriesOnly,
	ChecksBeforeLocks,
	NeighboursRightCounts, EntryReleasedWithoutClose, EntryAskedBeforeMark, ClosesWithoutTurn, EntryEndsActingOnly,
	UnansweredIsForgotten,
	EntryLeavesBesideConfirm, LeavingEntryGrants, UnusedLooksFirst, UnusedKeepsRight, EntryLeavesInAnotherEpoch,
	UnusedIsGone,
	ReleasedRightGoesOn, ClosedIsNotChecked bool
}

// World is both databases, the messages between them, and the tasks of their processes.
type World struct {
	Mistakes
	a        *targets
	x        *holders
	backupA  *targets
	backupX  *holders
	r        *rand.Rand
	bag      []message
	calls    map[int]*message // answers by call
	tasks    []*task
	locks    map[string]*lock // of X's database
	next     int
	calm     bool // everything is mended: nothing is lost, and no user or operator gives up
	failures int  // failovers until now
	traced   bool
	trace    []string
	broken   []string
	seen     map[string]int    // interesting moments, for coverage
	forsaken map[int]reference // by holder: an operator of A has released the entry that it stood under
	insisted map[UID]bool      // an operator of A has released its entry without an answer
	released map[int]bool      // attempts of proxies that an operator of A has released
}

// New makes a world with two targets and three holders without references.
func New(seed uint64, m Mistakes) *World {
	w := &World{
		Mistakes: m, r: rand.New(rand.NewPCG(seed, seed)), calls: map[int]*message{}, locks: map[string]*lock{},
		seen: map[string]int{}, forsaken: map[int]reference{}, insisted: map[UID]bool{}, released: map[int]bool{},
	}
	w.a = &targets{
		epoch: 1, peer: 1, state: map[UID]state{}, closing: map[UID]int{}, blockades: map[key]blockade{},
		closed:  map[int]bool{},
		entries: map[UID]bool{}, looks: map[UID]int{}, notices: map[UID]int{}, endings: map[UID]bool{},
	}
	w.x = &holders{
		epoch: 1, peer: 1, references: map[int]reference{}, targets: map[UID]target{}, ending: map[UID]bool{},
		decided: map[int]bool{},
		work:    map[work]bool{},
	}
	w.next = 1
	for range 2 {
		w.a.state[UID(w.number())] = active
	}
	return w
}

// number is a number that was never given out: the sequences of a database skip far ahead when an epoch
// begins.
func (w *World) number() int { w.next++; return w.next }

func (w *World) chance(of int) bool { return w.r.IntN(of) == 0 }

func (w *World) note(format string, args ...any) {
	if w.traced {
		w.trace = append(w.trace, fmt.Sprintf(format, args...))
	}
}

func (w *World) report(format string, args ...any) {
	if len(w.broken) == 0 {
		w.note("!! "+format, args...)
		w.broken = append(w.broken, fmt.Sprintf(format, args...)+"\n  "+strings.Join(w.trace, "\n  "))
	}
}

// task is a thread of a process. It holds locks while it is in a transaction.
type task struct {
	w      *World
	name   string
	resume func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool
	inTx   bool
	slow   bool // its process pauses for long
}

type killed struct{}

func (w *World) start(name string, run func(t *task)) {
	t := &task{w: w, name: name, slow: w.chance(3)}
	t.resume, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer func() {
			t.unlock()
			if r := recover(); r != nil && r != (killed{}) {
				panic(r)
			}
		}()
		run(t)
	})
	w.tasks = append(w.tasks, t)
}

// step runs a task up to its next pause.
func (w *World) step(i int) {
	t := w.tasks[i]
	if _, goesOn := t.resume(); !goesOn {
		w.tasks = slices.DeleteFunc(w.tasks, func(o *task) bool { return o == t })
	}
}

func (w *World) kill(t *task) {
	t.stop()
	w.tasks = slices.DeleteFunc(w.tasks, func(o *task) bool { return o == t })
}

func (t *task) pause() {
	if !t.yield(struct{}{}) {
		panic(killed{})
	}
}

type lock struct {
	exclusive *task
	shared    map[*task]bool
}

func (w *World) lockOf(name string) *lock {
	if w.locks[name] == nil {
		w.locks[name] = &lock{shared: map[*task]bool{}}
	}
	return w.locks[name]
}

// share takes a lock beside others that share it. It passes tasks that wait for an exclusive lock, as
// PostgreSQL does.
func (t *task) share(name string) {
	l := t.w.lockOf(name)
	for t.inTx = true; l.exclusive != nil && l.exclusive != t; {
		t.pause()
	}
	l.shared[t] = true
	t.pause()
}

// exclude takes a lock alone, and reports whether it had it within the lock timeout.
func (t *task) exclude(name string) bool {
	l := t.w.lockOf(name)
	for t.inTx = true; l.exclusive != nil && l.exclusive != t || len(l.shared) > 1 || len(l.shared) == 1 &&
		!l.shared[t]; {
		if !t.w.calm && t.w.chance(6) {
			t.unlock()
			return false
		}
		t.pause()
	}
	l.exclusive = t
	t.pause()
	return true
}

// unlock ends the transaction without effect.
func (t *task) unlock() {
	t.inTx = false
	for _, l := range t.w.locks {
		delete(l.shared, t)
		if l.exclusive == t {
			l.exclusive = nil
		}
	}
}

// commit pauses once more, with all locks, and then makes its effects visible at once.
func (t *task) commit(effects func()) {
	t.inTx = true
	t.pause()
	effects()
	t.unlock()
}

// message is under way between the deployments.
type message struct {
	kind          string
	call          int // answered under this number; 0: not
	theirs, own   Epoch
	uid           UID
	holder        int
	attempt, made int
	behaviour     Behaviour

	uids    map[UID]bool
	verdict string
	sweeps  bool // the question is about an expired blockade, and not of a delete
}

// closesForA is the name of the tasks that answer a question of A later.
const closesForA = "close for A"

// send puts a message under way.
func (w *World) send(m message) { w.bag = append(w.bag, m) }

// ask sends a question and waits for its answer. nil: it gave up.
func (t *task) ask(m message) *message {
	w := t.w
	m.call = w.number()
	w.send(m)
	for t.pause(); ; t.pause() {
		if answer := w.calls[m.call]; answer != nil {
			return answer
		}
		if !w.calm && w.chance(10) {
			return nil
		}
		works := slices.ContainsFunc(w.tasks, func(o *task) bool { return o.name == closesForA })
		if w.calm && !works && !slices.ContainsFunc(w.bag, func(o message) bool { return o.call == m.call }) {
			return nil
		}
	}
}

func (w *World) answer(m message, answer message) {
	if w.calls[m.call] == nil {
		w.calls[m.call] = &answer
	}
}

// deliver lets a message arrive. again keeps it under way.
func (w *World) deliver(i int, again bool) {
	m := w.bag[i]
	if !again {
		w.bag = slices.Delete(w.bag, i, i+1)
	}
	if !strings.HasPrefix(m.kind, "announce") {
		w.note("deliver %s", m)
	}
	w.receiveA(m)
	w.receiveX(m)
}

func (m message) String() string {
	return fmt.Sprintf("%s call %d uid %d holder %d attempt %d epochs %d %d %s %v", m.kind, m.call, m.uid, m.holder,
		m.attempt, m.theirs, m.own, m.verdict, m.uids)
}

// failover replaces a database by an earlier copy of it, or by itself, under a new epoch.
func (w *World) failover(atX bool) {
	w.failures++
	e := Epoch(w.number())
	if !atX {
		if w.backupA != nil && w.chance(2) {
			w.a = w.backupA.copy()
		}
		w.a.epoch, w.a.unconfirmed = e, true
		w.a.doubt()
		w.note("A fails over: %d", e)
		return
	}
	for _, t := range slices.Clone(w.tasks) {
		if t.inTx {
			w.kill(t)
		}
	}
	if w.backupX != nil && w.chance(2) {
		w.x = w.backupX.copy()
	}
	w.x.epoch = e
	maps.DeleteFunc(w.x.work, func(k work, _ bool) bool { return k.kind == compare })
	w.x.work[work{kind: compare, epoch: e}] = true
	w.note("X fails over: %d", e)
}
