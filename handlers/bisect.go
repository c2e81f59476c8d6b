package handlers

import (
	"context"
	"errors"

	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

// bisect does a batch and, when it fails, each of its halves, so that a piece that fails by itself keeps no
// other one back (I20). The pieces that fail are a schema.PartError. A failure that no piece causes is of the
// batch and ends it: ctx has ended, the database or a deployment is unavailable to all pieces, or do says so
// with a batchError.
func bisect(ctx context.Context, seqs []int64, do func(seqs []int64) (waiting []int64, err error)) (waiting []int64,
	err error,
) {
	part := &schema.PartError{}
	_, err = retry.Halves[int64]{
		Run: func(seqs []int64) error {
			more, err := do(seqs)
			if err == nil {
				waiting = append(waiting, more...)
			}
			return err
		},
		Whole: func(err error) bool {
			return ctx.Err() != nil || errors.As(err, new(*peer.UnavailableError)) &&
				!errors.Is(err, peer.ErrKindsRecovering) || errors.As(err, new(batchError))
		},
		Failed: func(seq int64, err error) error {
			part.Failed, part.Cause = append(part.Failed, seq), err
			return nil
		},
	}.Do(seqs)
	switch {
	case err != nil:
		return nil, err
	case len(part.Failed) > 0:
		return waiting, part
	}
	return waiting, nil
}

// batchError is a failure of a whole batch.
type batchError struct{ error }

func (e batchError) Unwrap() error { return e.error }
