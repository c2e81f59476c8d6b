package handlers

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// Pauses has the pauses of an operator.
type Pauses interface {
	// CheckHandler fails while a handler is paused, as a whole or for a deployment.
	CheckHandler(ctx context.Context, handler schema.Handler, of schema.DeploymentID) error
}

// PausableTable handles outstanding work unless its handler is paused. The work waits in the database.
type PausableTable struct {
	*Table
	Pauses Pauses
}

// Handle is Table.Handle.
func (t PausableTable) Handle(ctx context.Context, deployment schema.DeploymentID,
	work []schema.Work,
) (waiting []int64, err error) {
	for _, h := range []schema.Handler{schema.OwnedPending, schema.OwnedDeleting} {
		for _, w := range work {
			if t.handlerOf(w.Action) != h {
				continue
			}
			if err := t.Pauses.CheckHandler(ctx, h, deployment); err != nil {
				return nil, err
			}
			break
		}
	}
	return t.Table.Handle(ctx, deployment, work)
}

// handlerOf names the handler of an action: the names of tasks begin with it.
func (t *Table) handlerOf(action schema.Action) schema.Handler {
	if strings.HasPrefix(t.Task(action), "owned_deleting") {
		return schema.OwnedDeleting
	}
	return schema.OwnedPending
}

// PausableResolve resolves expired blockades unless owned pending is paused.
type PausableResolve struct {
	Handler *Resolve
	Pauses  Pauses
}

// Expired is Resolve.Expired.
func (h PausableResolve) Expired(ctx context.Context) ([]schema.DeploymentID, error) {
	return h.Handler.Expired(ctx)
}

// Resolve is Resolve.Resolve.
func (h PausableResolve) Resolve(ctx context.Context, holder schema.DeploymentID) error {
	if err := h.Pauses.CheckHandler(ctx, schema.OwnedPending, holder); err != nil {
		return err
	}
	return h.Handler.Resolve(ctx, holder)
}

// PausableSubscribedDeleting acts upon deletions unless subscribed deleting is paused. They stay
// unacknowledged.
type PausableSubscribedDeleting struct {
	*SubscribedDeleting
	Pauses Pauses
}

// Handle is SubscribedDeleting.Handle.
func (h PausableSubscribedDeleting) Handle(ctx context.Context, from schema.DeploymentID, deletions []schema.Deletion,
	position string, earlier []uuid.UUID, again bool,
) (map[uuid.UUID]error, error) {
	if err := h.Pauses.CheckHandler(ctx, schema.SubscribedDeleting, from); err != nil {
		return nil, err
	}
	return h.SubscribedDeleting.Handle(ctx, from, deletions, position, earlier, again)
}
