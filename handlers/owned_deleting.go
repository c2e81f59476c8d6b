package handlers

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// DeletingStore removes resources in DELETING that wait for nothing any more.
type DeletingStore interface {
	Finalise(ctx context.Context, seqs []int64) (removed int, err error)
	Disowned(ctx context.Context, to schema.DeploymentID, seqs []int64) (*shadow.Disowned, error)
	OwneesTold(ctx context.Context, d *shadow.Disowned) error
}

// OwneesPeers tells other deployments what happens to their resources' owners.
type OwneesPeers interface {
	DropOwners(ctx context.Context, at schema.DeploymentID, epoch uuid.UUID, deleted []schema.Deletion, letGo []shadow.LetGo) (failed []uuid.UUID, more bool, err error)
}

// OwnedDeleting brings deletions of this deployment to their end.
type OwnedDeleting struct {
	Store DeletingStore
	Peers OwneesPeers
}

// Handle looks again at resources in DELETING, and tells a deployment which owners of its resources are deleted. The
// work of one call is of one of the two. Pieces that fail by themselves are a schema.PartError.
func (h *OwnedDeleting) Handle(ctx context.Context, to schema.DeploymentID, work []schema.Work) error {
	seqs := make([]int64, len(work))
	for i, w := range work {
		seqs[i] = w.Seq
	}
	if len(work) > 0 && work[0].Action == schema.DropOwners {
		return h.dropOwners(ctx, to, seqs)
	}
	return h.finalise(ctx, seqs)
}

// dropOwners lets a deployment drop deleted owners, and what has lost its last one. The owners wait for its answer.
func (h *OwnedDeleting) dropOwners(ctx context.Context, to schema.DeploymentID, seqs []int64) error {
	d, err := h.Store.Disowned(ctx, to, seqs)
	if err != nil {
		return err
	}
	var failed []uuid.UUID
	for more := len(d.Owners) > 0; more; {
		if failed, more, err = h.Peers.DropOwners(ctx, to, d.Epoch, d.Owners, nil); err != nil {
			return fmt.Errorf("drop owners at %s: %w", to, err)
		}
	}
	crash.At("crash-disown-told")
	told := d.Except(failed)
	if err := h.Store.OwneesTold(ctx, told); err != nil {
		return err
	}
	if len(failed) > 0 {
		return &schema.PartError{Failed: d.Without(told), Cause: fmt.Errorf("drop owners at %s: ownees of %d of them could not be handled there", to, len(failed))}
	}
	return nil
}

// finalise removes what waits for nothing any more. Where one piece of work makes the batch fail, the others go on
// without it (I20).
func (h *OwnedDeleting) finalise(ctx context.Context, seqs []int64) error {
	_, err := h.Store.Finalise(ctx, seqs)
	switch {
	case err == nil, ctx.Err() != nil, errors.As(err, new(*shadow.UnavailableError)):
		return err
	case len(seqs) == 1:
		return &schema.PartError{Failed: seqs, Cause: err}
	}
	part := &schema.PartError{}
	for _, half := range [][]int64{seqs[:len(seqs)/2], seqs[len(seqs)/2:]} {
		var failed *schema.PartError
		if err := h.finalise(ctx, half); errors.As(err, &failed) {
			part.Failed, part.Cause = append(part.Failed, failed.Failed...), failed.Cause
		} else if err != nil {
			return err
		}
	}
	if len(part.Failed) == 0 {
		return nil
	}
	return part
}
