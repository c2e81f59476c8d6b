package delegation

import (
	"fmt"
	"maps"
	"slices"
)

type reference struct {
	uid                 UID
	behaviour           Behaviour
	attempt             int
	delegated, dangling bool
}

// right counts only while both epochs are the present ones.
type right struct{ theirs, own Epoch }

// target is X's row of a target of A. attempt is the attempt of the proxy's blockade; 0: there is none. The
// blockade outlives the right until no reference that was written under it is left. unused: the right was
// asked for before any reference was written under it, and X has seen no such reference yet. The blockade
// stays tentative until then.
type target struct {
	turn    Turn
	rights  [2]right
	attempt int
	unused  bool
}

type work struct {
	kind, attempt, holder int
	uid                   UID
	turn                  Turn
	epoch                 Epoch
}

const (
	confirm = iota
	release
	acquire
	look
	compare
	derive
	check
)

// holders is the database of X.
type holders struct {
	epoch, peer Epoch
	version     int
	references  map[int]reference
	targets     map[UID]target
	ending      map[UID]bool
	decided     map[int]bool
	work        map[work]bool
}

func (x *holders) copy() *holders {
	c := *x
	c.references, c.targets, c.ending = maps.Clone(x.references), maps.Clone(x.targets), maps.Clone(x.ending)
	c.decided, c.work = maps.Clone(x.decided), maps.Clone(x.work)
	return &c
}

// behaviour of the references of a holder, by the running version.
func (x *holders) behaviour(holder int) Behaviour { return Behaviour((holder + x.version) % 2) }

func (w *World) may(uid UID, b Behaviour) bool {
	t, ok := w.x.targets[uid]
	counts := func(r right) bool {
		return r != right{} && (r == right{w.x.peer, w.x.epoch} || w.GrantOfLostEpoch)
	}
	return ok && (counts(t.rights[b]) || w.OneRightIncludes && counts(t.rights[1-b]))
}

func row(uid UID) string { return fmt.Sprint("row ", uid) }

// put lets a holder refer to a target; 0: to none.
func (w *World) put(holder int, uid UID) {
	w.start("put", func(t *task) { t.put(holder, uid, false) })
}

// put is World.put; derives: the reference stays, with the behaviour of the running version.
func (t *task) put(holder int, uid UID, derives bool) (done bool) {
	w := t.w
	before, version, epoch := w.x.references[holder], w.x.version, w.x.epoch
	behaviour := w.x.behaviour(holder)
	if derives {
		if uid = before.uid; before.uid == 0 || before.behaviour == behaviour || before.dangling {
			return true
		}
		if before.delegated && w.SwitchKeepsDelegated {
			t.commit(func() {
				before.behaviour = behaviour
				w.x.references[holder] = before
			})
			return true
		}
	} else if before.uid == uid {
		return true
	}
	if uid != 0 && w.may(uid, behaviour) && !w.x.ending[uid] {
		t.pause()
		if t.delegated(holder, uid, before, version, epoch) {
			return true
		}
	}
	return t.exact(holder, uid, before, version, epoch)
}

// unchanged is the end of the checks of a write, under the locks.
func (t *task) unchanged(holder int, before reference, version int, epoch Epoch) bool {
	w := t.w
	if !t.exclude(fmt.Sprint("holder ", holder)) {
		return false
	}
	return w.x.references[holder] == before && w.x.version == version && w.x.epoch == epoch
}

// delegated writes a reference under a right: the row shared, then the check. The turn is for the bystander
// alone.
func (t *task) delegated(holder int, uid UID, before reference, version int, epoch Epoch) bool {
	w := t.w
	t.share("version")
	if w.x.ending[uid] {
		t.unlock()
		return false
	}
	t.share(row(uid))
	b, turn := w.x.behaviour(holder), w.x.targets[uid].turn
	if !w.may(uid, b) || !t.unchanged(holder, before, version, epoch) {
		t.unlock()
		return false
	}
	t.commit(func() {
		w.wroteDelegated(uid, b, turn)
		w.drop(holder)
		w.x.references[holder] = reference{uid: uid, behaviour: b, delegated: true}
		w.underReleased(holder)
		w.note("holder %d refers to %d under the %s right", holder, uid, b)
	})
	return true
}

