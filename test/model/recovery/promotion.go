package recovery

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// Evidence is what ends the wait of deletions for another deployment after a promotion, besides its
// comparison.
type Evidence int

const (
	// KindsOfAnswers is the protocol. Whoever has stored the epoch, and refuses earlier messages from then
	// on, answers with the kinds to which its rows refer: deletions of other kinds do not wait for it.
	KindsOfAnswers Evidence = iota
	// MarksUnderSynchronousReplication excuses a deployment when the promoted server has the greatest number
	// of the sequence mark that a bookmark has told it, and the commits of the promoted server's log had to
	// wait for that server.
	MarksUnderSynchronousReplication
	// PositionsOfAllMessages excuses a deployment when the promoted server's log goes as far as the greatest
	// position that any message has told it. Each message has the place in the sender's log behind all
	// commits that it rests on, and the receiver stores the place with the effect.
	PositionsOfAllMessages
)

// Hazards are what PostgreSQL, its managers and operators do besides. Without them all commits wait for one
// standby, which has caught up before and is the only one that is promoted.
type Hazards struct {
	StandbysAreTakenOff     bool // while no standby is connected, a manager empties synchronous_standby_names
	SomeCommitsAreLocal     bool // a session has set synchronous_commit to local
	WaitsAreCancelled       bool // a wait for a standby that is cancelled, as at the end of a call, ends with a commit
	CrashesEndWaits         bool // a primary that has crashed shows the commits that were waiting
	AnyOfTwoIsEnough        bool // a commit waits for any one of two standbys (a quorum), and the other one is promoted
	OthersArePromoted       bool // a standby is promoted for which no commit has waited
	TheNamedHaveNotCaughtUp bool // a named standby is promoted that has never had all commits of its primary
	SnapshotsAreStarted     bool // a snapshot of the primary's volume is promoted in its place
	TheFormerPrimaryGoesOn  bool // two copies live, and the former one waits for nobody
}

// AnswerMistakes can be planted in a PromotionWorld whose evidence is KindsOfAnswers.
type AnswerMistakes struct {
	KindsAreReadFirst, OnlyKeptRowsCount, AnswersOfAnyEpochCount, KindsOfTheFirstEpochStay,
	SilentDeploymentsReferToNothing bool
}

// PositionMistakes can be planted in a PromotionWorld whose evidence is PositionsOfAllMessages.
type PositionMistakes struct {
	SomeMessagesHaveNoPosition, PositionsAreReadBeforeTheCommit, PositionsAreMarks, PositionsAreStoredLater,
	OneAnswerIsEnough, SilenceIsAnAnswer, NumbersOfAnyEpochCount, TheLastPromotionCounts, PlacesBehindThePromotionCount,
	LateMessagesCount, UnfinishedComparisonsAreOver, TheEpochStays bool
}

const (
	servers   = 3
	listeners = 2 // other deployments
	// ahead is the number of values by which a sequence is logged ahead of its use.
	ahead = 4
)

// record is a commit in the log of a server.
type record struct {
	id, timeline int
	by           int           // the server that has written it
	named        [servers]bool // the standbys one of which it has to wait for
	mark, logged int           // its number of the sequence mark, and the greatest number that is logged
	begins       *beginning
	confirms     int // a deployment that needs not be waited for any more, counted from 1
	answered     int // a deployment that refers to some kinds, counted from 1
	refersTo     [kinds]bool
}

// waiting says for which kinds a deployment is waited for.
type waiting struct {
	on, known bool
	refersTo  [kinds]bool
}

func (w waiting) holds(k int) bool { return w.on && (!w.known || w.refersTo[k]) }

// beginning is the begin of an epoch.
type beginning struct {
	epoch, was int
	fork       int  // the length of the log where the timeline of the former epoch ends
	mark       int  // and the greatest number logged up to there
	waited     bool // its last commit had to wait for the promoted server, or was written by it
	unfinished [listeners]bool
}

// pgServer is a server with its log.
type pgServer struct {
	log      []record
	timeline int
	promoted bool // and no process has noticed it
	fork     int  // the length of the log at the last promotion
}

