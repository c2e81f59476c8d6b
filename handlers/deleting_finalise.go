package handlers

import (
	"context"

	"github.com/db-controller/db-controller/schema"
)

// FinaliseStore removes resources in DELETING.
type FinaliseStore interface {
	// Finalise removes the resources of pieces of work that wait for nothing. The work is done in either
	// case: each blockade, notice and entry that a resource waits for leaves new work when it is removed.
	Finalise(ctx context.Context, seqs []int64) (removed int, err error)
}

// Finalise ends deletions of this deployment. A resource that fails by itself keeps no other one back (I20).
type Finalise struct{ Store FinaliseStore }

// Handle is Handler.
func (h *Finalise) Handle(ctx context.Context, _ schema.DeploymentID, seqs []int64) ([]int64, error) {
	return bisect(ctx, seqs, func(seqs []int64) ([]int64, error) {
		_, err := h.Store.Finalise(ctx, seqs)
		return nil, err
	})
}