// exact writes a reference by an attempt.
func (t *task) exact(holder int, uid UID, before reference, version int, epoch Epoch) bool {
	w := t.w
	b, theirs, attempt := w.x.behaviour(holder), w.x.peer, w.number()
	if uid != 0 {
		answer := t.ask(message{
			kind: "establish", uid: uid, holder: holder, attempt: attempt, behaviour: b,
			own: epoch,
		})
		if answer == nil || answer.verdict != "" {
			return answer != nil // a blockade that may be there is resolved
		}
		theirs = answer.theirs
	}
	t.share("version")
	if uid != 0 {
		t.share(row(uid)) // keeps the row from being removed
	}
	if !t.unchanged(holder, before, version, epoch) || uid != 0 && w.x.peer != theirs {
		t.unlock()
		return false
	}
	turn := Turn(w.number())
	t.pause()
	if _, decided := w.x.decided[attempt]; decided {
		t.unlock()
		return false
	}
	t.commit(func() {
		if _, decided := w.x.decided[attempt]; decided {
			return
		}
		w.drop(holder)
		delete(w.x.references, holder)
		if uid == 0 {
			return
		}
		w.x.decided[attempt] = true
		w.x.references[holder] = reference{uid: uid, behaviour: b, attempt: attempt}
		if _, ok := w.x.targets[uid]; !ok {
			w.x.targets[uid] = target{turn: turn}
		}
		w.x.work[work{kind: confirm, attempt: attempt, uid: uid}] = true
		w.note("holder %d refers to %d by attempt %d, %s", holder, uid, attempt, b)
	})
	return true
}

// drop is the end of a reference.
func (w *World) drop(holder int) {
	switch r := w.x.references[holder]; {
	case r.uid == 0 || r.behaviour != Block || r.dangling:
	case r.delegated:
		w.lookAt(r.uid)
	default:
		w.x.work[work{kind: release, holder: holder, attempt: r.attempt, uid: r.uid}] = true
	}
}

// do does a piece of work.
func (t *task) do(k work) {
	w := t.w
	finish := func() { t.commit(func() { delete(w.x.work, k) }) }
	switch k.kind {
	case confirm:
		t.confirm(k)
	case release:
		if a := t.ask(message{
			kind: "release", holder: k.holder, attempt: k.attempt, uid: k.uid,
			own: w.x.epoch,
		}); a != nil && a.verdict == "" {
			finish()
		}
	case acquire:
		t.acquire(k)
	case look:
		t.look(k)
	case compare:
		t.compare(k)
	case check:
		t.checkClosed(k)
	case derive:
		if t.put(k.holder, 0, true) {
			finish()
		}
	}
}

// confirm takes the grant in the transaction that ends the work.
func (t *task) confirm(k work) {
	w := t.w
	before, own := w.x.targets[k.uid], w.x.epoch
	t.pause()
	a := t.ask(message{kind: "confirm", attempt: k.attempt, uid: k.uid, own: own})
	if a == nil || a.verdict == "old" || !w.x.work[k] {
		return
	}
	t.pause()
	if a.verdict == "unknown" && !t.repairAttempt(k.attempt) {
		return
	}
	if !t.exclude(row(k.uid)) {
		return
	}
	t.commit(func() {
		row, ok := w.x.targets[k.uid]
		takes := ok && row.turn == before.turn
		if granted := a.uids[k.uid]; granted && (takes || ok && w.GrantWithoutTurn || w.RowMadeByAnswer) {
			if !ok {
				row.turn = before.turn
			}
			row.rights[Acting] = right{a.theirs, own}
			w.x.targets[k.uid] = row
			w.note("X takes the acting right to %d: %v", k.uid, row.rights[Acting])
			w.seen["acting right taken"]++
		}
		delete(w.x.work, k)
	})
}

// wants makes X acquire the right to block a target that it has a row of: because of a blocking reference, or
// (holder 1) before there is any.
func (w *World) wants(uid UID) {
	if _, ok := w.x.targets[uid]; ok && !w.may(uid, Block) {
		w.x.work[work{kind: acquire, uid: uid, holder: w.r.IntN(2)}] = true
	}
}

