// Package recovery models the recovery of a deployment whose database was restored, with a registry whose
// database may have been restored as well: whom the registry names, whom the deployment waits for, and which
// databases it believes; and how an unannounced older copy is noticed. One target, which two deployments
// refer to by BLOCK references, stands for all. HolderWorld models the restores of a holder's deployment by
// itself; PromotionWorld the log of a database with standbys, what a promoted one lacks, and what shows that.
//
// It models docs/protocol/recovery.md and docs/protocol/identities.md, and not the implementation: the other
// tests show that the two agree.
package recovery

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// The deployments. The late one comes during the schedule: backups of before do not know it. The stranger
// never comes: it has a certificate, and nothing at the target's deployment.
const (
	target = iota
	holder
	late
	deployments
	stranger = deployments
)

// empty is the identity of the database over which a holder's process is started by mistake.
const empty = 1000

// Mistakes that can be planted, to show that the checks find them.
type Mistakes struct {
	// Of the registry.
	HeardIsNotNeeded, OlderCopyIsNotNoticed, RevisionsAlone, AppliedBeforeCounts bool
	// Of the target's deployment.
	TrustsAnyList, DeletesWhileItAsks, LaterListedAreNotAwaited, CallersAreNotAwaited, CountedForEver,
	AnyEpochConfirms, DatabasesAreNotCompared, FirstDatabaseCounts, FormerDatabasesCount,
	StrangersAreAwaited, InventedPositionsCount, PositionsOfOthersCount, LostHoldersAreStrangers bool
	// Of the holders' deployments.
	DisabledIsNo, CommitsInAnyEpoch, EstablishesWithoutAPosition bool
	// Of positions: the target's deployment, then the holders'.
	OwnMarkIsNotCompared, AheadIsResetAlone, LaterEpochsShowNothing, EachOtherEpochIsLater, BookmarksBeforeTheDisk,
	IdleBookmarksStay,
	UntoldPositionsAreReplaced, PositionsAreInMemory, KnownEpochIsRefused bool
}

// database is the database of the target's deployment.
type database struct {
	epoch       int
	mark        int  // the last number taken
	flushed     int  // the last number that is on disk
	mayHaveLost bool // it is not in its first epoch
	awaiting    bool // it is not known yet whom it waits for
	deleted     bool // the target
	blockades   map[int]bool
	unconfirmed map[int]bool // who has to compare
	countedIn   map[int]int  // the epoch in which a deployment was told to compare
	met         map[int]int  // the identities of the others' databases
	related     map[int]bool // a blockade or a due comparison is about the database that was met
}

func (d database) clone() database {
	d.blockades, d.unconfirmed = maps.Clone(d.blockades), maps.Clone(d.unconfirmed)
	d.countedIn, d.met, d.related = maps.Clone(d.countedIn), maps.Clone(d.met), maps.Clone(d.related)
	return d
}

// holding is the database of a holder's deployment.
type holding struct {
	refers, dangling bool
	established      int // the epoch in which a write under way has established its blockade; 0: none
	knows            int // the target's epoch
}

// confirmation is a message that a holder's deployment has compared. It may arrive late, or never.
type confirmation struct{ from, database, epoch int }

// World has the registry, the deployments, and the confirmations in flight.
type World struct {
	Mistakes
	r                        *rand.Rand
	registry, registryBackup registry
	a, backup                database
	known                    map[int]listing // the environment that the target's process has; nil: none
	holdings                 [deployments]holding
	watching                 [deployments]watching
	process                  int  // the greatest number that the target's process has seen
	lost                     bool // the database has lost commits in this epoch
	told                     bool // a position that it has lost was told since
	blind                    bool // no position can reveal that now
	databases                [deployments]int
	seen                     [deployments]seen
	came                     map[int]bool
	bag                      []confirmation
	// careless: an operator has vouched for a list that may lack a deployment. Then only those count of which
	// the target's deployment has heard since its recovery began.
	careless bool
	heardOf  map[int]bool
	excused  map[int]bool // of whom it had not heard when the target was deleted
	last     int
	count    map[string]int
	broken   []string
}

// New makes a world in which the target's deployment and one holder's run.
func New(seed uint64, m Mistakes) *World {
	w := &World{
		Mistakes: m, r: rand.New(rand.NewPCG(seed, 1)), came: map[int]bool{}, heardOf: map[int]bool{},
		excused: map[int]bool{}, count: map[string]int{},
	}
	w.registry = registry{
		server: w.number(), part: w.number(), ended: map[int]int{}, listed: map[int]listing{},
		heardIn: map[int]int{},
	}
	w.a = database{
		epoch: w.number(), blockades: map[int]bool{}, unconfirmed: map[int]bool{}, countedIn: map[int]int{},
		met: map[int]int{}, related: map[int]bool{},
	}
	for d := range w.databases {
		w.databases[d] = w.number()
		w.holdings[d].knows = w.a.epoch
	}
	w.backup = w.a.clone() // before anybody was met
	w.Come(target)
	w.Come(holder)
	w.registryBackup = w.registry.clone()
	return w
}

