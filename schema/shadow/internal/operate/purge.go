package operate

import (
	"context"
	"fmt"

	"github.com/db-controller/db-controller/schema/peer"
)

const (
	existsSQL = `SELECT EXISTS (SELECT FROM dbcontroller.shadow WHERE name = $1)`
	purgeSQL  = `SELECT changes, requests FROM dbcontroller.purge($1)`
)

// Purge removes what removed resources of a name contained from the recent changes and from the recorded
// outcomes of requests, and returns how many of each there were. It fails with ErrExists while a resource has
// the name, also in DELETING. One that is created meanwhile keeps its changes.
func (s *Operations) Purge(ctx context.Context, name string) (changes, requests int64, err error) {
	var exists bool
	if err := s.Pool.QueryRow(ctx, existsSQL, name).Scan(&exists); err != nil {
		return 0, 0, fmt.Errorf("purge: %w", err)
	}
	if exists {
		return 0, 0, fmt.Errorf("%s exists: delete it, with --now if it is hidden, and wait until it is removed: %w",
			name, peer.ErrExists)
	}
	if err := s.Pool.QueryRow(ctx, purgeSQL, name).Scan(&changes, &requests); err != nil {
		return 0, 0, fmt.Errorf("purge: %w", err)
	}
	return changes, requests, nil
}
