package db

import (
	"context"
	"time"

	"github.com/google/uuid"
)

type fenceKey struct{}

type fence struct {
	member uuid.UUID
	ttl    time.Duration
}

// Fenced binds every transaction under ctx to a member of the deployment's processes: the transaction fails
// with schema.ErrFenced when the member was evicted or has expired, and its lock prevents the eviction until
// it ends. PostgreSQL ends a transaction that is idle for longer than ttl.
func Fenced(ctx context.Context, member uuid.UUID, ttl time.Duration) context.Context {
	return context.WithValue(ctx, fenceKey{}, fence{member, ttl})
}

// IsFenced reports whether transactions under ctx are bound to a member.
func IsFenced(ctx context.Context) bool {
	_, ok := ctx.Value(fenceKey{}).(fence)
	return ok
}
