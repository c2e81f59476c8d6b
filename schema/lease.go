package schema

import (
	"errors"

	"github.com/google/uuid"
)

// ErrFenced is the error of a process whose lease has expired: other processes may have taken over its work,
// and none of its transactions commits until it joins again.
var ErrFenced = errors.New("the lease of this process has expired")

// Grant is the part of the ring of a deployment that a process holds.
type Grant struct {
	// Member identifies the process from its last join on. It is the term of its shards: when the lease
	// expires, no transaction under this term commits any more.
	Member uuid.UUID
	Shards []uint32
	// Surplus are the shards that other processes should have: they are released once no handler works on
	// them.
	Surplus []uint32
}

// LeadShard is the shard of the process that leads the deployment: the registry has the address of that
// process.
const LeadShard = 0
