package handlers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// SubscribedStore does in this database what deletions elsewhere ask of it.
type SubscribedStore interface {
	// PresentEpoch is that of the database, as far as it was noticed.
	PresentEpoch() uuid.UUID
	// Act answers the uids for which something failed; everything else is done.
	Act(ctx context.Context, from schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]error, error)
}

// Acknowledger tells a deployment what is done.
type Acknowledger interface {
	Acknowledge(ctx context.Context, target schema.DeploymentID, epoch uuid.UUID, position string, except []uuid.UUID) error
}

// SubscribedDeleting cascades and unsets for deletions seen in any interested deployment.
type SubscribedDeleting struct {
	Store SubscribedStore
	Peers Acknowledger
}

// Handle acts upon deletions at a deployment and, when a position is given, acknowledges everything up to it except
// what failed, now or earlier. A crash in between costs the batch a second time, without effect. It answers what
// failed now.
func (h *SubscribedDeleting) Handle(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion, position string, earlier []uuid.UUID) (map[uuid.UUID]error, error) {
	uids := make([]uuid.UUID, len(deletions))
	for i, d := range deletions {
		uids[i] = d.UID
	}
	epoch := h.Store.PresentEpoch() // before: what is lost in a failover counts as not done
	failed, err := h.Store.Act(ctx, from, uids)
	if err != nil {
		return nil, fmt.Errorf("act upon deletions of %s: %w", from, err)
	}
	if position == "" {
		return failed, nil
	}
	except := slices.Concat(earlier, slices.Collect(maps.Keys(failed)))
	if err := h.Peers.Acknowledge(ctx, from, epoch, position, except); err != nil {
		return nil, fmt.Errorf("acknowledge deletions of %s: %w", from, err)
	}
	return failed, nil
}
