package handlers

import (
	"context"

	"github.com/db-controller/db-controller/schema"
)

// RightStore has the rights of this deployment to block resources of others without asking.
type RightStore interface {
	// LookAtRights returns the rights of pieces of work that are not needed any more, and removes the work.
	LookAtRights(ctx context.Context, seqs []int64) error
}

// LookAtRight returns rights that are not needed any more.
type LookAtRight struct{ Store RightStore }

// Handle is Handler.
func (h *LookAtRight) Handle(ctx context.Context, _ schema.DeploymentID, seqs []int64) ([]int64, error) {
	return nil, h.Store.LookAtRights(ctx, seqs)
}
