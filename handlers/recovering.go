package handlers

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// RecoveringStore has what is left to be done after a failover, here or elsewhere.
type RecoveringStore interface {
	PresentEpoch() uuid.UUID
	OutdoEpoch(ctx context.Context, known uuid.UUID) error
	Announced(ctx context.Context, to schema.DeploymentID, epoch uuid.UUID) error
	ConfirmAgain(ctx context.Context, at schema.DeploymentID, seq int64) (told uuid.UUID, err error)
	VerifyBlockades(ctx context.Context, of schema.DeploymentID, seq int64) error
	Recovered(ctx context.Context, seq int64) error
}

// RecoveringPeers are told of it.
type RecoveringPeers interface {
	// AnnounceEpoch answers the epoch that is known there now.
	AnnounceEpoch(ctx context.Context, at schema.DeploymentID, epoch uuid.UUID) (known uuid.UUID, err error)
	// ConfirmEpoch says in which epoch of it, as far as one was told, and in which of this database all is compared.
	ConfirmEpoch(ctx context.Context, at schema.DeploymentID, epoch, own uuid.UUID) error
}

// recover does what a failover has left, with one deployment.
func (h *OwnedPending) recover(ctx context.Context, with schema.DeploymentID, work []schema.Work) error {
	var failed error
	for _, w := range work {
		var err error
		switch w.Action {
		case schema.AnnounceEpoch:
			err = h.announce(ctx, with)
		case schema.ConfirmAgain:
			err = h.confirmAgain(ctx, with, w.Seq)
		case schema.VerifyBlockades:
			err = h.Store.VerifyBlockades(ctx, with, w.Seq)
		default:
		}
		if errors.Is(err, shadow.ErrPassGone) {
			err = nil // it is done, or another one has taken its place
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func (h *OwnedPending) announce(ctx context.Context, to schema.DeploymentID) error {
	epoch := h.Store.PresentEpoch()
	known, err := h.Peers.AnnounceEpoch(ctx, to, epoch)
	if err != nil {
		return fmt.Errorf("announce the epoch to %s: %w", to, err)
	}
	if bytes.Compare(known[:], epoch[:]) > 0 {
		return errors.Join(fmt.Errorf("announce the epoch to %s: it knows a later one: the clock went back", to), h.Store.OutdoEpoch(ctx, known))
	}
	return h.Store.Announced(ctx, to, epoch)
}

func (h *OwnedPending) confirmAgain(ctx context.Context, at schema.DeploymentID, seq int64) error {
	own := h.Store.PresentEpoch()
	told, err := h.Store.ConfirmAgain(ctx, at, seq)
	if err != nil {
		return err
	}
	if err := h.Peers.ConfirmEpoch(ctx, at, told, own); err != nil {
		return fmt.Errorf("confirm references at %s: %w", at, err)
	}
	return h.Store.Recovered(ctx, seq)
}
