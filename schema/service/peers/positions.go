package peers

import (
	"context"
	"fmt"
	"time"

	"github.com/db-controller/db-controller/schema"
)

// Positions stores the newest token of the watch of deletions of each other deployment. KeepPosition replaces the token that was
// stored before, and reports false when another one is stored.
type Positions interface {
	Position(ctx context.Context, of schema.DeploymentID) (token string, err error)
	KeepPosition(ctx context.Context, of schema.DeploymentID, was, token string) (kept bool, err error)
}

// keepInterval is the time between two tokens of a watch that are stored.
const keepInterval = 5 * time.Second

// SetPositions sets the store of positions, which watches tell and replace from then on.
func (p *Peers) SetPositions(positions Positions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = positions
}

// keptPosition is the stored token of a watch of deletions. Each stream tells it before it is replaced by a token of that stream,
// so that the other deployment learns of a position that its database has lost, even when every process has restarted since.
type keptPosition struct {
	of    schema.DeploymentID
	store Positions // nil: nothing is stored
	token string
	at    time.Time // when it was replaced by this stream
}

func (p *Peers) keptPosition(ctx context.Context, of schema.DeploymentID) (*keptPosition, error) {
	p.mu.Lock()
	k := &keptPosition{of: of, store: p.kept}
	p.mu.Unlock()
	if of == p.self {
		k.store = nil
	}
	if k.store == nil {
		return k, nil
	}
	var err error
	if k.token, err = k.store.Position(ctx, of); err != nil {
		return nil, fmt.Errorf("the kept position of %s: %w", of, err)
	}
	return k, nil
}

// replace stores a newer token from time to time. It fails when another stream has stored one that this stream has not told: the next
// stream does. While the database fails the stored token stays, and is older than it could be.
func (k *keptPosition) replace(ctx context.Context, token string) error {
	if k.store == nil || token == "" || token == k.token || time.Since(k.at) < keepInterval {
		return nil
	}
	kept, err := k.store.KeepPosition(ctx, k.of, k.token, token)
	switch {
	case err != nil:
		return ctx.Err()
	case !kept:
		return fmt.Errorf("another watch of the deletions of %s has stored a position", k.of)
	}
	k.token, k.at = token, time.Now()
	return nil
}
