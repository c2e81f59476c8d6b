package delegation

import (
	"fmt"
	"maps"
	"slices"
)

// member is a write of a batch.
type member struct {
	holder    int
	uid       UID
	behaviour Behaviour
	before    reference
	turn      Turn // for the bystander alone
}

// putTogether lets holders refer to targets in one transaction, each by itself: a holder that cannot be
// written under a right goes alone.
func (w *World) putTogether(wanted map[int]UID) {
	w.start("put together", func(t *task) {
		for _, m := range t.batch(wanted) {
			t.put(m.holder, m.uid, false)
		}
	})
}

// batch writes the members that have rights, and returns the others. It locks all rows, once each, before it
// checks any right, and waits for none of them.
func (t *task) batch(wanted map[int]UID) (left []member) {
	w := t.w
	var in []member
	version, epoch := w.x.version, w.x.epoch
	for _, holder := range slices.Sorted(maps.Keys(wanted)) {
		m := member{
			holder: holder, uid: wanted[holder], behaviour: w.x.behaviour(holder),
			before: w.x.references[holder],
		}
		if m.before.uid != m.uid {
			in = append(in, m)
		}
	}
	checked := t.rights(in)
	t.share("version")
	in = t.lockAll(in, &left)
	if !w.ChecksBeforeLocks {
		checked = t.rights(in)
	}
	var stored []member
	for _, m := range in {
		if checked[m.holder] && w.x.references[m.holder] == m.before && w.x.version == version && w.x.epoch == epoch {
			m.turn = w.x.targets[m.uid].turn
			stored = append(stored, m)
		} else {
			left = append(left, m)
		}
	}
	t.commit(func() {
		for _, m := range stored {
			w.wroteDelegated(m.uid, m.behaviour, m.turn)
			w.drop(m.holder)
			w.x.references[m.holder] = reference{uid: m.uid, behaviour: m.behaviour, delegated: true}
			w.underReleased(m.holder)
			w.note("holder %d refers to %d under the %s right, in a batch of %d", m.holder, m.uid, m.behaviour,
				len(stored))
		}
		if len(stored) > 1 {
			w.seen["batch"]++
		}
	})
	return left
}

// rights reports for which members a right counts.
func (t *task) rights(members []member) map[int]bool {
	counts := map[int]bool{}
	for i, m := range members {
		counts[m.holder] = t.w.may(m.uid, m.behaviour)
		if t.w.NeighboursRightCounts {
			counts[m.holder] = counts[m.holder] || i > 0 && counts[members[i-1].holder]
		}
	}
	return counts
}

// lockAll locks the rows of the rights and of the holders. A member of which a row is locked elsewhere, or
// about to end, is left.
func (t *task) lockAll(members []member, left *[]member) (in []member) {
	w := t.w
	free := func(name string, alone bool) bool {
		l := w.lockOf(name)
		return (l.exclusive == nil || l.exclusive == t) && (!alone || len(l.shared) == 0 || len(l.shared) == 1 &&
			l.shared[t])
	}
	for _, m := range members {
		if w.x.ending[m.uid] || !free(row(m.uid), false) {
			*left = append(*left, m)
			continue
		}
		t.share(row(m.uid))
		in = append(in, m)
	}
	return slices.DeleteFunc(in, func(m member) bool {
		name := fmt.Sprint("holder ", m.holder)
		if !free(name, true) {
			*left = append(*left, m)
			return true
		}
		w.lockOf(name).exclusive = t
		return false
	})
}
