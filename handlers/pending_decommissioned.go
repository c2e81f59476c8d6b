package handlers

import (
	"context"

	"github.com/db-controller/db-controller/schema"
)

// CleanUpStore removes the rows of a decommissioned deployment.
type CleanUpStore interface {
	CleanUpDecommissioned(ctx context.Context, deployment schema.DeploymentID) error
}

// CleanUpDecommissioned removes the rows of a decommissioned deployment here, and the references to it. One
// run is for all pieces of work.
type CleanUpDecommissioned struct{ Store CleanUpStore }

// Handle is Handler.
func (h *CleanUpDecommissioned) Handle(ctx context.Context, deployment schema.DeploymentID,
	_ []int64,
) ([]int64, error) {
	return nil, h.Store.CleanUpDecommissioned(ctx, deployment)
}
