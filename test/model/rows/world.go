// Package rows models attached tables that keep no copy of their rows: a row refers because it is there, and
// a right stands for the target. Statements share rights or leave requests; a granter asks for rights;
// everything that ends a right interleaves with them: a recall, a return, a deletion that is closed and acted
// upon. Calls are lost, repeated and late, processes die between two steps, and either database is replaced
// by an earlier copy of itself.
//
// Rules that schedules have taught, besides the expected ones: the close of a deletion ends the questions
// that are open, because an answer may name the deleted target; an answer that a target is missing counts for
// nothing beside a right that a later question has brought; a missing value holds in the epoch of T that said
// so, and is asked again in the next one; "acted upon" lasts until the same target, which a restore has
// brought back, gives a right again, and is stored also where no right stands for the target. T asks about
// rights that it has given, so that a right which H has lost does not stay.
//
// H is the database of the rows, T the database of the target. There is one name, whose target comes and
// goes. A row with an even number blocks; one with an odd number goes with its target.
package rows

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// Mistakes are planted one at a time.
type Mistakes struct {
	SharesWithoutLock, LooksBeforeTheLock, ReturnsBesideAShare, RepeatableReadsTakeAnyRight                        bool
	ClosesWithoutWaiting, ClosesLeaveQuestions, ActsWithoutALook, ClosesLeaveNoTrace, ActedAfterTheAcknowledgement bool
	MissingTakesLaterRequests, MissingActsBesideARequest, MissingOutlivesAnEpoch, LateMissingCounts                bool
	GrantsAnEndedTurn, RightsSurviveEpochs, ConfirmsBeforeClaims, GivesUpSilentRights, ActedOutlivesAGrant         bool
}

type uid int

// The states of a right.
const (
	asked = iota
	granted
	closed // its target is being deleted
	acted  // and the rows have gone
	ended
)

// right is a row of H. A change of it moves its version.
type right struct {
	turn, version  int
	block          bool
	uid            uid
	state          int
	hEpoch, tEpoch int
	kept           bool // it was asked for a short time ago
	sharers        map[*task]bool
	alone          *task
}

func (r *right) set(state int) { r.state = state; r.version++ }

type request struct {
	seq   int
	block bool
}

// holders is the stored state of H.
type holders struct {
	rows      map[int]uid // by number; the uid of the right under which it was written, 0 while that is a request
	meant     map[int]uid // no database has it: the target that was there when the row was committed; 0: none
	rights    []*right
	requests  []request
	missing   map[bool]int // by kind of right: the target does not exist, as T said in this epoch; 0: it was not said
	ending    bool
	releases  map[int]bool // turns that T has to hear of
	epoch     int
	tKnown    int  // the epoch of T
	uncertain bool // an epoch has begun, and not all rights are claimed
}

type grant struct {
	uid   uid
	block bool
}

// targets is the stored state of T.
type targets struct {
	active   uid
	deleting bool
	grants   map[int]grant // by turn; those to act are the entry
	released map[int]bool  // turns that establish nothing any more
	notice   bool
	epoch    int
	hKnown   int
	confirms bool // H has compared in both epochs
}

// World is both databases and everything that is under way.
type World struct {
	Mistakes
	r      *rand.Rand
	h      *holders
	t      *targets
	oldH   *holders
	oldT   *targets
	n      int
	tasks  []*task
	late   []func() // calls that arrive once more
	calm   bool     // no call is lost or repeated
	seen   map[string]int
	broken []string
	trace  []string
}

func newWorld(seed uint64, m Mistakes) *World {
	w := &World{
		Mistakes: m, r: rand.New(rand.NewPCG(seed, 17)), seen: map[string]int{},
		h: &holders{
			rows: map[int]uid{}, meant: map[int]uid{}, missing: map[bool]int{}, releases: map[int]bool{},
			epoch: 1, tKnown: 1,
		},
		t: &targets{grants: map[int]grant{}, released: map[int]bool{}, epoch: 1, hKnown: 1, confirms: true},
	}
	w.n = 1
	w.create()
	w.oldH, w.oldT = w.h.copied(), w.t.copied()
	return w
}

func (w *World) number() int { w.n++; return w.n }

func (w *World) chance(of int) bool { return w.r.IntN(of) == 0 }

