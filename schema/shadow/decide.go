package shadow

import (
	"cmp"
	"slices"
)

// bonds are the members of a closure with rows of other deployments.
type bonds struct {
	// blockaded have a blockade, confirmed, or tentative of any behaviour: undecided attempts count as committed (I3).
	blockaded []int64
	// entered have a holder entry: another deployment has to act.
	entered []int64
	// owns have ownee entries: other deployments have to drop them as owners.
	owns []int64
}

// verdict is the decision on a closure.
type verdict struct {
	remove []int64 // members that wait for nothing
	mark   []int64 // members that become DELETING until others have acted or released them
	// notify are the members of mark with local holders that act asynchronously: this deployment gets a notice too.
	notify []int64
	// visible are the members of mark with blockers or block_deletion: readers still see them, also when their kind hides
	// resources in DELETING.
	visible []int64
	unset   []edge // sorted by holder and field
	// blocks and blockaded have blockers outside the closure. A user's delete is refused for them; a cascade waits.
	blocks    []outsider
	blockaded []int64
	// protected are members that no delete takes (block_deletion).
	protected []*member
}

// decide divides a closure into members to remove now and members that have to wait. It follows the rule of NO ACTION
// DEFERRABLE INITIALLY DEFERRED in one PostgreSQL: references count after all cascades, so that a holder which is a member
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
