package shadow

import (
	"cmp"
	"slices"
)

// bonds tell which members of a closure are tied to other deployments.
type bonds struct {
	// blockaded have a blockade, confirmed or tentative of any behaviour: what is undecided counts as live (I3).
	blockaded []int64
	// entered have a holder deployment entry: somebody elsewhere has to act.
	entered []int64
	// owns have ownee entries: deployments have to be told to drop them as owners.
	owns []int64
}

// verdict is what becomes of a closure.
type verdict struct {
	remove []int64 // nothing to wait for
	mark   []int64 // DELETING until others have acted or let go
	// notify are those of mark with local holders that act later: this deployment is told of them as well.
	notify []int64
	// visible are those of mark that something holds back: readers go on to see them, whatever their kind says.
	visible []int64
	unset   []edge // sorted by holder and field
	// blocks and blockaded are held from outside. A user's delete is refused for them; a cascade waits.
	blocks    []outsider
	blockaded []int64
	// protected are members that no delete takes (block_deletion).
	protected []*member
}

// decide settles what may go at once and what has to wait. It is the rule of one PostgreSQL with NO ACTION DEFERRABLE
// INITIALLY DEFERRED: what counts is who still refers after everything that cascades is gone, so a holder that goes
// itself blocks nothing.
func decide(c *closure, b bonds) verdict {
	v := verdict{blockaded: b.blockaded, blocks: c.blocks}
	waits, held := map[int64]bool{}, map[int64]bool{}
	for _, ids := range [][]int64{b.blockaded, c.blocked} {
		for _, id := range ids {
			waits[id], held[id] = true, true
		}
	}
	for _, ids := range [][]int64{b.entered, b.owns} {
		for _, id := range ids {
			waits[id] = true
		}
	}
	for _, e := range c.unsets {
		if c.members[e.holderID] == nil {
			v.unset = append(v.unset, e)
		}
	}
	slices.SortFunc(v.unset, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.holderID, b.holderID), cmp.Compare(a.fieldID, b.fieldID))
	})
	for _, id := range c.ids() {
		m := c.members[id]
		if m.protected {
			v.protected = append(v.protected, m)
		}
		if held[id] || m.protected {
			v.visible = append(v.visible, id)
		}
		switch {
		case m.later:
			v.mark, v.notify = append(v.mark, id), append(v.notify, id)
		case waits[id] || m.protected:
			v.mark = append(v.mark, id)
		default:
			v.remove = append(v.remove, id)
		}
	}
	return v
}
