package handlers

import (
	"context"
	"fmt"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// UpgradeOwnersStore has the version that owner references to resources of this deployment should name.
type UpgradeOwnersStore interface {
	// Upgrade returns nil when the work is done already.
	Upgrade(ctx context.Context, seqs []int64) (*peer.Upgrade, error)
	// Upgraded removes the work.
	Upgraded(ctx context.Context, seqs []int64) error
}

// UpgradeOwnersPeers writes it at the ownees' deployment, some owner references a call.
type UpgradeOwnersPeers interface {
	// UpgradeOwners returns the number of owner references that are still to be upgraded.
	UpgradeOwners(ctx context.Context, at schema.DeploymentID, u *peer.Upgrade) (remaining int64, err error)
}

// UpgradeOwners has the ownees' deployment write the version that this deployment runs into its owner
// references.
type UpgradeOwners struct {
	Store UpgradeOwnersStore
	Peers UpgradeOwnersPeers
}

// Handle is Handler.
func (h *UpgradeOwners) Handle(ctx context.Context, at schema.DeploymentID, seqs []int64) ([]int64, error) {
	u, err := h.Store.Upgrade(ctx, seqs)
	if err != nil || u == nil {
		return nil, err
	}
	for {
		remaining, err := h.Peers.UpgradeOwners(ctx, at, u)
		if err != nil {
			return nil, fmt.Errorf("upgrade owner references at %s: %w", at, err)
		}
		if remaining == 0 {
			return nil, h.Store.Upgraded(ctx, seqs)
		}
	}
}
