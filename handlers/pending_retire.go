package handlers

import (
	"context"

	"github.com/db-controller/db-controller/schema"
)

// RetireStore removes what is left of a decommissioned deployment.
type RetireStore interface {
	CleanUpDecommissioned(ctx context.Context, deployment schema.DeploymentID) error
}

// Retire works off what a decommissioned deployment had here, and the references to it. One run is for all pieces of work.
type Retire struct{ Store RetireStore }

// Handle is Handler.
func (h *Retire) Handle(ctx context.Context, deployment schema.DeploymentID, _ []int64) ([]int64, error) {
	return nil, h.Store.CleanUpDecommissioned(ctx, deployment)
}