// acquire writes the proxy's reference, as an exact write does: established, then committed with the decision
// on its attempt, unless the row has another turn than before the question. It replaces the proxy of before.
func (t *task) acquire(k work) {
	w := t.w
	before, own, attempt, unused := w.x.targets[k.uid], w.x.epoch, w.number(), k.holder == 1
	a := t.ask(message{kind: "establish", uid: k.uid, holder: proxy, attempt: attempt, behaviour: Block, own: own})
	if a == nil {
		return // a blockade that may be there is resolved
	}
	t.pause()
	t.share("version")
	if !t.exclude(row(k.uid)) {
		return
	}
	t.commit(func() {
		delete(w.x.work, k)
		row, ok := w.x.targets[k.uid]
		_, decided := w.x.decided[attempt]
		takes := ok && (row.turn == before.turn || w.GrantWithoutTurn)
		if a.verdict != "" || decided || !takes || w.x.epoch != own || w.x.peer != a.theirs {
			return
		}
		if row.attempt != 0 && !w.EarlierProxyKept {
			w.x.work[work{kind: release, holder: proxy, attempt: row.attempt, uid: k.uid}] = true
		}
		w.x.decided[attempt], row.attempt, row.rights[Block], row.unused = true, attempt, right{a.theirs, own}, unused
		w.x.targets[k.uid] = row
		if unused {
			w.seen["unused right taken"]++
			w.lookAt(k.uid)
		} else {
			w.x.work[work{kind: confirm, attempt: attempt, uid: k.uid}] = true
		}
		w.note("X takes the right to block %d: %v by attempt %d, unused %v", k.uid, row.rights[Block], attempt, unused)
		w.seen["block right taken"]++
	})
}

// lookAt leaves a look, a row of its own: a look that has begun may have looked before.
func (w *World) lookAt(uid UID) {
	if w.x.targets[uid].attempt != 0 {
		w.x.work[work{kind: look, uid: uid, attempt: w.number()}] = true
	}
}

// ending takes the lock of a row alone. Writers that have not begun to share it go the exact way meanwhile.
func (t *task) ending(uid UID) bool {
	w := t.w
	t.commit(func() { w.x.ending[uid] = true })
	t.pause()
	return w.CloseWithoutWaiting || t.exclude(row(uid))
}

// close ends both rights under the lock of the row, with a new turn. It reports whether it had the lock.
func (t *task) closeRow(uid UID, also ...work) bool {
	w := t.w
	if !t.ending(uid) {
		return false
	}
	turn := Turn(w.number())
	t.commit(func() {
		if row, ok := w.x.targets[uid]; ok {
			if row.rights = [2]right{}; !w.ClosesWithoutTurn {
				row.turn = turn
			}
			w.x.targets[uid] = row
		}
		if !w.EndsWithoutLook {
			w.lookAt(uid)
		}
		for _, k := range also {
			w.x.work[k] = true
		}
		delete(w.x.ending, uid)
		w.note("X closes %d: turn %d", uid, turn)
	})
	return true
}

func (w *World) holds(uid UID) bool {
	for _, r := range w.x.references {
		if r.uid == uid && r.delegated && r.behaviour == Block && !r.dangling {
			return true
		}
	}
	return false
}

// look returns the right when nothing that was written under it is left: under the lock of the row, in a
// statement of its own, so that every write under the right is seen, and none follows.
func (t *task) look(k work) {
	w := t.w
	if !t.ending(k.uid) {
		return
	}
	t.free(k.uid, func() { delete(w.x.work, k) })
}

// free ends the right to block, and releases the proxy, when nothing is left that was written under it. It
// holds the lock.
func (t *task) free(uid UID, also func()) (free bool) {
	w := t.w
	if w.ReleaseBeforeEnd {
		held := w.holds(uid)
		t.unlock()
		t.pause()
		t.commit(func() { free = !held; w.freed(uid, free); also() })
		return free
	}
	held := w.holds(uid)
	t.commit(func() {
		free = !held || w.ReturnBeforeLook
		w.freed(uid, free)
		also()
	})
	return free
}

func (w *World) freed(uid UID, free bool) {
	delete(w.x.ending, uid)
	row, ok := w.x.targets[uid]
	if ok && !free && row.unused {
		w.seen["unused right used"]++
		row.unused = false
		w.x.targets[uid] = row
	}
	if !ok || !free || row.attempt == 0 {
		return
	}
	w.x.work[work{kind: release, holder: proxy, attempt: row.attempt, uid: uid}] = true
	w.note("X returns the right to block %d", uid)
	if row.attempt = 0; !w.FreeWithoutEnd {
		row.turn, row.rights[Block] = Turn(w.number()), right{}
	}
	w.x.targets[uid] = row
}