// state is what the log of the leader says: the epoch, and who is waited for.
func (w *PromotionWorld) state(of *pgServer) (now beginning, waits [listeners]waiting) {
	for _, r := range of.log {
		if r.begins != nil {
			now = *r.begins
			for d := range waits {
				if waits[d].on = now.was != 0; !w.KindsOfTheFirstEpochStay {
					waits[d].known = w.SilentDeploymentsReferToNothing
				}
			}
		}
		if r.answered > 0 && waits[r.answered-1].on {
			waits[r.answered-1] = waiting{true, true, r.refersTo}
		}
		if r.confirms > 0 {
			waits[r.confirms-1] = waiting{}
		}
	}
	return now, waits
}

func (s *pgServer) last() (r record) {
	if n := len(s.log); n > 0 {
		r = s.log[n-1]
	}
	return r
}

// left is the length of the log where the timeline ends on which the epoch began: there may have been several
// promotions since.
func (s *pgServer) left() (n int) {
	for i := len(s.log) - 1; i >= 0; i-- {
		if s.log[i].begins != nil {
			for n = i; n < len(s.log) && s.log[n].timeline == s.log[i].timeline; n++ {
			}
			return n
		}
	}
	return 0
}

// common is the length of the log that two servers have in common.
func (s *pgServer) common(o *pgServer) (n int) {
	for n < len(s.log) && n < len(o.log) && s.log[n].id == o.log[n].id {
		n++
	}
	return n
}

// heard is what another deployment has durably from this one.
type heard struct {
	epoch  int
	relies map[int]bool // the commits on which its rows rest: blockades, entries, rights, dropped references, removals
	place  int          // the greatest position of the epoch
	stored int          // as it is on disk
	mark   int          // of the bookmarks
}

// telling is a message, or an answer, to another deployment.
type telling struct{ to, commit, epoch, place int }

// answer is one to an announcement, which may be late.
type answer struct {
	by, epoch int
	refersTo  [kinds]bool
}

// PromotionWorld models a database with two standbys: which commits a promoted server lacks, and what shows
// that it lacks none. Rows of other deployments rest on commits of the database; a deletion without a
// comparison is wrong when one of these is lost.
type PromotionWorld struct {
	AnswerMistakes
	PositionMistakes
	Hazards
	evidence Evidence
	r        *rand.Rand
	nodes    [servers]pgServer
	leader   int
	former   *pgServer // the primary before the promotion may go on: nothing has ended it
	snapshot pgServer
	names    [servers]bool // synchronous_standby_names
	caughtUp bool          // all of them have had all commits of the leader
	compared bool          // a deployment has compared since the promotion
	waiting  map[int]bool  // commits that no reader sees yet
	others   [listeners]heard
	client   struct { // it watches resources, and nobody asks it
		epoch int
		saw   map[int]bool
	}
	flight  []telling
	answers []answer
	early   [listeners]*answer // read before the epoch was stored
	number  int
	count   map[string]int
	broken  []string
}

// NewPromotion makes a world in which both deployments have heard of the first epoch.
func NewPromotion(seed uint64, e Evidence, h Hazards) *PromotionWorld {
	w := &PromotionWorld{
		Hazards: h, evidence: e, r: rand.New(rand.NewPCG(seed, 3)), waiting: map[int]bool{},
		count: map[string]int{},
	}
	w.names = w.standbys()
	w.append(record{begins: &beginning{epoch: w.next()}})
	first, _ := w.state(w.primary())
	for i := range w.nodes {
		w.nodes[i].log = slices.Clone(w.primary().log)
	}
	clear(w.waiting)
	w.snapshot.log, w.caughtUp = slices.Clone(w.primary().log), true
	for d := range w.others {
		w.others[d] = heard{epoch: first.epoch, relies: map[int]bool{}}
	}
	w.client.epoch, w.client.saw = first.epoch, map[int]bool{}
	return w
}

func (w *PromotionWorld) next() int          { w.number++; return w.number }
func (w *PromotionWorld) primary() *pgServer { return &w.nodes[w.leader] }

