package schema

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Event is an event of a watch: items, the end of the snapshot, a bookmark, or items with a bookmark. A watch
// delivers the state at one moment, then one end of the snapshot, then all later changes, in order, each
// once, without gaps.
type Event[T any] struct {
	Items         []T
	EndOfSnapshot bool
	// Token resumes the watch after all events so far, this one included; empty when more items of the same
	// transactions follow.
	Token string
}

// Action is a kind of outstanding work. The numbers are stored.
type Action int16

// Confirm, Release, ReleaseOwner, DropOwners and UpgradeOwners are messages to another deployment: attempts
// that committed, references that were dropped, owners that let go of resources, owners that were deleted,
// the version of this deployment. CheckOwners asks another deployment about the owners of a resource.
// Finalise checks whether a resource in DELETING can be removed, Derive derives the references of stored
// bodies again, and CleanUpDecommissioned removes the references from and to a decommissioned deployment.
const (
	Confirm               Action = 1
	Release               Action = 2
	Finalise              Action = 3
	CheckOwners           Action = 4
	DropOwners            Action = 5
	ReleaseOwner          Action = 6
	UpgradeOwners         Action = 7
	Derive                Action = 8
	CleanUpDecommissioned Action = 9
	// AnnounceEpoch notifies another deployment of a failover or restore of this database. ConfirmAgain
	// compares the references to another deployment with its blockades and holder entries; VerifyBlockades
	// compares the blockades and holder entries of another deployment here with its references.
	AnnounceEpoch   Action = 10
	ConfirmAgain    Action = 11
	VerifyBlockades Action = 12
	// LookAtRight looks whether the right to block a target of another deployment is needed any more.
	LookAtRight Action = 13
	// EndRights asks another deployment to end its rights to a resource here, until it says that it has.
	EndRights Action = 14
	// LookAtEntry asks another deployment whether it still refers to a resource here by acting references,
	// and removes its holder entry if not.
	LookAtEntry Action = 15
)

var actionNames = map[Action]string{
	Confirm: "confirm", Release: "release", Finalise: "finalise", CheckOwners: "check_owners",
	DropOwners:   "drop_owners",
	ReleaseOwner: "let_go", UpgradeOwners: "upgrade_owners", Derive: "derive",
	CleanUpDecommissioned: "clean_up_decommissioned",
	AnnounceEpoch:         "announce_epoch", ConfirmAgain: "confirm_again", VerifyBlockades: "verify_blockades",
	LookAtRight: "look_at_right",
	EndRights:   "end_rights", LookAtEntry: "look_at_entry",
}

func (a Action) String() string {
	if name, ok := actionNames[a]; ok {
		return name
	}
	return "unknown"
}

// Work is a piece of outstanding work of one shadow, which is PENDING while there is any. It names only the
// deployment that it is for: the handler reads the details when it does the work.
type Work struct {
	Seq        int64
	Action     Action
	Deployment DeploymentID
	CreatedAt  time.Time
}

// ErrReset says that a resume token cannot be resumed: start with a new snapshot.
var ErrReset = errors.New("the resume token cannot be resumed, start with a new snapshot")

// ErrUnfinished is the error of a handler that did a part of its work: it is called again, after shorter
// work.
var ErrUnfinished = errors.New("there is more to do")

// Deletion is a resource in DELETING whose holders in another deployment have to act. It is delivered again,
// with a greater Seq, when there are further holders.
type Deletion struct {
	Seq  int64
	Kind string
	Name string
	UID  uuid.UUID
	// Cause is shared with other deletions; nil when it is unknown.
	Cause *Cause
}

// Cause is the root of a deletion: a request of a caller, or the deletion of an owner. It is the same in
// every deployment that the deletion reaches.
type Cause struct {
	ID uuid.UUID
	// Root is the full name of the resource that was deleted first, RootUID its uid; zero when it is unknown.
	Root    string
	RootUID uuid.UUID
	// Actor is the caller, such as user/alice; empty without a request.
	Actor     string
	RequestID uuid.UUID // zero when the request had none
	At        time.Time // by the clock of the root's deployment
	// TraceParent names the span of the request in its trace, as the header traceparent does; empty without
	// one.
	TraceParent string
}

// PartError is the error of a batch of work of which some pieces failed: they are tried again. The other
// pieces are done.
type PartError struct {
	Failed []int64
	Cause  error
}

func (e *PartError) Error() string {
	return fmt.Sprintf("%d pieces of work: %v", len(e.Failed), e.Cause)
}

func (e *PartError) Unwrap() error { return e.Cause }
