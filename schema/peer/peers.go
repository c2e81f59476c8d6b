package peer

import (
	"context"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// Peers calls other deployments. After an error other than *RefusedError it is unknown whether the call took
// effect.
type Peers struct {
	Establisher
	Checker
	Planner
	Recaller
}

// PeersOf makes Peers of a type that does it all.
func PeersOf(all interface {
	Establisher
	Checker
	Planner
	Recaller
},
) Peers {
	return Peers{all, all, all, all}
}

// Establisher asks targets' deployments for blockades and entries.
type Establisher interface {
	// Establish establishes all references under the attempt, or none and returns *RefusedError.
	Establish(ctx context.Context, target schema.DeploymentID, attempt AttemptID,
		refs []EstablishReference) (*Established, error)
	// WouldEstablish is Establish without storing rows.
	WouldEstablish(ctx context.Context, target schema.DeploymentID, attempt AttemptID,
		refs []EstablishReference) (*Established, error)
}

// Checker asks other deployments for the state of references and attempts.
type Checker interface {
	// Resolve returns a verdict for each question, in order.
	Resolve(ctx context.Context, holder schema.DeploymentID, questions []Question) (*Answers, error)
	// CheckReferences returns the states there of references of this deployment, in order.
	CheckReferences(ctx context.Context, at schema.DeploymentID, refs []CheckedReference) ([]Known, error)
	// WouldCheckOwners is CheckOwners without writing ownee entries.
	WouldCheckOwners(ctx context.Context, at schema.DeploymentID, questions []OwnerQuestion) (*OwnerAnswers, error)
}

// Recaller asks deployments about their rights to block resources of this one.
type Recaller interface {
	// Recall returns an answer for each question, in order.
	Recall(ctx context.Context, holder schema.DeploymentID, asked []Recall) (*Recalled, error)
}

// Planner asks other deployments for the reach of a deletion.
type Planner interface {
	// Plan returns the effects there of a deletion of targets.
	Plan(ctx context.Context, at schema.DeploymentID, q PlanQuestion) (*Plan, error)
	// Trace returns, for resources there, the targets and owners whose deletion would remove them.
	Trace(ctx context.Context, at schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]Trace, error)
}