func (w *World) number() int { w.last++; return w.last }

func sorted[V any](m map[int]V) []int { return slices.Sorted(maps.Keys(m)) }

// Establish begins a write of a reference: it leaves a blockade at the target.
func (w *World) Establish(d int) {
	h := &w.holdings[d]
	if !w.came[d] || h.refers || h.dangling || h.established != 0 || !w.call(d, w.databases[d]) || w.a.deleted ||
		w.known[d].disabled {
		return
	}
	if !w.EstablishesWithoutAPosition && !w.FirstPosition(d) {
		return
	}
	if _, listed := w.known[d]; !listed || !w.commits() { // unknown is not "no": the write is repeated
		return
	}
	w.a.blockades[d], w.a.related[d] = true, true
	h.established = w.a.epoch
}

// Commit commits the write, unless the target's epoch has ended.
func (w *World) Commit(d int) {
	h := &w.holdings[d]
	if h.established == 0 {
		return
	}
	epoch := h.established
	h.established = 0
	if epoch != h.knows && !w.CommitsInAnyEpoch {
		if w.a.epoch == epoch && w.commits() {
			delete(w.a.blockades, d)
		}
		return
	}
	if h.refers = true; w.a.deleted && !w.excused[d] {
		w.report("I1: the reference of %d is committed after its target was deleted", d)
	}
	w.count["committed"]++
}

// Drop ends a reference.
func (w *World) Drop(d int) {
	h := &w.holdings[d]
	if h.refers && w.call(d, w.databases[d]) && h.knows == w.a.epoch && w.commits() {
		h.refers = false
		delete(w.a.blockades, d)
	}
}

// Delete deletes the target, unless a reference blocks it or may block it.
func (w *World) Delete() {
	waits := w.a.awaiting && !w.DeletesWhileItAsks || len(w.a.unconfirmed) > 0
	if w.a.deleted || waits || len(w.a.blockades) > 0 || !w.commits() {
		return
	}
	w.a.deleted = true
	w.count["deleted"]++
	unknown := w.excusesCopy()
	for d, h := range w.holdings {
		w.excused[d] = w.careless && !w.heardOf[d] || unknown
		if h.refers && !h.dangling && !w.excused[d] {
			w.report("I2: the target is deleted beside the reference of %d", d)
		}
	}
}

// Restore puts the backup in the place of the target's database, in a new epoch. Its process starts anew.
func (w *World) Restore() {
	w.a = w.backup.clone()
	w.lost = true
	w.beginEpoch()
	w.known, w.seen[target] = nil, seen{}
	clear(w.heardOf)
}

// Recover asks the registry whom the target's deployment has to wait for.
func (w *World) Recover() {
	if !w.a.awaiting {
		return
	}
	if w.hear(target); !w.vouches() && !w.TrustsAnyList {
		return
	}
	w.a.awaiting = false
	for d := range w.registry.listed {
		w.await(d)
	}
	w.take()
	w.checkStranger()
	w.count["recovered"]++
}

// await makes the target's deployment wait for another one, once in each epoch.
func (w *World) await(d int) {
	counted := w.a.countedIn[d] == w.a.epoch || w.CountedForEver && w.a.countedIn[d] != 0
	if d != target && w.a.mayHaveLost && !counted {
		w.a.countedIn[d] = w.a.epoch
		w.a.unconfirmed[d], w.a.related[d] = true, true
	}
}

// take takes the newest environment. A deployment that appears in it after the recovery has begun is waited
// for from then on.
func (w *World) take() {
	w.known = maps.Clone(w.registry.listed)
	if w.a.awaiting {
		return
	}
	for d := range w.known {
		if w.heardOf[d] = true; !w.LaterListedAreNotAwaited {
			w.await(d)
		}
	}
}

// isStranger reports whether a deployment is neither listed nor has anything at the target's deployment.
// Before the first environment of the process that is unknown.
func (w *World) isStranger(d int) bool {
	_, listed := w.known[d]
	return w.known != nil && !listed && !w.a.related[d] && !w.a.blockades[d] && !w.a.unconfirmed[d]
}

// call is a call of another deployment, or an answer of it, with the identity of its database. It returns
// false when the caller is not believed, or cannot be judged yet.
func (w *World) call(d, database int) bool {
	if w.isStranger(d) && !w.StrangersAreAwaited {
		return false
	}
	return w.meet(d, database)
}

// meet takes a call of a deployment that is no stranger.
func (w *World) meet(d, database int) bool {
	met, known := w.a.met[d]
	if !known && w.a.mayHaveLost && !w.FirstDatabaseCounts {
		if w.a.awaiting || w.known == nil {
			return false
		}
		if l, listed := w.known[d]; listed && l.database != database {
			return w.DatabasesAreNotCompared
		}
	}
	if !known || !w.a.related[d] {
		w.a.met[d], met = database, database
	}
	if met != database {
		return w.DatabasesAreNotCompared
	}
	if w.a.awaiting {
		return true
	}
	if w.heardOf[d] = true; !w.CallersAreNotAwaited {
		w.await(d)
	}
	return true
}

