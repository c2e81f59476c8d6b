package schema

import (
	"time"

	"github.com/google/uuid"
)

// Event is what a watch delivers: items, or the end of the snapshot, or a bookmark. A watch delivers the state at one
// moment, then one end of the snapshot, then everything that happens after it, in order, each once, without gap.
type Event[T any] struct {
	Items         []T
	EndOfSnapshot bool
	// Token resumes the watch after everything that was delivered so far; empty with items.
	Token string
}

// Action is a kind of outstanding work. The numbers are stored.
type Action int16

// Confirm and Release are messages owed to another deployment; Finalise looks again at a resource in DELETING.
const (
	Confirm  Action = 1
	Release  Action = 2
	Finalise Action = 3
)

func (a Action) String() string {
	switch a {
	case Confirm:
		return "confirm"
	case Release:
		return "release"
	case Finalise:
		return "finalise"
	}
	return "unknown"
}

// Work is a piece of outstanding work of one shadow, which makes it PENDING. It has no more than who it is for: what
// there is to do is read when it is done.
type Work struct {
	Seq        int64
	Action     Action
	Deployment DeploymentID
	CreatedAt  time.Time
}

// Deletion is a resource of some deployment whose holders have to act.
type Deletion struct {
	Kind string
	Name string
	UID  uuid.UUID
}
