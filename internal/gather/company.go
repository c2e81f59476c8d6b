package gather

import (
	"context"
	"time"
)

// linger is how long a batch that could run waits for requests that are on their way with the requests that
// have come.
const linger = time.Millisecond

type companyKey struct{}

// WithCompany returns a context for requests, n in all, that are made at the same time: a queue that has
// nothing under way waits for the others of them, at most a millisecond, instead of running the first one by
// itself.
func WithCompany(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, companyKey{}, n)
}

func companyOf(ctx context.Context) int {
	n, _ := ctx.Value(companyKey{}).(int)
	return n
}