// close acts upon deletions of A: the rights end before holders are looked for, and nothing is acknowledged
// that is not closed.
func (t *task) close(m message) {
	w := t.w
	except := map[UID]bool{}
	own := w.x.epoch
	for _, uid := range slices.Sorted(maps.Keys(m.uids)) {
		if w.ActsBeforeClose {
			t.act(uid)
		}
		if !t.closeRow(uid) {
			if !w.AcknowledgesUnclosed {
				except[uid] = true
			}
			continue
		}
		t.pause()
		if !w.ActsBeforeClose && !t.act(uid) {
			except[uid] = true
		}
	}
	t.pause()
	if w.x.peer == m.theirs {
		w.send(message{kind: "acknowledge", theirs: m.theirs, own: own, made: m.made, uids: except})
	}
}

func (t *task) act(uid UID) bool {
	w := t.w
	for holder := range holdersOfX {
		if r := w.x.references[holder]; r.uid != uid || r.behaviour == Block {
			continue
		}
		if !t.exclude(fmt.Sprint("holder ", holder)) {
			return false
		}
		if r := w.x.references[holder]; r.uid != uid || r.behaviour == Block {
			t.unlock()
			continue
		}
		t.commit(func() {
			w.note("holder %d loses %d", holder, uid)
			delete(w.x.references, holder)
		})
	}
	return true
}

const holdersOfX = 3

func (w *World) receiveX(m message) {
	switch m.kind {
	case "announce A":
		if m.theirs > w.x.peer {
			w.start("epoch", func(t *task) { t.hear(m.theirs) })
		}
	case "notices":
		if m.theirs == w.x.peer {
			w.start("close", func(t *task) { t.close(m) })
		}
	case "unused":
		w.start(closesForA, func(t *task) { t.unused(m) })
	case "close":
		w.start(closesForA, func(t *task) { t.closeFor(m) })
	case "resolve":
		if m.theirs == w.x.peer {
			w.start("resolve", func(t *task) { t.resolved(m) })
		}
	}
}

// hear stores an epoch of A, under the lock that writes share, with the work to compare.
func (t *task) hear(theirs Epoch) {
	w := t.w
	if !t.exclude("version") {
		return
	}
	t.commit(func() {
		if theirs > w.x.peer {
			w.x.peer = theirs
			w.x.work[work{kind: compare, epoch: theirs}] = true
		}
	})
}

// resolved is the verdict on a blockade: an undecided attempt can never commit afterwards. A delete's
// question about the proxy recalls the right to block: it ends when nothing that was written under it is
// left, and then the verdict is gone. The sweep ends no right: an unused right stays undecided.
func (t *task) resolved(m message) {
	w := t.w
	own := w.x.epoch
	row := w.x.targets[m.uid]
	if m.sweeps && m.holder == proxy && row.attempt == m.attempt && row.unused {
		if w.UnusedIsGone {
			w.answerBlockade(m, own, "gone")
		}
		return
	}
	if !m.sweeps && m.holder == proxy && row.attempt == m.attempt {
		if !t.ending(m.uid) {
			return
		}
		if w.x.targets[m.uid].attempt == m.attempt && !t.free(m.uid, func() {}) {
			w.seen["held"]++
			w.answerBlockade(m, own, "held")
			return
		}
	}
	t.unlock()
	verdict := "gone"
	t.commit(func() {
		if _, ok := w.x.decided[m.attempt]; !ok {
			w.x.decided[m.attempt] = false
		}
		if r := w.x.references[m.holder]; r.attempt == m.attempt && r.uid == m.uid {
			verdict = "held"
		}
		if w.x.targets[m.uid].attempt == m.attempt && !w.ProxyUnknownIsGone {
			verdict = "held" // taken meanwhile
		}
	})
	w.answerBlockade(m, own, verdict)
}

func (w *World) answerBlockade(m message, own Epoch, verdict string) {
	w.send(message{
		kind: "resolved", theirs: m.theirs, holder: m.holder, attempt: m.attempt, uid: m.uid,
		verdict: verdict, own: own,
	})
}

// tidy removes the row of a target that nothing refers to, and that no message is about.
func (w *World) tidy(uid UID) {
	w.start("tidy", func(t *task) {
		if !t.exclude(row(uid)) {
			return
		}
		for _, r := range w.x.references {
			if r.uid == uid {
				t.unlock()
				return
			}
		}
		for k := range w.x.work {
			if k.uid == uid && (k.kind == acquire || k.kind == look) {
				t.unlock()
				return
			}
		}
		if w.x.targets[uid].attempt != 0 {
			t.unlock()
			return
		}
		t.commit(func() { delete(w.x.targets, uid) })
	})
}

