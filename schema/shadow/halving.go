package shadow

import (
	"context"
	"errors"
	"fmt"
)

// halving is a transaction over resources that is run for each half of them when it fails, so that one that makes it fail does
// not keep back the others (I20).
type halving struct {
	run func(part []int64) error
	// failed takes the error of a single resource. Its own error ends the whole.
	failed func(id int64, err error) error
	// stop, when set, reports between two halves that there is no time for more.
	stop func() bool
}

// halving runs h over ids, and returns those that it did not come to. It fails with an error that every part would have: none
// of the resources is the cause of it.
func (s *Store) halving(ctx context.Context, ids []int64, h halving) (left []int64, err error) {
	err = h.run(ids)
	if err == nil {
		return nil, nil
	}
	if ctx.Err() != nil || failsWholeBatch(err) || s.pool.Ping(ctx) != nil {
		return nil, err
	}
	if len(ids) == 1 {
		return nil, h.failed(ids[0], err)
	}
	first, second := ids[:len(ids)/2], ids[len(ids)/2:]
	if left, err = s.halving(ctx, first, h); err != nil {
		return nil, err
	}
	if len(left) > 0 || h.stop != nil && h.stop() {
		return append(left, second...), nil
	}
	return s.halving(ctx, second, h)
}

// changeEach runs a transaction that changes the owners of resources. Its error joins those of the resources that failed.
func (s *Store) changeEach(ctx context.Context, ownees []int64, run func(part []int64) error) error {
	var failed error
	_, err := s.halving(ctx, ownees, halving{run: run, failed: func(id int64, err error) error {
		failed = errors.Join(failed, fmt.Errorf("change the owners of resource %d: %w", id, err))
		return nil
	}})
	return errors.Join(failed, err)
}
