package handlers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/trace"
	"github.com/db-controller/db-controller/schema"
)

// SubscribedStore acts upon the deletions of another deployment in this deployment's database.
type SubscribedStore interface {
	// ActFor returns the uids of deletions that failed or, with schema.ErrUnfinished, are not finished when
	// patience ends; all other deletions are done.
	ActFor(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion,
		patience time.Duration) (map[uuid.UUID]error, error)
	// Forget removes the stored targets of deletions, except targets that references here still name.
	Forget(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion) error
}

// PresentEpoch has the epoch of the database that this process has noticed last.
type PresentEpoch interface {
	PresentEpoch() uuid.UUID
}

// Acknowledger notifies a deployment that its deletions up to a position are acted upon here, except some.
type Acknowledger interface {
	Acknowledge(ctx context.Context, target schema.DeploymentID, epoch uuid.UUID, position string,
		except []uuid.UUID) error
}

// SubscribedDeleting cascades and unsets for the deletions of an interested deployment, and acknowledges
// them.
type SubscribedDeleting struct {
	Store SubscribedStore
	Epoch PresentEpoch
	Peers Acknowledger
}

// The time that one run takes for deletions with many holders: new deletions wait behind each other,
// deletions that are handled again wait behind none.
const (
	patienceNew   = 25 * time.Millisecond
	patienceAgain = 2 * time.Second
)

// Handle acts upon deletions of a deployment and, when a position is given, acknowledges all deletions up to
// it, except deletions that fail now or have failed earlier. Then it forgets the targets. A crash in between
// repeats the batch, without effect. It returns the deletions that fail now, and with schema.ErrUnfinished
// the deletions with more holders than one run handles.
func (h *SubscribedDeleting) Handle(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion,
	position string, earlier []uuid.UUID, again bool,
) (map[uuid.UUID]error, error) {
	ctx, end := trace.Continue(ctx, "act upon deletions", parents(deletions))
	failed, err := h.handle(ctx, from, deletions, position, earlier, again)
	end(err)
	return failed, err
}

// parents are the spans of the requests that began the deletions.
func parents(of []schema.Deletion) (out []string) {
	for _, d := range of {
		if d.Cause != nil && d.Cause.TraceParent != "" {
			out = append(out, d.Cause.TraceParent)
		}
	}
	return out
}

func (h *SubscribedDeleting) handle(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion,
	position string, earlier []uuid.UUID, again bool,
) (map[uuid.UUID]error, error) {
	epoch := h.Epoch.PresentEpoch() // before acting: effects that a failover loses are not acknowledged
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
	if position != "" {
		except := slices.Concat(earlier, slices.Collect(maps.Keys(failed)))
		if err := h.Peers.Acknowledge(ctx, from, epoch, position, except); err != nil {
			return nil, fmt.Errorf("acknowledge deletions of %s: %w", from, err)
		}
		crash.At("crash-act-acknowledged")
	}
	done := slices.DeleteFunc(slices.Clone(deletions), func(d schema.Deletion) bool { return failed[d.UID] != nil })
	// behind the acknowledgement, which its deployment waits for
	if err := h.Store.Forget(ctx, from, done); err != nil {
		return nil, fmt.Errorf("forget the deleted targets of %s: %w", from, err)
	}
	return failed, nil
}
