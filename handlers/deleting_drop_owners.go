package handlers

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// DropOwnersStore has the deleted owners whose ownees' deployment has to be notified.
type DropOwnersStore interface {
	// Disowned reads the owners of pieces of work. An owner that is gone already is not among them.
	Disowned(ctx context.Context, to schema.DeploymentID, seqs []int64) (*peer.Disowned, error)
	// MarkOwneesNotified removes the work, and wakes the deletions of the owners, which may have waited for
	// nothing else.
	MarkOwneesNotified(ctx context.Context, d *peer.Disowned) error
}

// OwnersPeers notifies the ownees' deployment of deleted owners, and of owners that do not refer to an ownee
// any more.
type OwnersPeers interface {
	// DropOwners returns the owners with an ownee that could not be handled there, and whether the call has
	// to be repeated: it ends after a while when there are many ownees.
	DropOwners(ctx context.Context, at schema.DeploymentID, epoch uuid.UUID, deleted []schema.Deletion,
		releases []peer.OwnerRelease) (failed []uuid.UUID, more bool, err error)
}

// DropOwners has another deployment drop its owner references to deleted owners of this one, and delete the
// ownees that have lost their last owner. The owners stay in DELETING until it has answered.
type DropOwners struct {
	Store DropOwnersStore
	Peers OwnersPeers
}

// Handle is Handler. Owners with an ownee that could not be handled fail by themselves.
func (h *DropOwners) Handle(ctx context.Context, to schema.DeploymentID, seqs []int64) ([]int64, error) {
	d, err := h.Store.Disowned(ctx, to, seqs)
	if err != nil {
		return nil, err
	}
	var failed []uuid.UUID
	for more := len(d.Owners) > 0; more; {
		if failed, more, err = h.Peers.DropOwners(ctx, to, d.Epoch, d.Owners, nil); err != nil {
			return nil, fmt.Errorf("drop owners at %s: %w", to, err)
		}
	}
	crash.At("crash-disown-told")
	told := d.Except(failed)
	if err := h.Store.MarkOwneesNotified(ctx, told); err != nil {
		return nil, err
	}
	if len(failed) > 0 {
		return nil, &schema.PartError{
			Failed: d.Without(told),
			Cause:  fmt.Errorf("drop owners at %s: ownees of %d owners could not be handled there", to, len(failed)),
		}
	}
	return nil, nil
}