func (w *PromotionWorld) report(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// standbys are those that an operator names for the present leader: the next one, or both.
func (w *PromotionWorld) standbys() (names [servers]bool) {
	names[(w.leader+1)%servers] = true
	if w.AnyOfTwoIsEnough {
		names[(w.leader+2)%servers] = true
	}
	return names
}

// append commits on the leader. The commit is seen when a named standby has it.
func (w *PromotionWorld) append(r record) {
	s, before := w.primary(), w.primary().last()
	r.id, r.timeline, r.by, r.named = w.next(), s.timeline, w.leader, w.names
	if r.mark, r.logged = before.mark+1, before.logged; r.mark > r.logged {
		r.logged = r.mark + ahead
	}
	s.log = append(s.log, r)
	local := w.SomeCommitsAreLocal && w.r.IntN(3) == 0
	if w.names != [servers]bool{} && !local {
		w.waiting[r.id] = true
	}
}

// Commit commits a transaction that decides. Before a process has noticed the promotion, only transactions of
// others commit.
func (w *PromotionWorld) Commit() { w.append(record{}) }

// Replicate sends a part of the leader's log to a standby.
func (w *PromotionWorld) Replicate() {
	i := w.r.IntN(servers)
	s := &w.nodes[i]
	if n := s.common(w.primary()); i != w.leader && n < len(w.primary().log) {
		s.log = append(s.log[:n:n], w.primary().log[n:n+1+w.r.IntN(len(w.primary().log)-n)]...)
	}
	lacking := func(k int) bool { return w.standbys()[k] && w.nodes[k].common(w.primary()) < len(w.primary().log) }
	w.caughtUp = w.caughtUp || !lacking(0) && !lacking(1) && !lacking(2)
	for _, r := range w.primary().log {
		for k, named := range w.names {
			if w.waiting[r.id] && named && slices.ContainsFunc(w.nodes[k].log, func(o record) bool {
				return o.id == r.id
			}) {
				delete(w.waiting, r.id)
			}
		}
	}
}

// Degrade takes the synchronous standbys off, or puts them back.
func (w *PromotionWorld) Degrade() {
	if !w.StandbysAreTakenOff {
		return
	}
	if w.names = [servers]bool{}; w.r.IntN(3) == 0 {
		w.names = w.standbys()
	} else {
		clear(w.waiting)
	}
}

// Cancel ends a wait: the transaction is committed, and no standby need have it.
func (w *PromotionWorld) Cancel() {
	if w.WaitsAreCancelled {
		for _, id := range sorted(w.waiting)[:min(1, len(w.waiting))] {
			delete(w.waiting, id)
		}
	}
}

// Crash lets the leader crash and recover by itself: on the same timeline, with all that it has written.
func (w *PromotionWorld) Crash() {
	if w.CrashesEndWaits {
		clear(w.waiting)
	}
}

// seen is a commit that the leader shows, with the place of the log behind it and all others that it shows.
func (w *PromotionWorld) seen() (id, place int, ok bool) {
	s := w.primary()
	i := w.r.IntN(len(s.log))
	if s.promoted || w.waiting[s.log[i].id] {
		return 0, 0, false
	}
	place = len(s.log)
	if w.PositionsAreReadBeforeTheCommit {
		place = i
	}
	if w.PositionsAreMarks {
		place = s.log[i].mark
	}
	return s.log[i].id, place, true
}

// Tell sends a message, or an answer, that rests on a commit.
func (w *PromotionWorld) Tell() {
	id, place, ok := w.seen()
	if !ok {
		return
	}
	if w.SomeMessagesHaveNoPosition && w.r.IntN(3) == 0 {
		place = 0
	}
	now, _ := w.state(w.primary())
	w.flight = append(w.flight, telling{to: w.r.IntN(listeners), commit: id, epoch: now.epoch, place: place})
}

// TellStill lets the former primary, which nothing has ended, commit and send a message.
func (w *PromotionWorld) TellStill() {
	if w.former == nil || !w.TheFormerPrimaryGoesOn {
		return
	}
	id := w.next()
	w.former.log = append(w.former.log, record{id: id, mark: w.former.last().mark + 1})
	now, _ := w.state(w.former)
	t := telling{to: w.r.IntN(listeners), commit: id, epoch: now.epoch, place: len(w.former.log)}
	if w.PositionsAreMarks {
		t.place = w.former.last().mark
	}
	w.flight = append(w.flight, t)
}

// Deliver delivers a message, late or again. One of an earlier epoch than the known one counts for nothing.
func (w *PromotionWorld) Deliver() {
	if len(w.flight) == 0 {
		return
	}
	i := w.r.IntN(len(w.flight))
	m := w.flight[i]
	if w.r.IntN(4) > 0 {
		w.flight = slices.Delete(w.flight, i, i+1)
	}
	o := &w.others[m.to]
	if m.epoch < o.epoch && !w.LateMessagesCount {
		return
	}
	if m.epoch > o.epoch { // it is told first
		return
	}
	o.relies[m.commit], o.place = true, max(o.place, m.place)
	if !w.PositionsAreStoredLater {
		o.stored = o.place
	}
}

// Bookmark tells a number of the sequence mark that is on the primary's disk, to a deployment or to a client.
func (w *PromotionWorld) Bookmark() {
	s := w.primary()
	now, _ := w.state(s)
	d := w.r.IntN(listeners + 1)
	if s.promoted || d < listeners && w.others[d].epoch != now.epoch {
		return
	}
	if d < listeners {
		w.others[d].mark, w.others[d].stored = s.last().mark, w.others[d].place
		return
	}
	if w.client.epoch != now.epoch {
		w.client.epoch = now.epoch
		clear(w.client.saw)
	}
	for _, r := range s.log {
		if w.client.saw[r.id] = !w.waiting[r.id]; w.waiting[r.id] {
			break
		}
	}
}

// Snapshot takes a snapshot of the primary's volume.
func (w *PromotionWorld) Snapshot() { w.snapshot.log = slices.Clone(w.primary().log) }

// Restart ends the processes of another deployment.
func (w *PromotionWorld) Restart() {
	o := &w.others[w.r.IntN(listeners)]
	o.place = o.stored
}

// Promote promotes a standby, or starts the leader again as one and promotes it.
func (w *PromotionWorld) Promote() {
	to := w.r.IntN(servers)
	named := w.standbys()[to] && (w.caughtUp || w.TheNamedHaveNotCaughtUp)
	if to != w.leader && !named && !w.OthersArePromoted {
		return
	}
	former := &pgServer{log: slices.Clone(w.primary().log)}
	if w.primary().promoted {
		former = nil // no process has told anything about it
	}
	if to == w.leader && w.SnapshotsAreStarted && w.r.IntN(2) == 0 {
		w.nodes[to].log = slices.Clone(w.snapshot.log)
	} else if to == w.leader {
		former = w.former
	}
	w.promote(to, former)
}

func (w *PromotionWorld) promote(to int, former *pgServer) {
	w.leader, w.former = to, former
	s := w.primary()
	s.promoted, s.fork, s.timeline = true, len(s.log), s.last().timeline+1
	clear(w.waiting)
	w.names = w.standbys()
	for i := range w.nodes { // the others follow
		if o := &w.nodes[i]; i != to {
			o.log, o.promoted = slices.Clone(o.log[:o.common(s)]), false
		}
	}
	w.compared, w.caughtUp = false, false
	w.count["promoted"]++
}

// Notice begins an epoch. All deployments are waited for, until each has compared or is excused.
func (w *PromotionWorld) Notice() {
	s := w.primary()
	if !s.promoted {
		return
	}
	was, waits := w.state(s)
	unfinished := [listeners]bool{waits[0].on, waits[1].on}
	fork := s.left()
	switch {
	case w.TheLastPromotionCounts:
		fork = s.fork
	case w.PlacesBehindThePromotionCount:
		fork = len(s.log)
	}
	last := s.log[fork-1]
	b := &beginning{
		epoch: w.next(), was: was.epoch, fork: fork, mark: last.logged,
		waited: last.named[w.leader] || last.by == w.leader, unfinished: unfinished,
	}
	if w.TheEpochStays {
		b.epoch = was.epoch
	}
	s.promoted = false
	w.append(record{begins: b})
}

// Ask announces the epoch to a deployment, which stores it and answers with the greatest position of the
// epoch that it knew before.
func (w *PromotionWorld) Ask() {
	s, d := w.primary(), w.r.IntN(listeners)
	now, waits := w.state(s)
	o := &w.others[d]
	if s.promoted || now.was == 0 || !waits[d].on {
		return
	}
	if w.KindsAreReadFirst && o.epoch < now.epoch && w.early[d] == nil {
		w.early[d] = &answer{d, now.epoch, w.refersTo(d)}
		return
	}
	if w.SilenceIsAnAnswer && w.r.IntN(4) == 0 {
		w.excuse(d)
		return
	}
	knew, place, mark := o.epoch, o.place, o.mark
	if o.epoch < now.epoch {
		*o = heard{epoch: now.epoch, relies: o.relies}
	}
	said := answer{d, now.epoch, w.refersTo(d)}
	if first := w.early[d]; first != nil {
		said.refersTo, w.early[d] = first.refersTo, nil
	}
	w.answers = append(w.answers, said)
	if w.r.IntN(3) == 0 && !w.TheEpochStays {
		return // the answer is lost: what it would have shown is forgotten
	}
	fits := place <= now.fork
	if w.PositionsAreMarks {
		fits = place <= now.mark
	}
	same := knew == now.was || w.NumbersOfAnyEpochCount
	finished := !now.unfinished[d] || w.UnfinishedComparisonsAreOver
	switch {
	case w.evidence == MarksUnderSynchronousReplication && knew == now.was && finished && mark <= now.mark &&
		now.waited,
		w.evidence == PositionsOfAllMessages && same && finished && fits:
		if w.excuse(d); w.OneAnswerIsEnough {
			w.excuse(1 - d)
		}
	}
}

// refersTo are the kinds to which the rows of a deployment refer.
func (w *PromotionWorld) refersTo(d int) (out [kinds]bool) {
	for id := range w.others[d].relies {
		if !w.OnlyKeptRowsCount || w.has(id) {
			out[id%kinds] = true
		}
	}
	return out
}

// Learn takes an answer, late or again. One of an earlier epoch counts for nothing.
func (w *PromotionWorld) Learn() {
	if len(w.answers) == 0 {
		return
	}
	i := w.r.IntN(len(w.answers))
	a := w.answers[i]
	if w.r.IntN(3) > 0 {
		w.answers = slices.Delete(w.answers, i, i+1)
	}
	s := w.primary()
	now, waits := w.state(s)
	if w.evidence == KindsOfAnswers && !s.promoted && waits[a.by].on &&
		(a.epoch == now.epoch || w.AnswersOfAnyEpochCount) {
		w.append(record{answered: 1 + a.by, refersTo: a.refersTo})
	}
}

func (w *PromotionWorld) excuse(d int) {
	w.append(record{confirms: 1 + d})
	w.count["excused"]++
}

// Compare lets a deployment that knows the epoch compare: what rests on lost commits is established again, or
// reported.
func (w *PromotionWorld) Compare() {
	s, d := w.primary(), w.r.IntN(listeners)
	now, waits := w.state(s)
	if o := &w.others[d]; !s.promoted && waits[d].on && o.epoch == now.epoch {
		maps.DeleteFunc(o.relies, func(id int, _ bool) bool { return !w.has(id) })
		if w.append(record{confirms: 1 + d}); w.evidence == PositionsOfAllMessages {
			o.place = max(o.place, len(s.log))
			o.stored = o.place
		}
		w.compared = true
		w.count["compared"]++
	}
}

func (w *PromotionWorld) has(id int) bool {
	return slices.ContainsFunc(w.primary().log, func(r record) bool { return r.id == id })
}

// Delete deletes a resource of a kind for which no deployment is waited for. A client goes on with its token
// in the epoch of which it is.
func (w *PromotionWorld) Delete() {
	s, k := w.primary(), w.r.IntN(kinds)
	now, waits := w.state(s)
	if s.promoted || waits[0].holds(k) || waits[1].holds(k) {
		return
	}
	for _, id := range sorted(w.client.saw) {
		if w.client.saw[id] && w.client.epoch == now.epoch && !w.compared && !w.has(id) {
			w.report("I24: a client goes on behind the lost commit %d", id)
		}
	}
	for d, o := range w.others {
		for _, id := range sorted(o.relies) {
			if id%kinds == k && !w.has(id) {
				w.report("I2: a resource is deleted, and rows of %d rest on the lost commit %d", d, id)
			}
		}
	}
	if w.count["deleted"]++; waits[0].on || waits[1].on {
		w.count["deleted before the comparisons"]++
	}
}

// Rest ends all faults: everybody answers, and nothing waits.
func (w *PromotionWorld) Rest() {
	w.former = nil
	w.Notice()
	for range 60 {
		w.Ask()
		w.Compare()
		w.Replicate()
	}
	if _, waits := w.state(w.primary()); waits != [listeners]waiting{} {
		w.report("I13: a deployment is waited for at rest")
	}
	w.Delete()
}
