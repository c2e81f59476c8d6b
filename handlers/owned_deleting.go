package handlers

import (
	"context"

	"github.com/db-controller/db-controller/schema"
)

// DeletingStore removes resources in DELETING that wait for nothing any more.
type DeletingStore interface {
	Finalise(ctx context.Context, seqs []int64) (removed int, err error)
}

// OwnedDeleting brings deletions of this deployment to their end.
type OwnedDeleting struct {
	Store DeletingStore
}

// Handle looks again at what some work is about. Where one piece of work makes the batch fail, the others go on
// without it (I20); its error is answered.
func (h *OwnedDeleting) Handle(ctx context.Context, work []schema.Work) error {
	seqs := make([]int64, len(work))
	for i, w := range work {
		seqs[i] = w.Seq
	}
	_, err := h.Store.Finalise(ctx, seqs)
	if err == nil || len(work) == 1 || ctx.Err() != nil {
		return err
	}
	half := len(work) / 2
	first := h.Handle(ctx, work[:half])
	if second := h.Handle(ctx, work[half:]); first == nil {
		return second
	}
	return first
}
