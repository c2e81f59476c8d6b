package service

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// costly are the reads of people whose cost the caller chooses: by a filter, an order, a number of names, or the size of a
// cascade.
var costly = map[string]bool{
	resourcev1.ResourceService_ListResources_FullMethodName:     true,
	resourcev1.ResourceService_BatchGetResources_FullMethodName: true,
	resourcev1.ResourceService_PlanDeletion_FullMethodName:      true,
	adminv1.AdminService_Status_FullMethodName:                  true,
	adminv1.AdminService_Explain_FullMethodName:                 true,
	adminv1.AdminService_ListRemovals_FullMethodName:            true,
}

var errTooManyCalls = fmt.Errorf("%d lists, plans and the like are under way, as many as one caller may have: wait for some of them", maxCostly+maxCostlyWaiting)

// costs bounds the costly reads of each identity, so that nobody takes all connections to the database: some go on, some
// more wait, and what is beyond is refused at once.
type costs struct {
	refused func(what string, who identity.Identity)

	mu   sync.Mutex
	uses map[identity.Identity]*use // guarded by mu; of identities that have some under way
}

// use is what one identity has under way.
type use struct {
	calls  int           // guarded by costs.mu; waiting ones included
	places chan struct{} // one for each call that goes on; whoever puts one in takes it out
}

func newCosts(refused func(what string, who identity.Identity)) *costs {
	if refused == nil {
		refused = func(string, identity.Identity) {}
	}
	return &costs{refused: refused, uses: map[identity.Identity]*use{}}
}

// Unary comes after the identity that a deployment forwards for.
func (c *costs) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	who, err := identity.FromContext(ctx)
	if err != nil || !costly[info.FullMethod] {
		return handler(ctx, req)
	}
	u := c.enter(who)
	if u == nil {
		c.refused("costly calls", who)
		return nil, because("TOO_MANY_CALLS", fmt.Errorf("%s: %w", who, errTooManyCalls))
	}
	defer c.leave(who, u)
	select {
	case u.places <- struct{}{}:
		defer func() { <-u.places }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return handler(ctx, req)
}

func (c *costs) enter(who identity.Identity) *use {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.uses[who]
	if u == nil {
		u = &use{places: make(chan struct{}, maxCostly)}
		c.uses[who] = u
	}
	if u.calls == maxCostly+maxCostlyWaiting {
		return nil
	}
	u.calls++
	return u
}

func (c *costs) leave(who identity.Identity, u *use) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if u.calls--; u.calls == 0 {
		delete(c.uses, who)
	}
}
