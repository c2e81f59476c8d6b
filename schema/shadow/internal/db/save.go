package db

import (
	"context"
	"errors"
	"time"
)

// ErrStale means that stored rows changed after prepare had compared the write with them: Save prepares it again.
var ErrStale = errors.New("the resource changed while it was written")

func WithDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}
