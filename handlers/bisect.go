package handlers

import (
	"context"
	"errors"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// bisect does a batch and, when it fails, each of its halves, so that a piece that fails by itself keeps no other one back
// (I20). The pieces that fail are a schema.PartError. A failure that no piece causes is of the batch and ends it: ctx has
// ended, the database is unavailable, or do says so with a batchError.
func bisect(ctx context.Context, seqs []int64, do func(seqs []int64) (waiting []int64, err error)) (waiting []int64, err error) {
	waiting, err = do(seqs)
	switch {
	case err == nil:
		return waiting, nil
	case ctx.Err() != nil, errors.As(err, new(*peer.UnavailableError)), errors.As(err, new(batchError)):
		return nil, err
	case len(seqs) == 1:
		return nil, &schema.PartError{Failed: seqs, Cause: err}
	}
	waiting = nil
	part, failed := &schema.PartError{}, (*schema.PartError)(nil)
	for _, half := range [][]int64{seqs[:len(seqs)/2], seqs[len(seqs)/2:]} {
		more, err := bisect(ctx, half, do)
		waiting = append(waiting, more...)
		if errors.As(err, &failed) {
			part.Failed, part.Cause = append(part.Failed, failed.Failed...), failed.Cause
		} else if err != nil {
			return nil, err
		}
	}
	if len(part.Failed) == 0 {
		return waiting, nil
	}
	return waiting, part
}

// batchError is a failure of a whole batch.
type batchError struct{ error }

func (e batchError) Unwrap() error { return e.error }
