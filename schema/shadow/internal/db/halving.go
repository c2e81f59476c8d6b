package db

import (
	"context"
	"errors"
	"fmt"
)

// Halving is a transaction over resources that is run for each half of them when it fails, so that one that makes it fail does
// not keep back the others (I20).
type Halving struct {
	Run func(part []int64) error
	// Failed takes the error of a single resource. Its own error ends the whole.
	Failed func(id int64, err error) error
	// Stop, when set, reports between two halves that there is no time for more.
	Stop func() bool
}

// Halving runs h over ids, and returns those that it did not come to. It fails with an error that every part would have: none
// of the resources is the cause of it.
func (s *DB) Halving(ctx context.Context, ids []int64, h Halving) (left []int64, err error) {
	err = h.Run(ids)
	if err == nil {
		return nil, nil
	}
	if ctx.Err() != nil || failsWholeBatch(err) || s.Pool.Ping(ctx) != nil {
		return nil, err
	}
	if len(ids) == 1 {
		return nil, h.Failed(ids[0], err)
	}
	first, second := ids[:len(ids)/2], ids[len(ids)/2:]
	if left, err = s.Halving(ctx, first, h); err != nil {
		return nil, err
	}
	if len(left) > 0 || h.Stop != nil && h.Stop() {
		return append(left, second...), nil
	}
	return s.Halving(ctx, second, h)
}

// ChangeEach runs a transaction that changes the owners of resources. Its error joins those of the resources that failed.
func (s *DB) ChangeEach(ctx context.Context, ownees []int64, run func(part []int64) error) error {
	var failed error
	_, err := s.Halving(ctx, ownees, Halving{Run: run, Failed: func(id int64, err error) error {
		failed = errors.Join(failed, fmt.Errorf("change the owners of resource %d: %w", id, err))
		return nil
	}})
	return errors.Join(failed, err)
}
