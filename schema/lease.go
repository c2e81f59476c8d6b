package schema

import (
	"errors"
	"time"

	"github.com/google/uuid"
)

// ErrFenced says that a process was given up: others may have taken its work over, and nothing that it does takes effect
// until it joins again.
var ErrFenced = errors.New("this process is not a member any more")

// Grant is what a process holds of the ring of its deployment.
type Grant struct {
	// Member is the process, since it joined last. It is the term of everything that it holds: once it is given up, nothing
	// takes effect under it any more.
	Member uuid.UUID
	Shards []uint32
	// Surplus are those of Shards that others are short of, to be released when nothing works on them any more.
	Surplus []uint32
}

// Member is a process of a deployment, for people.
type Member struct {
	Name      string
	Shards    []uint32
	JoinedAt  time.Time
	ExpiresAt time.Time
}
