package costs

import (
	"context"
	"sync"

	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
)

// Places bound the calls of each of a few identities, and of all together. A further call waits.
type Places struct {
	most int
	all  chan struct{}

	mu sync.Mutex
	of map[identity.Identity]chan struct{} // guarded by mu; of identities that have called
}

// NewPlaces returns places for each identity, and for all.
func NewPlaces(most, all int) *Places {
	return &Places{most: most, all: make(chan struct{}, all), of: map[identity.Identity]chan struct{}{}}
}

func (p *Places) own(who identity.Identity) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[who] == nil {
		p.of[who] = make(chan struct{}, p.most)
	}
	return p.of[who]
}

// Enter waits for a place, and returns a function that frees it.
func (p *Places) Enter(ctx context.Context, who identity.Identity) (leave func(), err error) {
	own := p.own(who)
	select {
	case own <- struct{}{}:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	select {
	case p.all <- struct{}{}:
	case <-ctx.Done():
		<-own
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return func() { <-p.all; <-own }, nil
}
