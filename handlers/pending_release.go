package handlers

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// ReleasePeers removes blockades at another deployment: of dropped references by key, of aborted attempts by
// attempt.
type ReleasePeers interface {
	Release(ctx context.Context, target schema.DeploymentID, epoch uuid.UUID, keys []peer.BlockadeKey,
		attempts []peer.AttemptID) error
}

// Release notifies the targets' deployment of dropped references and aborted attempts. Messages of one
// reference may arrive in any order (I7).
type Release struct {
	Store MessageStore
	Peers ReleasePeers
}

// Handle is Handler.
func (h *Release) Handle(ctx context.Context, to schema.DeploymentID, seqs []int64) ([]int64, error) {
	m, err := h.Store.Messages(ctx, to, seqs)
	if err != nil {
		return nil, err
	}
	if len(m.Release)+len(m.Abandon) > 0 {
		if err := h.Peers.Release(ctx, to, m.Epoch, m.Release, m.Abandon); err != nil {
			return nil, fmt.Errorf("release at %s: %w", to, err)
		}
		crash.At("crash-release-told")
	}
	return nil, h.Store.Delivered(ctx, m)
}
