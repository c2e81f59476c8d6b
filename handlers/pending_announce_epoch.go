package handlers

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// AnnounceEpochStore has the epoch of this deployment's database.
type AnnounceEpochStore interface {
	// Announcement fails until the recovery of the present epoch has begun.
	Announcement(ctx context.Context, to schema.DeploymentID) (peer.Announcement, error)
	// OutdoEpoch begins an epoch that is later than an epoch that another deployment knows.
	OutdoEpoch(ctx context.Context, by schema.DeploymentID, known uuid.UUID) error
	// MarkAnnounced replaces the work by the comparison that follows, and stores the kinds here that the
	// other deployment refers to. It fails when the epoch is not the present one any more.
	MarkAnnounced(ctx context.Context, to schema.DeploymentID, told peer.Announcement, refersTo peer.TargetKinds) error
}

// AnnounceEpochPeers sends the epoch to another deployment.
type AnnounceEpochPeers interface {
	// AnnounceEpoch returns the epoch that the other deployment knows now, and the kinds here that it refers
	// to.
	AnnounceEpoch(ctx context.Context, at schema.DeploymentID,
		epoch uuid.UUID) (known uuid.UUID, refersTo peer.TargetKinds, err error)
}

// AnnounceEpoch notifies another deployment of a failover or restore of this deployment's database.
type AnnounceEpoch struct {
	Store AnnounceEpochStore
	Peers AnnounceEpochPeers
}

// Handle is Handler.
func (h *AnnounceEpoch) Handle(ctx context.Context, to schema.DeploymentID, seqs []int64) ([]int64, error) {
	return nil, each(seqs, func(int64) error { return h.announce(ctx, to) })
}

// announce fails when the other deployment knows a later epoch: the database is an older copy, or a clock
// went back. A later one begins then, and is announced by its own work.
func (h *AnnounceEpoch) announce(ctx context.Context, to schema.DeploymentID) error {
	told, err := h.Store.Announcement(ctx, to)
	if err != nil {
		return fmt.Errorf("announce the epoch to %s: %w", to, err)
	}
	known, refersTo, err := h.Peers.AnnounceEpoch(ctx, to, told.Epoch)
	if err != nil {
		return fmt.Errorf("announce the epoch to %s: %w", to, err)
	}
	if bytes.Compare(known[:], told.Epoch[:]) > 0 {
		return errors.Join(
			fmt.Errorf(
				"announce the epoch to %s: a later epoch is known there: the database is an older copy, or its clock went back", to), h.Store.OutdoEpoch(ctx, to, known))
	}
	return h.Store.MarkAnnounced(ctx, to, told, refersTo)
}
