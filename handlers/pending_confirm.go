package handlers

import (
	"context"
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// MessageStore has the messages that this deployment owes to others.
type MessageStore interface {
	// Messages reads the messages of pieces of work. A piece that is done already has none.
	Messages(ctx context.Context, to schema.DeploymentID, seqs []int64) (*peer.Messages, error)
	// Delivered removes the work of messages that the other deployment has taken.
	Delivered(ctx context.Context, m *peer.Messages) error
}

// AttemptRepairer repairs attempts whose blockades are lost.
type AttemptRepairer interface {
	// RepairAttempts compares the references of attempts with the blockades in the other deployment, and
	// establishes again the references that are lost there.
	RepairAttempts(ctx context.Context, at schema.DeploymentID, attempts []peer.AttemptID) error
}

// ConfirmPeers confirms the blockades of attempts at another deployment.
type ConfirmPeers interface {
	// Confirm returns the attempts of which the other deployment lacks blockades and, if delegable, the
	// targets that it delegates.
	Confirm(ctx context.Context, target schema.DeploymentID, c peer.Confirm) (*peer.Confirmed, error)
}

// Confirm notifies the targets' deployment of committed attempts, and the participants of scheduled
// deletions. Messages of one reference may arrive in any order (I7).
type Confirm struct {
	Store  MessageStore
	Repair AttemptRepairer
	Peers  ConfirmPeers
	// Rights asks for rights to block; nil: none is wanted.
	Rights RightAcquirer
	// Scheduled has the deletions that this deployment has scheduled.
	Scheduled ScheduledDeletions
}

// RightAcquirer asks another deployment for the rights to block its resources without asking.
type RightAcquirer interface {
	Acquire(ctx context.Context, at schema.DeploymentID, targets []int64) error
}

// Handle is Handler.
func (h *Confirm) Handle(ctx context.Context, to schema.DeploymentID, seqs []int64) ([]int64, error) {
	m, err := h.Store.Messages(ctx, to, seqs)
	if err != nil {
		return nil, err
	}
	if len(m.Confirm)+len(m.Scheduled) > 0 {
		confirmed, err := h.Peers.Confirm(ctx, to, peer.Confirm{
			Epoch: m.Epoch, Attempts: m.Confirm,
			References: m.References, Scheduled: m.Scheduled, Delegable: len(m.Delegable) > 0,
		})
		if err != nil {
			return nil, fmt.Errorf("confirm at %s: %w", to, err)
		}
		crash.At("crash-confirm-told")
		if err := h.Repair.RepairAttempts(ctx, to, confirmed.Unknown); err != nil {
			return nil, fmt.Errorf("repair the attempts that are unknown at %s: %w", to, err)
		}
		if err := h.undelete(ctx, m.Scheduled, confirmed.Unknown); err != nil {
			return nil, err
		}
		m.Confirmed = confirmed
	}
	if err := h.Store.Delivered(ctx, m); err != nil || len(m.Wanted) == 0 || h.Rights == nil {
		return nil, err
	}
	return nil, h.Rights.Acquire(ctx, to, m.Wanted)
}

// undelete undeletes the scheduled deletions that the other deployment has opened after an undelete, which
// this database has lost.
func (h *Confirm) undelete(ctx context.Context, scheduled []peer.Scheduled, unknown []peer.AttemptID) error {
	for _, d := range scheduled {
		if !slices.Contains(unknown, d.Deletion) {
			continue
		}
		if err := h.Scheduled.UndeleteLost(ctx, d.Deletion); err != nil {
			return fmt.Errorf("undelete a deletion again, whose undelete was lost: %w", err)
		}
	}
	return nil
}
