package handlers

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// ConfirmAgainStore compares the references to another deployment after a failover, here or there.
type ConfirmAgainStore interface {
	// ConfirmAgain compares and repairs. It returns the epochs in which it compared, and fails with
	// peer.ErrPassGone when the work is done or replaced.
	ConfirmAgain(ctx context.Context, at schema.DeploymentID, seq int64) (peer.ComparedEpochs, error)
	// Recovered removes the work.
	Recovered(ctx context.Context, seq int64) error
}

// ConfirmAgainPeers notifies another deployment that the references to it are compared.
type ConfirmAgainPeers interface {
	// ConfirmEpoch names the epochs that were compared: of the other deployment's database, and of this
	// one's.
	ConfirmEpoch(ctx context.Context, at schema.DeploymentID, epoch, selfEpoch uuid.UUID) error
}

// ConfirmAgain compares the references to resources of another deployment with the records there, establishes
// lost ones again, and confirms that: until then nothing is deleted there.
type ConfirmAgain struct {
	Store ConfirmAgainStore
	Peers ConfirmAgainPeers
}

// Handle is Handler.
func (h *ConfirmAgain) Handle(ctx context.Context, at schema.DeploymentID, seqs []int64) ([]int64, error) {
	return nil, each(seqs, func(seq int64) error { return unlessGone(h.confirm(ctx, at, seq)) })
}

func (h *ConfirmAgain) confirm(ctx context.Context, at schema.DeploymentID, seq int64) error {
	compared, err := h.Store.ConfirmAgain(ctx, at, seq)
	if err != nil {
		return err
	}
	if err := h.Peers.ConfirmEpoch(ctx, at, compared.There, compared.Own); err != nil {
		return fmt.Errorf("confirm references at %s: %w", at, err)
	}
	return h.Store.Recovered(ctx, seq)
}

// each does pieces one by one. A piece that fails keeps no other one back (I20).
func each(seqs []int64, do func(seq int64) error) (err error) {
	for _, seq := range seqs {
		err = errors.Join(err, do(seq))
	}
	return err
}

// unlessGone is no error for a pass that has ended, or that another one has replaced: nothing is left to do.
func unlessGone(err error) error {
	if errors.Is(err, peer.ErrPassGone) {
		return nil
	}
	return err
}
