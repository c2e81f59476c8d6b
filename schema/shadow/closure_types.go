package shadow

import (
	"slices"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// member is a resource that goes: the root of a deletion, or what cascades with it inside this database. Its shadow
// is locked FOR UPDATE, so nothing new can refer to it, and what refers to it already can be read.
type member struct {
	id    int64
	uid   uuid.UUID
	kind  int32
	name  string
	state State
	shard int16
	// protected: block_deletion is set.
	protected bool
	// later: it has local holders that act after this transaction.
	later bool
	why   reason
}

// edge is a local reference to a member.
type edge struct {
	targetID  int64
	holderID  int64
	fieldID   int32
	behaviour schema.Behaviour
}

// outsider is a local holder that blocks a member and does not go with it.
type outsider struct {
	edge
	uid  uuid.UUID
	name string
}

// closure is everything that a deletion reaches inside this database in one transaction.
type closure struct {
	members map[int64]*member
	unsets  []edge     // their holders are locked; some may turn out to be members
	blocks  []outsider // holders that do not go, the first maxBlockers of them
	// blocked are members that an ACTIVE holder blocks, whether or not it goes later: they are marked, not removed.
	blocked []int64
	// dangling tells that references with ALLOW_DANGLING to members exist.
	dangling bool
}

// maxBlockers is how many local blockers are looked at, of which a look-ahead may excuse all; a delete is refused for one.
const maxBlockers = PlanLimit

func idsOf(members []*member) []int64 {
	ids := make([]int64, len(members))
	for i, m := range members {
		ids[i] = m.id
	}
	return ids
}

func (c *closure) ids() []int64 {
	ids := make([]int64, 0, len(c.members))
	for id := range c.members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// How is the kind of reason for which a resource was removed. The numbers are stored.
type How int16

// A resource is removed by a user's request, by a cascade from a removed target, or with its last owner.
const (
	Requested How = 1
	Cascaded  How = 2
	Disowning How = 3
)

func (h How) String() string {
	switch h {
	case Requested:
		return "REQUESTED"
	case Cascaded:
		return "CASCADED"
	case Disowning:
		return "OWNER_GONE"
	}
	return "UNKNOWN"
}

// reason is why a deletion removes a member of its closure.
type reason struct {
	how   How
	cause *schema.Cause
	// via is the removed target or owner; nil for the root.
	via *link
}

// link identifies a removed target or owner.
type link struct {
	deploymentID int32
	uid          uuid.UUID
	name         string
}
