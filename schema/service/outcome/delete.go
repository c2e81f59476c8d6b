package outcome

import "github.com/db-controller/db-controller/schema/peer"

// DeleteResult is the result of a delete, for metrics.
type DeleteResult string

// The results of a delete.
const (
	DeleteRemoved   DeleteResult = "removed"   // all members were removed at once
	DeleteGoesOn    DeleteResult = "deleting"  // accepted; other deployments have a part in it
	DeleteBlocked   DeleteResult = "blocked"   // references block it
	DeleteProtected DeleteResult = "protected" // block_deletion is set
	DeleteUndecided DeleteResult = "undecided" // a write was not decided in time
	// DeleteUnavailable is a delete that waits: for deployments that do not answer, or have not compared
	// after a failover, or for the operator who has paused deletions.
	DeleteUnavailable DeleteResult = "unavailable"
	DeleteNotFound    DeleteResult = "not_found" // which callers who repeat a delete get
	DeleteFailed      DeleteResult = "failed"
)

// DeleteResults are all of them.
var DeleteResults = []DeleteResult{
	DeleteRemoved, DeleteGoesOn, DeleteBlocked, DeleteProtected, DeleteUndecided,
	DeleteUnavailable, DeleteNotFound, DeleteFailed,
}

// OfDelete returns the result of a delete with this answer, or with this status.
func OfDelete(r peer.DeleteResult, err error) DeleteResult {
	switch {
	case err == nil && r.Removed:
		return DeleteRemoved
	case err == nil:
		return DeleteGoesOn
	}
	switch ReasonOf(err) {
	case "BLOCKED", "ROW_KEPT":
		return DeleteBlocked
	case "BLOCK_DELETION":
		return DeleteProtected
	case "UNDECIDED":
		return DeleteUndecided
	case "UNAVAILABLE":
		return DeleteUnavailable
	case "NOT_FOUND":
		return DeleteNotFound
	}
	return DeleteFailed
}
