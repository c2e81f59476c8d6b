package schema

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Event is what a watch delivers: items, the end of the snapshot, a bookmark, or items and a bookmark. A watch delivers the state at one
// moment, then one end of the snapshot, then everything that happens after it, in order, each once, without gap.
type Event[T any] struct {
	Items         []T
	EndOfSnapshot bool
	// Token resumes the watch after everything that was delivered so far, these items included; empty where more of the
	// same transactions is to come.
	Token string
}

// Action is a kind of outstanding work. The numbers are stored.
type Action int16

// Confirm, Release and LetGo are messages owed to another deployment; Finalise looks again at a resource in DELETING.
// CheckOwners asks for a resource's owners, DropOwners tells that an owner goes, UpgradeOwners tells a new version, and
// Derive takes the references out of resources anew. Retire works off what a decommissioned deployment left.
const (
	Confirm       Action = 1
	Release       Action = 2
	Finalise      Action = 3
	CheckOwners   Action = 4
	DropOwners    Action = 5
	LetGo         Action = 6
	UpgradeOwners Action = 7
	Derive        Action = 8
	Retire        Action = 9
	// AnnounceEpoch tells that the database was failed over; ConfirmAgain compares references with what their targets'
	// deployment has, and VerifyBlockades what a holders' deployment has here with what it refers to.
	AnnounceEpoch   Action = 10
	ConfirmAgain    Action = 11
	VerifyBlockades Action = 12
)

var actionNames = map[Action]string{
	Confirm: "confirm", Release: "release", Finalise: "finalise", CheckOwners: "check_owners", DropOwners: "drop_owners",
	LetGo: "let_go", UpgradeOwners: "upgrade_owners", Derive: "derive", Retire: "retire",
	AnnounceEpoch: "announce_epoch", ConfirmAgain: "confirm_again", VerifyBlockades: "verify_blockades",
}

func (a Action) String() string {
	if name, ok := actionNames[a]; ok {
		return name
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

// ErrUnfinished says that there is more to do than one run takes: it goes on, beside what is small.
var ErrUnfinished = errors.New("there is more to do")

// Deletion is a resource of some deployment whose holders have to act. It comes again, with a greater number, when there
// are more of them.
type Deletion struct {
	Seq  int64
	Kind string
	Name string
	UID  uuid.UUID
	// Cause is shared with other deletions; nil where it is not known.
	Cause *Cause
}

// Cause is what was at the root of a deletion: somebody's request, or an owner that went. It is the same in every
// deployment that the deletion reaches.
type Cause struct {
	ID uuid.UUID
	// Root is the full name of what was deleted first, RootUID its uid, zero where that was never known.
	Root    string
	RootUID uuid.UUID
	// Actor is who asked for it, such as user/alice; empty where nobody did.
	Actor     string
	RequestID uuid.UUID // zero where the request had none
	At        time.Time // by the clock of the root's deployment
}

// PartError says that some pieces of a batch of work failed, each by itself: they are tried again. The others are done.
type PartError struct {
	Failed []int64
	Cause  error
}

func (e *PartError) Error() string {
	return fmt.Sprintf("%d pieces of work: %v", len(e.Failed), e.Cause)
}

func (e *PartError) Unwrap() error { return e.Cause }
