package handlers

import (
	"context"
	"fmt"

	"github.com/db-controller/db-controller/schema"
)

// ReleaseOwner notifies the ownees' deployment that owners here do not refer to ownees there any more: it
// checks these owners again.
type ReleaseOwner struct {
	Store MessageStore
	Peers OwnersPeers
}

// Handle is Handler.
func (h *ReleaseOwner) Handle(ctx context.Context, to schema.DeploymentID, seqs []int64) ([]int64, error) {
	m, err := h.Store.Messages(ctx, to, seqs)
	if err != nil {
		return nil, err
	}
	if len(m.OwnerReleases) > 0 {
		if _, _, err := h.Peers.DropOwners(ctx, to, m.Epoch, nil, m.OwnerReleases); err != nil {
			return nil, fmt.Errorf("let go of ownees at %s: %w", to, err)
		}
	}
	return nil, h.Store.Delivered(ctx, m)
}