func (w *World) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *World) report(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// copied returns a backup of the database, which has no locks.
func (h *holders) copied() *holders {
	c := *h
	c.rows, c.meant, c.missing, c.releases, c.requests = maps.Clone(h.rows), maps.Clone(h.meant), maps.Clone(h.missing),
		maps.Clone(h.releases), slices.Clone(h.requests)
	c.rights = nil
	for _, r := range h.rights {
		one := *r
		one.sharers, one.alone = map[*task]bool{}, nil
		c.rights = append(c.rights, &one)
	}
	return &c
}

func (t *targets) copied() *targets {
	c := *t
	c.grants, c.released = maps.Clone(t.grants), maps.Clone(t.released)
	return &c
}

// counts reports whether statements may write under a right.
func (w *World) counts(r *right) bool {
	return r.state == granted && (w.RightsSurviveEpochs || r.hEpoch == w.h.epoch && r.tEpoch == w.h.tKnown)
}

// lost reports whether recovery has still to treat a right.
func (w *World) lost(r *right) bool {
	return r.state == closed || r.state == granted && (r.hEpoch != w.h.epoch || r.tEpoch != w.h.tKnown)
}

// counting is the right of a kind that counts; nil when there is none.
func (w *World) counting(block bool) *right {
	for _, r := range w.h.rights {
		if r.block == block && w.counts(r) {
			return r
		}
	}
	return nil
}

// refer reports whether rows of a kind are there, as the index of the table says.
func (w *World) refer(block bool) bool {
	for h := range w.h.rows {
		if (h%2 == 0) == block {
			return true
		}
	}
	return false
}

// covered checks I34: each row has a right, or a request or a missing value that brings one.
func (w *World) covered() {
	for h := range w.h.rows {
		block := h%2 == 0
		if w.h.missing[block] > 0 || slices.ContainsFunc(w.h.requests, func(o request) bool {
			return o.block == block
		}) {
			continue
		}
		if !slices.ContainsFunc(w.h.rights, func(r *right) bool {
			return r.block == block && (w.counts(r) || w.lost(r))
		}) {
			w.report("I34: row %d has neither a right, nor a request, nor a missing value", h)
		}
	}
}

// task is an actor between two steps.
type task struct {
	w    *World
	next chan bool // false: it dies
	done chan bool
}

// dies is the value of the panic that ends the actors of a process.
var dies any = new(struct{ int })

func (w *World) start(run func(t *task)) {
	t := &task{w: w, next: make(chan bool), done: make(chan bool)}
	w.tasks = append(w.tasks, t)
	go func() {
		defer func() {
			if r := recover(); r != nil && r != dies {
				panic(r)
			}
			t.unlock()
			t.done <- true
		}()
		if !<-t.next {
			panic(dies)
		}
		run(t)
	}()
}

// pause lets other actors take steps.
func (t *task) pause() {
	t.done <- false
	if !<-t.next {
		panic(dies)
	}
}

func (w *World) step(i int, lives bool) {
	t := w.tasks[i]
	t.next <- lives
	if <-t.done {
		w.tasks = slices.DeleteFunc(w.tasks, func(o *task) bool { return o == t })
	}
	w.covered()
}

func (w *World) kill() {
	for len(w.tasks) > 0 {
		t := w.tasks[0]
		t.next <- false
		<-t.done
		w.tasks = w.tasks[1:]
	}
}

// unlock ends the transaction.
func (t *task) unlock() {
	for _, r := range t.w.h.rights {
		delete(r.sharers, t)
		if r.alone == t {
			r.alone = nil
		}
	}
}

// share locks the row of a right beside other writers, or gives up.
func (t *task) share(r *right, waits bool) bool {
	for n := 0; r.alone != nil && r.alone != t; n++ {
		if !waits || n > 3 {
			return false
		}
		t.pause()
	}
	r.sharers[t] = true
	return true
}

// lock locks it alone, or gives up.
func (t *task) lock(r *right) bool {
	for n := 0; r.alone != nil && r.alone != t || len(r.sharers) > 0; n++ {
		if n > 3 {
			return false
		}
		t.pause()
	}
	r.alone = t
	return true
}

// call runs the effect of a call in the other database. It may be lost before, or its answer may be; it may
// arrive again later.
func (t *task) call(effect func()) bool {
	w := t.w
	t.pause()
	if !w.calm && w.chance(12) {
		w.seen["lost call"]++
		return false
	}
	effect()
	if !w.calm && w.chance(10) {
		w.late = append(w.late, effect)
	}
	t.pause()
	if !w.calm && w.chance(12) {
		w.seen["lost answer"]++
		return false
	}
	return true
}

func sorted[V any](m map[int]V) []int { return slices.Sorted(maps.Keys(m)) }