// switchVersion exchanges the behaviours.
func (w *World) switchVersion() {
	w.start("switch", func(t *task) {
		if !t.exclude("version") {
			return
		}
		t.commit(func() {
			w.x.version++
			for holder := range holdersOfX {
				w.x.work[work{kind: derive, holder: holder}] = true
			}
		})
	})
}

// compare compares every reference with A, page by page, in the epochs of both, and confirms that.
func (t *task) compare(k work) {
	w := t.w
	theirs, own := w.x.peer, w.x.epoch
	for holder := range holdersOfX {
		t.pause()
		r := w.x.references[holder]
		if r.uid != 0 && !r.dangling && !t.checked(holder, r, own) {
			return
		}
	}
	t.commit(func() { // a right of a lost epoch is returned, if nothing needs it
		for _, uid := range slices.Sorted(maps.Keys(w.x.targets)) {
			if !w.may(uid, Block) {
				w.lookAt(uid)
			}
		}
	})
	a := t.ask(message{kind: "confirm epoch", theirs: theirs, own: own})
	if a != nil && a.verdict == "" {
		t.commit(func() { delete(w.x.work, k) })
	}
}

// checked compares one reference. It reports false when the comparison has to begin anew.
func (t *task) checked(holder int, r reference, own Epoch) bool {
	w := t.w
	row, ok := w.x.targets[r.uid]
	if !ok {
		return false
	}
	by, attempt := holder, r.attempt
	if r.delegated && r.behaviour == Block {
		by, attempt = proxy, row.attempt // if it is lost, the reference is established by itself
	}
	a := t.ask(message{kind: "check", holder: by, uid: r.uid, attempt: attempt, behaviour: r.behaviour, own: own})
	switch {
	case a == nil || a.verdict == "old" || a.theirs != w.x.peer:
		return false
	case a.verdict == "there":
		return true
	case a.verdict == "gone":
		if !t.exclude(fmt.Sprint("holder ", holder)) {
			return false
		}
		t.commit(func() {
			if w.x.references[holder] == r {
				w.note("holder %d: its reference to %d dangles", holder, r.uid)
				r.dangling = true
				w.x.references[holder] = r
			}
		})
		return true
	}
	return t.again(holder, r)
}

// again establishes a lost reference as it is stored, under a new attempt.
func (t *task) again(holder int, r reference) bool {
	w := t.w
	attempt, own := w.number(), w.x.epoch
	a := t.ask(message{
		kind: "establish", uid: r.uid, holder: holder, attempt: attempt,
		behaviour: r.behaviour, own: own,
	})
	if a == nil || a.verdict != "" {
		return false
	}
	t.share("version")
	if !t.exclude(fmt.Sprint("holder ", holder)) {
		return false
	}
	if w.x.references[holder] != r || w.x.peer != a.theirs || w.x.epoch != own {
		t.unlock()
		return false
	}
	done := false
	t.commit(func() {
		if _, decided := w.x.decided[attempt]; decided {
			return
		}
		done, w.x.decided[attempt] = true, true
		if r.delegated && r.behaviour == Block {
			w.lookAt(r.uid)
		}
		r.attempt, r.delegated = attempt, false
		w.x.references[holder] = r
		w.x.work[work{kind: confirm, attempt: attempt, uid: r.uid}] = true
	})
	return done
}

// checkClosed compares the references under the right to block a target that X has closed: an operator of A
// may have released its proxy.
func (t *task) checkClosed(k work) {
	w, own := t.w, t.w.x.epoch
	for holder := range holdersOfX {
		r := w.x.references[holder]
		if r.uid == k.uid && r.behaviour == Block && r.delegated && !r.dangling && !t.checked(holder, r, own) {
			return
		}
	}
	t.commit(func() {
		w.lookAt(k.uid) // a dangling reference needs no proxy
		delete(w.x.work, k)
	})
}

// repairAttempt compares the reference of an attempt that A does not know.
func (t *task) repairAttempt(attempt int) bool {
	w := t.w
	for holder := range holdersOfX {
		if r := w.x.references[holder]; r.attempt == attempt && r.uid != 0 && !r.dangling {
			return t.checked(holder, r, w.x.epoch)
		}
	}
	return true
}

// sendX announces the epoch of X.
func (w *World) sendX() { w.send(message{kind: "announce X", own: w.x.epoch}) }