// Admit decides about a watch that a deployment opens with a stored position. A position that the target's
// database issued shows that the database has lost a deployment which followed it before: that deployment is
// waited for. An invented position, or one that was issued to another deployment, shows nothing.
func (w *World) Admit(d, database int, shown position, issuedTo int) bool {
	proved := shown != (position{}) && issuedTo == d || w.InventedPositionsCount && issuedTo < 0 ||
		w.PositionsOfOthersCount && issuedTo >= 0
	switch {
	case !w.isStranger(d):
		return w.meet(d, database)
	case !proved && !w.StrangersAreAwaited || w.LostHoldersAreStrangers || !w.a.mayHaveLost:
		return false
	}
	w.count["remembered"]++
	if !w.meet(d, database) {
		return false
	}
	if d == stranger {
		w.checkStranger()
	}
	return true
}

// Attack lets the stranger call, and open watches without a position, with an invented one, or with one that
// was issued to another deployment.
func (w *World) Attack() {
	const invented = -1
	w.call(stranger, empty)
	w.Admit(stranger, empty, position{}, stranger)
	w.Admit(stranger, empty, position{w.a.epoch, w.a.mark}, invented)
	for d := range w.watching {
		w.Admit(stranger, empty, w.watching[d].stored, d)
	}
	w.checkStranger()
}

func (w *World) checkStranger() {
	if w.a.unconfirmed[stranger] {
		w.report("I13: a stranger is waited for")
	}
}

// Compare tells a deployment the epoch, if it is waited for; the deployment compares its reference with the
// target's database, and establishes it again.
func (w *World) Compare(d int) {
	h := &w.holdings[d]
	if !w.a.unconfirmed[d] || !w.call(d, w.databases[d]) {
		return
	}
	if h.knows > w.a.epoch { // its position reveals an older copy as well
		if !w.KnownEpochIsRefused {
			w.beginEpoch()
		}
		return
	}
	h.knows = w.a.epoch
	switch {
	case !h.refers || h.dangling || w.a.blockades[d]:
	case w.a.deleted:
		h.dangling = true
	case w.known[d].disabled && w.DisabledIsNo:
		h.dangling = true
		w.report("S2: the reference of %d is marked dangling, and its target exists", d)
	case w.known[d].disabled: // it is tried again when it is enabled
		return
	default:
		w.a.blockades[d] = true
	}
	w.bag = append(w.bag, confirmation{d, w.databases[d], h.knows})
}

// Impersonate lets a process over an empty database answer for a deployment: it refers to nothing.
func (w *World) Impersonate(d int) {
	if w.a.unconfirmed[d] {
		w.bag = append(w.bag, confirmation{d, empty, w.a.epoch})
		return
	}
	if w.call(d, empty) { // asked about a blockade
		delete(w.a.blockades, d)
	}
}

// Deliver delivers a confirmation; with again it also stays in flight.
func (w *World) Deliver(i int, again bool) {
	m := w.bag[i]
	if !again {
		w.bag = slices.Delete(w.bag, i, i+1)
	}
	if w.call(m.from, m.database) && (m.epoch == w.a.epoch || w.AnyEpochConfirms) && w.commits() {
		delete(w.a.unconfirmed, m.from)
	}
}

// Accept lets an operator accept the database of a deployment in place of the database that was met before:
// the new one has to compare.
func (w *World) Accept(d int) {
	if met, known := w.a.met[d]; known && met != w.databases[d] {
		w.a.met[d], w.a.unconfirmed[d] = w.databases[d], true
	}
}

// Rest repairs all faults, and checks that nothing waits and nothing is lost.
func (w *World) Rest() {
	w.careless = false
	for d := range deployments {
		w.Disable(d, false)
	}
	for range 4 {
		for _, d := range sorted(w.came) {
			w.Open(d)
			w.Watch(d, 0)
		}
		w.commits()
		w.ApplyAll()
		w.Recover()
		w.Open(target)
		for d := range deployments {
			w.Accept(d)
			w.Commit(d)
			w.Compare(d)
		}
		for len(w.bag) > 0 {
			w.Deliver(0, false)
		}
	}
	if w.a.awaiting || len(w.a.unconfirmed) > 0 {
		w.report("I13: the target's deployment waits for %v at rest, awaiting %v", sorted(w.a.unconfirmed),
			w.a.awaiting)
	}
	unknown := w.excusesCopy()
	for d, h := range w.holdings {
		if h.refers && !h.dangling && !w.a.deleted && !w.a.blockades[d] && !unknown {
			w.report("I8: the reference of %d has no blockade", d)
		}
	}
}

func (w *World) report(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}
