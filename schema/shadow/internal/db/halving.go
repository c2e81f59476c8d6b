package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/db-controller/db-controller/internal/retry"
)

// Halving runs h over resources, where an error is of the whole batch when ctx has ended, the database is
// unavailable, or the epoch or the lease was refused. It returns the resources that it did not come to.
func (s *DB) Halving(ctx context.Context, ids []int64, h retry.Halves[int64]) (left []int64, err error) {
	h.Whole = func(err error) bool { return ctx.Err() != nil || failsWholeBatch(err) || s.Pool.Ping(ctx) != nil }
	return h.Do(ids)
}

// ChangeEach runs a transaction that changes the owners of resources. Its error joins the errors of the
// resources that failed.
func (s *DB) ChangeEach(ctx context.Context, ownees []int64, run func(part []int64) error) error {
	var failed error
	_, err := s.Halving(ctx, ownees, retry.Halves[int64]{Run: run, Failed: func(id int64, err error) error {
		failed = errors.Join(failed, fmt.Errorf("change the owners of resource %d: %w", id, err))
		return nil
	}})
	return errors.Join(failed, err)
}
