package handlers

import (
	"context"
	"errors"
	"fmt"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// DeriveStore derives references from bodies anew.
type DeriveStore interface {
	// Derive does one step of a piece of work: a page of a pass over a kind, or a resource that was set
	// aside.
	Derive(ctx context.Context, seq int64) (peer.Derived, error)
}

// Derive takes the references of resources anew from their bodies, after a switch of the version. A piece of
// work that fails keeps no other one back (I20).
type Derive struct{ Store DeriveStore }

// Handle is Handler. A pass over a kind goes on until it ends; a resource that was set aside is tried once.
func (h *Derive) Handle(ctx context.Context, _ schema.DeploymentID, seqs []int64) (waiting []int64, err error) {
	for _, seq := range seqs {
		derived, failed := h.pass(ctx, seq)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("derive references: %w", failed))
		}
		if derived == peer.DerivedNot {
			waiting = append(waiting, seq)
		}
	}
	return waiting, errors.Join(err, ctx.Err())
}

func (h *Derive) pass(ctx context.Context, seq int64) (derived peer.Derived, err error) {
	for derived = peer.DerivedSome; derived == peer.DerivedSome && err == nil && ctx.Err() == nil; {
		derived, err = h.Store.Derive(ctx, seq)
	}
	return derived, err
}
