// Package attached models attached tables alone, as a state machine: rows that plain SQL changes, the notes of triggers, the process that
// reads the rows and stores what they refer to, establishment under locks of rows, and deletions in both directions. Steps of all actors
// interleave in any order; processes die between two steps, and each database may be replaced by an earlier copy.
//
// A is the database of targets, X that of holders. The protocol of references itself (attempts, epochs) has models of its own: here a
// blockade of a holder that is decided otherwise is resolved in one step.
package attached

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// Mistakes are planted one at a time.
type Mistakes struct {
	StoresWithoutCompare, RemovesNotesByName, NotesRemovedFirst    bool
	EstablishesWithoutRow, EstablishIgnoresGoing                   bool
	ActsBesideNotes, ActsByName, SnapshotTrusted, GoneByName       bool
	ReadsBeforeTriggers, CursorBeforeNotes, RestoreKeepsReferences bool
	StoresBesideGone, ActsBesideBatches, SpreadsInTwoSteps         bool
}

type (
	key int
	uid int
)

// shadow is A's shadow of one of its rows.
type shadow struct {
	of       key
	row      int // the incarnation of the row that it was made for; for the bystander
	deleting bool
	version  int // changes with each establishment
}

type note struct {
	seq   int
	name  key
	gone  uid
	batch bool // in a batch of a large statement: nobody reads it before it is spread
}

// holder is a resource of X: the row at the time of its storing. It may be a target itself, so a row that is deleted ends its resource, and
// a row with the same key has another one.
type holder struct {
	own     uid // of the resource itself
	target  key
	uid     uid
	missing bool // reported: the target does not exist
}

// targets is the database of A.
type targets struct {
	rows    map[key]int // incarnation
	shadows map[uid]shadow
	blocks  map[uid]map[key]bool // blockades of holders that block
	entries map[uid]bool
	notices map[uid]bool
	notes   []note
}

// holders is the database of X. A holder with an even key blocks, one with an odd key follows its target.
type holders struct {
	rows     map[key]key // 0: NULL
	stored   map[key]holder
	notes    []note
	triggers bool
	filled   key
	complete bool
}

func (a *targets) copy() *targets {
	c := &targets{rows: maps.Clone(a.rows), shadows: maps.Clone(a.shadows), entries: maps.Clone(a.entries), notices: maps.Clone(a.notices), notes: slices.Clone(a.notes), blocks: map[uid]map[key]bool{}}
	for u, b := range a.blocks {
		c.blocks[u] = maps.Clone(b)
	}
	return c
}

func (x *holders) copy() *holders {
	c := *x
	c.rows, c.stored, c.notes = maps.Clone(x.rows), maps.Clone(x.stored), slices.Clone(x.notes)
	return &c
}

// World is both databases and everything that is under way.
type World struct {
	Mistakes
	r                *rand.Rand
	a                *targets
	x                *holders
	backupA, backupX *targetsAndTime
	n                int
	tasks            []*task
	locks            map[string]*task
	seen             map[string]int
	broken, trace    []string
}

// targetsAndTime is an earlier copy of one of the databases.
type targetsAndTime struct {
	a *targets
	x *holders
}

func newWorld(seed uint64, m Mistakes) *World {
	return &World{
		Mistakes: m, r: rand.New(rand.NewPCG(seed, 7)), locks: map[string]*task{}, seen: map[string]int{},
		a: &targets{rows: map[key]int{}, shadows: map[uid]shadow{}, blocks: map[uid]map[key]bool{}, entries: map[uid]bool{}, notices: map[uid]bool{}},
		x: &holders{rows: map[key]key{}, stored: map[key]holder{}},
	}
}

func (w *World) number() int { w.n++; return w.n }

func (w *World) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *World) report(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// task is an actor between two steps.
type task struct {
	w    *World
	name string
	next chan bool // false: it dies
	done chan bool
}

// start lets an actor begin with its next step.
func (w *World) start(name string, run func(t *task)) {
	t := &task{w: w, name: name, next: make(chan bool), done: make(chan bool)}
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

// dies is the value of the panic that ends the actors of a process.
var dies any = new(struct{ int })

// pause lets other actors take steps.
func (t *task) pause() {
	t.done <- false
	if !<-t.next {
		panic(dies)
	}
}

// step runs an actor to its next pause, or kills it.
func (w *World) step(i int, lives bool) {
	t := w.tasks[i]
	t.next <- lives
	if <-t.done {
		w.tasks = slices.DeleteFunc(w.tasks, func(o *task) bool { return o == t })
	}
}

// lock takes a lock alone, and reports whether it had it in time.
func (t *task) lock(name string) bool {
	for waited := 0; t.w.locks[name] != nil && t.w.locks[name] != t; waited++ {
		if waited > 3 {
			t.unlock()
			return false
		}
		t.pause()
	}
	t.w.locks[name] = t
	return true
}

// unlock ends the transaction.
func (t *task) unlock() {
	maps.DeleteFunc(t.w.locks, func(_ string, o *task) bool { return o == t })
}

func rowOf(database string, k key) string { return fmt.Sprint(database, " row ", k) }
func shadowOf(u uid) string               { return fmt.Sprint("shadow ", u) }
