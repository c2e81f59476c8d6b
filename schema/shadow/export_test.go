package shadow

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// InTx runs fn as a handler's transaction, for tests of what surrounds it.
func (s *Store) InTx(ctx context.Context, fn func(pgx.Tx) error) error {
	return s.inTx(ctx, noFeed, fn)
}

// CheckSettings is for a pool that was not made by Connect.
var CheckSettings = checkSettings
