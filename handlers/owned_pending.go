package handlers

import (
	"context"
	"fmt"
	"slices"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow"
)

// resolveBatch is how many expired blockades are asked about in one call.
const resolveBatch = 1000

// PendingStore has the messages that this deployment owes, and the blockades whose time is over.
type PendingStore interface {
	Messages(ctx context.Context, to schema.DeploymentID, seqs []int64) (*shadow.Messages, error)
	Delivered(ctx context.Context, m *shadow.Messages) error
	Expired(ctx context.Context, holder schema.DeploymentID, limit int) ([]shadow.Question, error)
	ExpiredHolders(ctx context.Context) ([]schema.DeploymentID, error)
	Settle(ctx context.Context, holder schema.DeploymentID, questions []shadow.Question, verdicts []shadow.Verdict) error
}

// PendingPeers takes the messages to other deployments.
type PendingPeers interface {
	Confirm(ctx context.Context, target schema.DeploymentID, attempts []shadow.AttemptID) error
	Release(ctx context.Context, target schema.DeploymentID, keys []shadow.BlockadeKey, attempts []shadow.AttemptID) error
	Resolve(ctx context.Context, holder schema.DeploymentID, questions []shadow.Question) ([]shadow.Verdict, error)
}

// OwnedPending settles what resources of this deployment have outstanding with another one.
type OwnedPending struct {
	Store PendingStore
	Peers PendingPeers
}

// Handle tells a deployment what it is owed: attempts that have committed, references that were dropped, attempts
// that were aborted. Messages of one reference may arrive in any order (I7).
func (h *OwnedPending) Handle(ctx context.Context, to schema.DeploymentID, work []schema.Work) error {
	seqs := make([]int64, len(work))
	for i, w := range work {
		seqs[i] = w.Seq
	}
	m, err := h.Store.Messages(ctx, to, seqs)
	if err != nil {
		return err
	}
	if len(m.Confirm) > 0 {
		if err := h.Peers.Confirm(ctx, to, m.Confirm); err != nil {
			return fmt.Errorf("confirm at %s: %w", to, err)
		}
	}
	if len(m.Release)+len(m.Abandon) > 0 {
		if err := h.Peers.Release(ctx, to, m.Release, m.Abandon); err != nil {
			return fmt.Errorf("release at %s: %w", to, err)
		}
	}
	return h.Store.Delivered(ctx, m)
}

// Expired names the holders' deployments that have to be asked about blockades here.
func (h *OwnedPending) Expired(ctx context.Context) ([]schema.DeploymentID, error) {
	return h.Store.ExpiredHolders(ctx)
}

// Resolve asks a holder's deployment about its expired blockades here, and does as it says. While it cannot be asked
// they stay: time alone removes nothing (I5).
func (h *OwnedPending) Resolve(ctx context.Context, holder schema.DeploymentID) error {
	for {
		questions, err := h.Store.Expired(ctx, holder, resolveBatch)
		if err != nil || len(questions) == 0 {
			return err
		}
		verdicts, err := h.Peers.Resolve(ctx, holder, questions)
		if err != nil {
			return fmt.Errorf("resolve at %s: %w", holder, err)
		}
		if len(verdicts) != len(questions) {
			return fmt.Errorf("resolve at %s: %d answers to %d questions", holder, len(verdicts), len(questions))
		}
		if err := h.Store.Settle(ctx, holder, questions, verdicts); err != nil {
			return err
		}
		if len(questions) < resolveBatch || !slices.ContainsFunc(verdicts, func(v shadow.Verdict) bool { return v != shadow.Undecided }) {
			return nil
		}
	}
}
