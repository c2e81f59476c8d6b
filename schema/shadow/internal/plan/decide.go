// Package plan decides about deletions, on values alone: Decide inside one database, Walk over all deployments, Judge and Refusal
// on the blockers that the walk found.
package plan

import (
	"cmp"
	"slices"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// Member is a resource that a deletion removes or marks: its root, or a resource that cascades with it inside this database. Its
// shadow is locked FOR UPDATE, so that no new reference to it can commit and the existing ones can be read.
type Member struct {
	ID    int64
	UID   uuid.UUID
	Kind  int32
	Name  string
	State peer.State
	Shard int16
	// Hidden: in DELETING, and seen as gone by readers.
	Hidden bool
	// Protected: block_deletion is set.
	Protected bool
	// Later: it has local holders that act after this transaction.
	Later bool
	// Rowless: it was the row of an attached table, which is deleted already.
	Rowless bool
	Why     Reason
}

// Edge is a local reference to a member.
type Edge struct {
	TargetID  int64
	HolderID  int64
	FieldID   int32
	Behaviour schema.Behaviour
}

// Outsider is a local holder that blocks a member and is not a member.
type Outsider struct {
	Edge
	UID  uuid.UUID
	Name string
}

// Closure is everything that a deletion reaches inside this database in one transaction.
type Closure struct {
	Members map[int64]*Member
	Unsets  []Edge     // their holders are locked; some may turn out to be members
	Blocks  []Outsider // holders that are no members, the first MaxBlockers of them
	// Blocked are members that an ACTIVE holder blocks, a later member or not: they are marked, not removed.
	Blocked []int64
	// Dangling reports that references with ALLOW_DANGLING to members exist.
	Dangling bool
}

// MaxBlockers is the number of local blockers that are read. A look-ahead may excuse each of them; one that is not excused
// refuses the delete.
const MaxBlockers = peer.PlanLimit

// IDs returns the ids of the members, sorted.
func (c *Closure) IDs() []int64 {
	ids := make([]int64, 0, len(c.Members))
	for id := range c.Members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Reason is why a deletion removes a member of its closure.
type Reason struct {
	How   peer.How
	Cause *schema.Cause
	// Via is the removed target or owner; nil for the root.
	Via *Link
}

// Link identifies a removed target or owner.
type Link struct {
	DeploymentID int32
	UID          uuid.UUID
	Name         string
}

// Bonds are the members of a closure with rows of other deployments.
type Bonds struct {
	// Blockaded have a blockade, confirmed, or tentative of any behaviour: undecided attempts count as committed (I3).
	Blockaded []int64
	// Entered have a holder entry: another deployment has to act.
	Entered []int64
	// Owns have ownee entries: other deployments have to drop them as owners.
	Owns []int64
}

// Verdict is the decision on a closure.
type Verdict struct {
	Remove []int64 // members that wait for nothing
	Mark   []int64 // members that become DELETING until others have acted or released them
	// Notify are the members of Mark with local holders that act asynchronously: this deployment gets a notice too.
	Notify []int64
	// Visible are the members of Mark with blockers or block_deletion: readers still see them, also when their kind hides
	// resources in DELETING.
	Visible []int64
	Unset   []Edge // sorted by holder and field
	// Blocks and Blockaded have blockers outside the closure. A user's delete is refused for them; a cascade waits.
	Blocks    []Outsider
	Blockaded []int64
	// Protected are members that no delete takes (block_deletion).
	Protected []*Member
}

// Decide divides a closure into members to remove now and members that have to wait. It follows the rule of NO ACTION
// DEFERRABLE INITIALLY DEFERRED in one PostgreSQL: references count after all cascades, so that a holder which is a member
// itself blocks nothing.
func Decide(c *Closure, b Bonds) Verdict {
	v := Verdict{Blockaded: b.Blockaded, Blocks: c.Blocks}
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
		if (held[id] || m.Protected) && !m.Rowless {
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
