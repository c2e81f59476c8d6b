package handlers

import (
	"context"

	"github.com/db-controller/db-controller/schema"
)

// VerifyBlockadesStore compares the blockades of another deployment's resources after a failover, here or
// there.
type VerifyBlockadesStore interface {
	// VerifyBlockades asks the other deployment, removes blockades without a reference, and removes the work.
	// It fails with peer.ErrPassGone when the work is done or replaced.
	VerifyBlockades(ctx context.Context, of schema.DeploymentID, seq int64) error
}

// VerifyBlockades compares the blockades here with the references of another deployment.
type VerifyBlockades struct{ Store VerifyBlockadesStore }

// Handle is Handler.
func (h *VerifyBlockades) Handle(ctx context.Context, of schema.DeploymentID, seqs []int64) ([]int64, error) {
	return nil, each(seqs, func(seq int64) error { return unlessGone(h.Store.VerifyBlockades(ctx, of, seq)) })
}
