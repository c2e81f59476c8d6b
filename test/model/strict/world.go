// Package strict models the strict references of attached tables alone, as a state machine: statements that write under a right, or wait for it, the
// process that stores their references afterwards, and everything that ends a right meanwhile: a recall, a return, a deletion, tidying. A row refers because
// it is there: each of these looks for rows by the index of the table, which knows names and no uids. Steps of all actors interleave in any order, and
// processes die between two steps.
//
// A is the database of a target, X that of holders. Epochs and attempts have models of their own; a message is never lost here, because
// each of them is repeated until it is answered.
package strict

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// Mistakes are planted one at a time.
type Mistakes struct {
	WritesUnlocked, CountsUnlocked, GrantsAlone, AnswerMakesRow, TakesAnyTurn, BlockCoversAct bool
	RecallIgnoresRows, RecallLooksFirst, LookIgnoresRows, LookLooksFirst, ForgetIgnoresRows   bool
	ActIgnoresRows, ActLooksFirst, ActsBesideLater                                            bool
}

type uid int

// target is a resource of A.
type target struct {
	deleting bool
	tentative, proxies,
	entry, notice bool
}

// right is a row of X about a target: foreign_target.
type right struct {
	turn       int
	block, act bool
	proxy      bool // it stands at A
	ending     bool
	kept       bool
	sharers    map[*task]bool
	alone      *task
}

type note struct {
	seq    int
	holder int
}

// World is both databases and everything that is under way. A holder with an even number blocks, one with an odd number is cascaded.
type World struct {
	Mistakes
	r       *rand.Rand
	targets map[uid]*target
	active  uid // the target that has the name; 0: none
	rights  map[uid]*right
	rows    map[int]uid // committed by plain SQL
	refs    map[int]uid // stored by the controller
	notes   []note
	n       int
	tasks   []*task
	seen    map[string]int
	broken  []string
	trace   []string
}

func newWorld(seed uint64, m Mistakes) *World {
	w := &World{
		Mistakes: m, r: rand.New(rand.NewPCG(seed, 11)), targets: map[uid]*target{}, rights: map[uid]*right{}, rows: map[int]uid{}, refs: map[int]uid{},
		seen: map[string]int{},
	}
	w.insert()
	return w
}

func (w *World) number() int { w.n++; return w.n }

func (w *World) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *World) report(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// later reports whether there is a row about a later target of the name.
func (w *World) later(u uid) bool {
	for other := range w.rights {
		if other > u {
			return true
		}
	}
	return false
}

// named reports whether a committed row names a target, as the index knows it: the last one of the name.
func (w *World) named(u uid, blocks bool) bool {
	if w.later(u) {
		return false
	}
	for h, to := range w.rows {
		if to != 0 && (h%2 == 0) == blocks {
			return true
		}
	}
	return false
}

// stored reports whether a reference to a target is stored.
func (w *World) stored(u uid, blocks bool) bool {
	for h, to := range w.refs {
		if to == u && (h%2 == 0) == blocks {
			return true
		}
	}
	return false
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
}

// unlock ends the transaction.
func (t *task) unlock() {
	for _, r := range t.w.rights {
		delete(r.sharers, t)
		if r.alone == t {
			r.alone = nil
		}
	}
}

// share locks the row of a right beside other writers.
func (t *task) share(u uid) bool {
	for n := 0; t.w.rights[u] != nil && t.w.rights[u].alone != nil; n++ {
		if n > 3 {
			return false
		}
		t.pause()
	}
	if t.w.rights[u] == nil {
		return false
	}
	t.w.rights[u].sharers[t] = true
	return true
}

// lock locks it alone, or gives up.
func (t *task) lock(u uid) bool {
	row := t.w.rights[u]
	for n := 0; t.w.rights[u] != nil && (t.w.rights[u].alone != nil || len(t.w.rights[u].sharers) > 0); n++ {
		if n > 3 {
			return false
		}
		t.pause()
	}
	if row == nil || t.w.rights[u] != row { // removed, or removed and made again
		return false
	}
	row.alone = t
	return true
}

func sorted[V any](m map[uid]V) []uid { return slices.Sorted(maps.Keys(m)) }
