// Package costs bounds the costly reads of each caller, and the calls that applications have at other
// deployments.
package costs

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema/service/outcome"
)

// costly begin the names of the methods for people whose cost depends on the request (a filter, an order, the
// number of names, the size of a cascade) and on the stored rows. A method that is added has its bound by its
// name.
var costly = []string{"List", "BatchGet", "Plan", "Status", "Explain", "GetEnvironment"}

// maxCostly is the number of costly reads of one identity that run at the same time, maxCostlyWaiting the
// number of further reads that wait.
const (
	maxCostly        = 4
	maxCostlyWaiting = 32
)

// Are reports whether a method is costly.
func Are(method string) bool {
	own, ok := strings.CutPrefix(method, "/dbcontroller.")
	return ok && !strings.HasPrefix(own, "schema.") && slices.ContainsFunc(costly, func(begin string) bool {
		return strings.HasPrefix(path.Base(method), begin)
	})
}

var errTooManyCosts = fmt.Errorf(
	"%d lists, plans and other costly reads of this caller are in progress or waiting, and %w",
	maxCostly+maxCostlyWaiting, outcome.ErrTooManyCalls)

// Costs bounds the costly reads of each identity, so that one caller cannot use all connections to the
// database: maxCostly of them run, maxCostlyWaiting wait, and further ones are refused at once.
type Costs struct {
	refused func(what string, who identity.Identity)

	mu   sync.Mutex
	uses map[identity.Identity]*use // guarded by mu; only of identities with costly reads in progress
}

// use counts the costly reads of one identity.
type use struct {
	calls  int           // guarded by Costs.mu; running and waiting ones
	places chan struct{} // one element for each call that runs, which the call itself puts in and takes out
}

// New returns bounds that tell refused of each call that they refuse; it may be nil.
func New(refused func(what string, who identity.Identity)) *Costs {
	if refused == nil {
		refused = func(string, identity.Identity) {}
	}
	return &Costs{refused: refused, uses: map[identity.Identity]*use{}}
}

// Unary runs after the identity of a forwarded call is known, so that it counts the forwarded calls of a
// person as the person's.
func (c *Costs) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler,
) (any, error) {
	who, err := identity.FromContext(ctx)
	if err != nil || !Are(info.FullMethod) {
		return handler(ctx, req)
	}
	u := c.enter(who)
	if u == nil {
		c.refused("costly calls", who)
		return nil, outcome.Because("TOO_MANY_CALLS", fmt.Errorf("%s: %w", who, errTooManyCosts))
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

func (c *Costs) enter(who identity.Identity) *use {
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

func (c *Costs) leave(who identity.Identity, u *use) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if u.calls--; u.calls == 0 {
		delete(c.uses, who)
	}
}
