package cascade

import (
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
	// Protected: block_deletion is set.
	Protected bool
	// later: it has local holders that act after this transaction.
	Later bool
	Why   Reason
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

// closure is everything that a deletion reaches inside this database in one transaction.
type closure struct {
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

func idsOf(members []*Member) []int64 {
	ids := make([]int64, len(members))
	for i, m := range members {
		ids[i] = m.ID
	}
	return ids
}

func (c *closure) IDs() []int64 {
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
	// via is the removed target or owner; nil for the root.
	Via *link
}

// link identifies a removed target or owner.
type link struct {
	deploymentID int32
	uid          uuid.UUID
	name         string
}
