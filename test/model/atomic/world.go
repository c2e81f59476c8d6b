package atomic

import (
	"maps"
	"slices"
)

type (
	// UID of a resource.
	UID int
	// ID of a deletion. The lower one is the older one.
	ID int
	// Behaviour of a reference.
	Behaviour int
)

// The behaviours. A right to act covers the first two.
const (
	Cascade Behaviour = iota
	Unset
	Block
	behaviours
)

// Mistakes are planted one at a time.
type Mistakes struct {
	// Freezing.
	RightsNotEnded, ChecksBeforeLock, EntriesBeforeResolution, RepeatedNamesInserted, UndecidedIsRead,
	DecommissionedFreezes, FreezesBesideRecovery, RepeatedIsTentative, ExpiredFreezes, AnyEpochFreezes bool
	// Writers.
	OwnReferencesChange, FrozenTakesUnset, WritersCheckBeforeLock, FrozenGrants, LateGrants, ComparisonsWait bool
	// Decision.
	DecidesWithoutCompeting, AnswersWithoutRecord, EpochsNotCompared, LaterEpochReplaces, ParticipantsMayLeave,
	OwnEpochNotCompared, ExcusesUnfrozen bool
	// Outcome.
	OpenedByTime, NeverAsks, EpochBeforeRecord, EpochBeforeForgotten, RootRemovedIsDone, ForgetsCommittedEarly,
	ForgottenCommits, TellsOthersOnly bool
	// Lasting rows.
	CommittedOpens, ConfirmsBeforeItLasts, AbortedOpensAll, OverOpensLasting, LastingAsks, MarkDropsOwnRow, BrokenStays,
	MarkedIsBroken, GoneHolds, ReleasedHolds, AnyEpochTells, RestoredOpensLasting bool
	// Scheduled deletions.
	ScheduledIsUndecided, UndeleteIsToldOnce, PurgeDoesNotCompete, PurgeDoesNotFreeze, PurgeEndsNothing, KeptAsksNever,
	AnyAcknowledgementCounts, RestoreSchedulesOnce bool
}

type reference struct {
	to      UID
	b       Behaviour
	attempt int // 0: it is local, or written under a right
}

// resource is never changed in place.
type resource struct {
	refs   []reference
	marked bool
	cause  ID // the atomic deletion that has marked it; 0: another one
}

// blockade is the row of an attempt at the target's deployment. An attempt to act becomes an entry.
type blockade struct {
	holder, to UID
	home       int // the holder's
	b          Behaviour
	tentative  bool
}

// entry says that a deployment has holders that act; in DELETING it is the notice.
type entry struct {
	to   UID
	from int
}

// record is a decision.
type record struct {
	committed bool
	scheduled bool  // it is decided later
	by        []int // the participants of a scheduled deletion
	waits     []int // participants that have not acknowledged it
}

func (r record) verdict() string {
	switch {
	case r.committed:
		return "committed"
	case r.scheduled:
		return "scheduled"
	}
	return "aborted"
}

type database struct {
	epoch      int
	recovering bool // it has lost commits, and was not compared
	resources  map[UID]resource
	rows       map[UID]map[ID]row // by resource and deletion: freezes are shared
	blockades  map[int]blockade   // by attempt
	entries    map[entry]bool
	rights     map[UID]bool // to targets of others
	closes     map[UID]int  // how often the right was ended
	records    map[ID]record
	forgotten  ID
	closed     map[ID]bool  // the deletions that it knows to be aborted
	knows      map[int]int  // the newest epochs
	left       map[int]bool // who is decommissioned
}

func (d *database) copied() *database {
	c := *d
	c.resources, c.rows, c.blockades, c.entries = maps.Clone(d.resources), map[UID]map[ID]row{},
		maps.Clone(d.blockades), maps.Clone(d.entries)
	c.rights, c.closes, c.records, c.knows, c.left = maps.Clone(d.rights), maps.Clone(d.closes), maps.Clone(d.records),
		maps.Clone(d.knows), maps.Clone(d.left)
	c.closed = maps.Clone(d.closed)
	for uid, rows := range d.rows {
		c.rows[uid] = maps.Clone(rows)
	}
	return &c
}

func (d *database) active(uid UID) bool {
	r, ok := d.resources[uid]
	return ok && !r.marked
}

// message is under way. Any message may be lost, repeated and late.
type message struct {
	kind      string
	id        ID
	from, to  int
	epoch     int // of the sender; in a question, of the freeze
	uid       UID
	found     []UID
	entries   []int // the deployments with entries
	blockers  []UID
	undecided bool
	looked    bool // only for a mistake
	verdict   string
	turn      int // of a grant
	own       int // the epoch of the receiver that the sender knows; 0: none
}

