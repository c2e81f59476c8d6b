package peer

import (
	"context"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// OwnerQuestion asks the deployment of an owner whether the owner exists.
type OwnerQuestion struct {
	Kind string
	Name string
	UID  uuid.UUID // zero: unknown
	// RequiredBy is the uid of the ownee when the owner has to refer to the ownee (OwnerReference.Requires);
	// else zero.
	RequiredBy uuid.UUID
}

// OwnerVerdict answers an OwnerQuestion.
type OwnerVerdict int

// OwnerUnknown decides nothing: the question is repeated (I15).
const (
	OwnerUnknown OwnerVerdict = iota
	OwnerExists
	OwnerAbsent
	OwnerNotReferring
	OwnerCannotOwn
)

// OwnerAnswer is the state of one owner in its deployment.
type OwnerAnswer struct {
	Verdict OwnerVerdict
	UID     uuid.UUID // of an owner that exists
	Kind    string    // by its name in the version of the owner's deployment
	Noted   bool      // the ownee's deployment had an ownee entry before the question
	// Cause of the deletion of an absent owner; nil when it is unknown.
	Cause *schema.Cause
}

// OwnerAnswers are the answers to several questions, in order.
type OwnerAnswers struct {
	Answers []OwnerAnswer
	// Version that the owner's deployment runs, and the generation of its switch.
	Version    string
	Generation int64
}

// Upgrade is the version information that owner references to resources of this deployment store.
type Upgrade struct {
	Version    string
	Generation int64
	// Renamed maps the names of kinds in other versions to their names in this version.
	Renamed map[string]string
}

// OwnersToCheck are the questions to one owners' deployment that result from some pieces of work.
type OwnersToCheck struct {
	Questions []OwnerQuestion
	// Settle applies the answers, one for each question, in their order. It returns the pieces of work that
	// wait: for an owner whose uid has just become known, for a missing owner that may still come, and for an
	// unknown answer.
	Settle func(ctx context.Context, answers *OwnerAnswers) (waiting []int64, err error)
}
