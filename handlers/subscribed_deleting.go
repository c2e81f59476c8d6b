package handlers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema"
)

// SubscribedStore does in this database what deletions elsewhere ask of it.
type SubscribedStore interface {
	// PresentEpoch is that of the database, as far as it was noticed.
	PresentEpoch() uuid.UUID
	// ActFor answers the uids for which something failed, or is not finished; everything else is done.
	ActFor(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion, patience time.Duration) (map[uuid.UUID]error, error)
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

// How long one run goes on with deletions that have many holders: when they are new, which keeps others waiting, and when
// they are handled again, beside those.
const (
	patienceNew   = 25 * time.Millisecond
	patienceAgain = 2 * time.Second
)

// Handle acts upon deletions at a deployment and, when a position is given, acknowledges everything up to it except
// what failed, now or earlier. A crash in between costs the batch a second time, without effect. It answers what failed
// now; and with schema.ErrUnfinished what has many holders, which goes on when it is handled again.
func (h *SubscribedDeleting) Handle(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion, position string, earlier []uuid.UUID, again bool) (map[uuid.UUID]error, error) {
	epoch := h.Store.PresentEpoch() // before: what is lost in a failover counts as not done
	patience := patienceNew
	if again {
		patience = patienceAgain
	}
	failed, err := h.Store.ActFor(ctx, from, deletions, patience)
	if err != nil {
		return nil, fmt.Errorf("act upon deletions of %s: %w", from, err)
	}
	if len(deletions) > 0 {
		crash.At("crash-act-committed")
	}
	if position == "" {
		return failed, nil
	}
	except := slices.Concat(earlier, slices.Collect(maps.Keys(failed)))
	if err := h.Peers.Acknowledge(ctx, from, epoch, position, except); err != nil {
		return nil, fmt.Errorf("acknowledge deletions of %s: %w", from, err)
	}
	crash.At("crash-act-acknowledged")
	return failed, nil
}
