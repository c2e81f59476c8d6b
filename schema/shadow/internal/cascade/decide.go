package cascade

import (
	"cmp"
	"slices"
)

// bonds are the members of a closure with rows of other deployments.
type bonds struct {
	// blockaded have a blockade, confirmed, or tentative of any behaviour: undecided attempts count as committed (I3).
	Blockaded []int64
	// Entered have a holder entry: another deployment has to act.
	Entered []int64
	// Owns have ownee entries: other deployments have to drop them as owners.
	Owns []int64
}

// verdict is the decision on a closure.
type verdict struct {
	Remove []int64 // members that wait for nothing
	Mark   []int64 // members that become DELETING until others have acted or released them
	// Notify are the members of mark with local holders that act asynchronously: this deployment gets a notice too.
	Notify []int64
	// visible are the members of mark with blockers or block_deletion: readers still see them, also when their kind hides
	// resources in DELETING.
	Visible []int64
	Unset   []Edge // sorted by holder and field
	// blocks and blockaded have blockers outside the closure. A user's delete is refused for them; a cascade waits.
	Blocks    []Outsider
	Blockaded []int64
	// Protected are members that no delete takes (block_deletion).
	Protected []*Member
}

// decide divides a closure into members to remove now and members that have to wait. It follows the rule of NO ACTION
// DEFERRABLE INITIALLY DEFERRED in one PostgreSQL: references count after all cascades, so that a holder which is a member
// itself blocks nothing.
func decide(c *closure, b bonds) verdict {
	v := verdict{Blockaded: b.Blockaded, Blocks: c.Blocks}
	waits, held := map[int64]bool{}, map[int64]bool{}
	for _, ids := range [][]int64{b.Blockaded, c.Blocked} {
		for _, id := range ids {
			waits[id], held[id] = true, true
		}
	}
	for _, ids := range [][]int64{b.Entered, b.Owns} {
		for _, id := range ids {
			waits[id] = true
		}
	}
	for _, e := range c.Unsets {
		if c.Members[e.HolderID] == nil {
			v.Unset = append(v.Unset, e)
		}
	}
	slices.SortFunc(v.Unset, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.HolderID, b.HolderID), cmp.Compare(a.FieldID, b.FieldID))
	})
	for _, id := range c.IDs() {
		m := c.Members[id]
		if m.Protected {
			v.Protected = append(v.Protected, m)
		}
		if held[id] || m.Protected {
			v.Visible = append(v.Visible, id)
		}
		switch {
		case m.Later:
			v.Mark, v.Notify = append(v.Mark, id), append(v.Notify, id)
		case waits[id] || m.Protected:
			v.Mark = append(v.Mark, id)
		default:
			v.Remove = append(v.Remove, id)
		}
	}
	return v
}
