package handlers

import (
	"context"
	"fmt"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// CheckOwnersStore has the owners that have to be checked, and settles the answers.
type CheckOwnersStore interface {
	OwnersToCheck(ctx context.Context, at schema.DeploymentID, seqs []int64) (*peer.OwnersToCheck, error)
}

// CheckOwnersPeers asks the owners' deployment.
type CheckOwnersPeers interface {
	CheckOwners(ctx context.Context, at schema.DeploymentID, questions []peer.OwnerQuestion) (*peer.OwnerAnswers, error)
}

// CheckOwners asks another deployment whether owners exist there, and settles its answers (I16, I17): an
// owner that exists is pinned, an absent owner is dropped. An ownee that fails by itself keeps no other one
// back (I20).
type CheckOwners struct {
	Store CheckOwnersStore
	Peers CheckOwnersPeers
}

// Handle is Handler. It asks twice: an owner whose uid is unknown is asked about by its name first, and then
// by the uid that was learned. Pieces that still wait after that are for owners that may still come, or for
// unknown answers.
func (h *CheckOwners) Handle(ctx context.Context, at schema.DeploymentID, seqs []int64) (waiting []int64, err error) {
	return bisect(ctx, seqs, func(seqs []int64) ([]int64, error) {
		left, err := h.check(ctx, at, seqs)
		if err != nil || len(left) == 0 {
			return nil, err
		}
		return h.check(ctx, at, left)
	})
}

func (h *CheckOwners) check(ctx context.Context, at schema.DeploymentID, seqs []int64) (waiting []int64, err error) {
	c, err := h.Store.OwnersToCheck(ctx, at, seqs)
	if err != nil {
		return nil, batchError{err}
	}
	answers := &peer.OwnerAnswers{}
	if len(c.Questions) > 0 {
		if answers, err = h.Peers.CheckOwners(ctx, at, c.Questions); err != nil {
			return nil, batchError{fmt.Errorf("check owners at %s: %w", at, err)}
		}
	}
	crash.At("crash-owners-answered")
	return c.Settle(ctx, answers)
}