// World is all databases, messages and processes, and what a bystander knows.
type World struct {
	Mistakes
	pick           func(n int) int
	db, backup     []*database
	decommissioned map[int]bool
	home           map[UID]int
	writes         []*write
	bag            []message
	processes      map[ID]*process
	begun          map[ID]begin
	expired        map[ID]map[int]bool // by whose clock
	n              int
	calm           bool // nothing is lost any more
	cycles         bool // references may form cycles
	bystander
}

// begin is what is known of a deletion for ever.
type begin struct {
	at   int
	root UID
}

// New makes a world of deployments, the first of which has two resources, and the others one.
func New(deployments int, pick func(n int) int, m Mistakes) *World {
	w := &World{
		Mistakes: m, pick: pick, decommissioned: map[int]bool{}, home: map[UID]int{}, processes: map[ID]*process{},
		begun: map[ID]begin{}, expired: map[ID]map[int]bool{},
		bystander: newBystander(),
	}
	for d := range deployments {
		w.db = append(w.db, &database{
			epoch: 1, resources: map[UID]resource{}, rows: map[UID]map[ID]row{}, blockades: map[int]blockade{},
			entries: map[entry]bool{}, rights: map[UID]bool{},
			closes: map[UID]int{}, records: map[ID]record{}, closed: map[ID]bool{}, knows: map[int]int{},
			left: map[int]bool{},
		})
		w.create(d)
		for o := range deployments {
			w.db[d].knows[o] = 1
		}
	}
	w.create(0)
	w.n = 100 // uids and deletions are told apart
	w.Backup()
	return w
}

func (w *World) create(d int) UID {
	uid := UID(w.number())
	w.home[uid] = d
	w.db[d].resources[uid] = resource{}
	return uid
}

func (w *World) number() int { w.n++; return w.n }

func (w *World) chance(of int) bool { return w.pick(of) == 0 }

func sorted[K ~int, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// there lists the deployments that are not decommissioned.
func (w *World) there() (all []int) {
	for d := range w.db {
		if !w.decommissioned[d] {
			all = append(all, d)
		}
	}
	return all
}

// holders lists the holders of a target in one database.
func (w *World) holders(d int, to UID, b Behaviour) (found []UID) {
	for _, h := range sorted(w.db[d].resources) {
		if slices.ContainsFunc(w.db[d].resources[h].refs, func(r reference) bool { return r.to == to && r.b == b }) {
			found = append(found, h)
		}
	}
	return found
}

// closure lists resources with all that cascade to them in one database.
func (w *World) closure(d int, all []UID) []UID {
	for i := 0; i < len(all); i++ {
		for _, h := range w.holders(d, all[i], Cascade) {
			if !slices.Contains(all, h) {
				all = append(all, h)
			}
		}
	}
	return all
}

func (w *World) send(m message) { w.bag = append(w.bag, m) }

// Deliver lets a message arrive. again keeps it under way.
func (w *World) Deliver(i int, again bool) {
	m := w.bag[i]
	if !again {
		w.bag = slices.Delete(w.bag, i, i+1)
	}
	if w.decommissioned[m.to] {
		return
	}
	w.note("deliver %+v", m)
	switch m.kind {
	case "freeze":
		w.freeze(m)
	case "look":
		w.look(m)
	case "frozen", "seen", "refused":
		w.answered(m)
	case "ask":
		w.answer(m)
	case "told":
		w.told(m)
	case "confirmed":
		w.confirmed(m)
	case "holds?":
		w.followed(m)
	case "holds not":
		w.unheld(m)
	case "grant":
		w.granted(m)
	}
}

// Lose loses a message.
func (w *World) Lose(i int) { w.bag = slices.Delete(w.bag, i, i+1) }

// Backup copies all databases, each at a moment of its own if it is called for one.
func (w *World) Backup(of ...int) {
	if w.backup == nil {
		w.backup = make([]*database, len(w.db))
		of = w.there()
	}
	for _, d := range of {
		w.backup[d] = w.db[d].copied()
	}
}

// Restore replaces a database by its copy, in a new epoch. Processes that coordinate survive.
func (w *World) Restore(d int) {
	if w.decommissioned[d] {
		return
	}
	w.db[d] = w.backup[d].copied()
	w.db[d].epoch, w.db[d].recovering = w.number(), true
	w.note("%d is restored, epoch %d", d, w.db[d].epoch)
	w.scheduleAgain(d)
	w.restored(d)
}

// Promote begins a new epoch of a database that has lost nothing.
func (w *World) Promote(d int) {
	if w.decommissioned[d] {
		return
	}
	w.db[d].epoch, w.db[d].recovering = w.number(), true
	w.note("%d is promoted, epoch %d", d, w.db[d].epoch)
	w.count("promoted")
	w.scheduleAgain(d)
}

// Crash ends the process that coordinates a deletion.
func (w *World) Crash(id ID) {
	w.note("the process of %d crashes", id)
	delete(w.processes, id)
}

func (w *World) note(format string, args ...any) {
	w.trace = append(w.trace, line{format, args})
}
