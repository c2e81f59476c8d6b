package identity

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/db-controller/db-controller/internal/budget"
)

// Limits bound the connections and calls of one identity at a server, so that one identity cannot exhaust the
// server.
type Limits struct {
	// Connections of one identity.
	Connections int
	// Calls are requests in progress on all connections together, watches included, counted from the first
	// byte.
	Calls int
	// Forwarded are calls that a deployment forwards for one person, Forwarding the calls that it forwards
	// for all together; 0: Calls. They do not count as calls of the deployment.
	Forwarded, Forwarding int
	// Memory is of all callers together, in bytes; 0: budget.DefaultTotal.
	Memory int64
}

// OnBehalfOf is the header of a forwarded call with the path of the caller's identity.
const OnBehalfOf = "dbcontroller-on-behalf-of"

// roleForwarder is the role under which the forwarded calls of a deployment are counted.
const roleForwarder Role = "forwarder"

// Limiter counts the open connections and the calls in flight of each identity, and refuses those above
// Limits.
type Limiter struct {
	limits Limits
	// refused is called at each refusal, with "connections", "calls", "memory" or "frames".
	refused func(what string, who Identity)
	memory  *budget.Budget

	mu    sync.Mutex
	in    map[Identity]*presence // guarded by mu
	conns map[*counted]bool      // guarded by mu; open ones
}

type presence struct{ connections, calls int }

// NewLimiter returns a limiter without connections. Refused may be nil.
func NewLimiter(limits Limits, refused func(what string, who Identity)) *Limiter {
	if refused == nil {
		refused = func(string, Identity) {}
	}
	if limits.Memory == 0 {
		limits.Memory = budget.DefaultTotal
	}
	return &Limiter{
		limits: limits, refused: refused, memory: budget.New(limits.Memory), in: map[Identity]*presence{},
		conns: map[*counted]bool{},
	}
}

// change counts, unless it would be too many.
func (l *Limiter) change(who Identity, connections, calls int) bool {
	most := l.limits.Calls
	switch {
	case who.Role == roleForwarder:
		most = cmp.Or(l.limits.Forwarding, most)
	case who.Name != "" && !who.Deployment.IsZero(): // an identity whose call a deployment forwards
		most = l.limits.Forwarded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.in[who]
	if p == nil {
		p = &presence{}
		l.in[who] = p
	}
	if connections > 0 && p.connections >= l.limits.Connections || calls > 0 && p.calls >= most {
		return false
	}
	p.connections, p.calls = p.connections+connections, p.calls+calls
	if *p == (presence{}) {
		delete(l.in, who)
	}
	return true
}

// enter counts a connection until it is closed.
func (l *Limiter) enter(info Info, conn net.Conn) (*counted, error) {
	who := info.Identity
	if !l.change(who, 1, 0) {
		l.refused("connections", who)
		return nil, fmt.Errorf("%s has %d connections, which is as many as one may have", who, l.limits.Connections)
	}
	c := &counted{Conn: conn, limiter: l, info: info, frames: newFrames(), calls: map[*call]bool{}}
	c.leave = sync.OnceFunc(func() {
		l.change(who, -1, 0)
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, c)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = true
	return c, nil
}

// closeIf closes the connections for which a condition holds, and returns their identities.
func (l *Limiter) closeIf(is func(Info) bool) (closed []Identity) {
	l.mu.Lock()
	var all []*counted
	for c := range l.conns {
		if is(c.info) {
			all = append(all, c)
		}
	}
	l.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
		closed = append(closed, c.info.Identity)
	}
	return closed
}

type counted struct {
	net.Conn
	limiter *Limiter
	info    Info
	leave   func()
	frames  *frames        // of the reader
	calls   map[*call]bool // guarded by mu of the limiter
}

// connOf returns the connection of a call; nil when connections are not limited.
func connOf(ctx context.Context) *counted {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(Info); ok {
			return info.conn
		}
	}
	return nil
}

// Read ends the connection of a client that sends too many small frames.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if ferr := c.frames.saw(b[:n]); ferr != nil {
		c.limiter.refused("frames", c.info.Identity)
		_ = c.Close()
		return 0, ferr
	}
	return n, err
}

func (c *counted) Close() error {
	c.leave()
	err := c.Conn.Close()
	for _, call := range c.open() {
		call.drop()
	}
	return err
}

func (c *counted) open() []*call {
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	return slices.Collect(maps.Keys(c.calls))
}

// Tap refuses a call before anything is read of it: grpc.InTapHandle.
func (l *Limiter) Tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	who, err := FromContext(ctx)
	if err != nil {
		return ctx, status.Error(codes.Unauthenticated, err.Error())
	}
	all := countedAs(who, info.Header.Get(OnBehalfOf))
	for i, counts := range all {
		if l.change(counts, 0, 1) {
			continue
		}
		for _, counted := range all[:i] {
			l.change(counted, 0, -1)
		}
		l.refused("calls", counts)
		if counts.Role == roleForwarder {
			return ctx, status.Errorf(codes.ResourceExhausted, "%s forwards the maximum number of calls; try again",
				counts.Deployment)
		}
		return ctx, status.Errorf(codes.ResourceExhausted,
			"%s has the maximum number of calls in progress; end some, or wait", counts)
	}
	return l.open(ctx, all), nil
}

// countedAs returns the identities that a call counts for. Whether a deployment may forward the call is
// checked later.
func countedAs(who Identity, onBehalfOf []string) []Identity {
	if who.Role != RoleDeployment || len(onBehalfOf) == 0 {
		return []Identity{who}
	}
	all := []Identity{{Role: roleForwarder, Deployment: who.Deployment}}
	if person, err := ParsePath(onBehalfOf[0]); err == nil && person.Name != "" {
		all = append(all, Identity{Role: person.Role, Name: person.Name, Deployment: who.Deployment})
	}
	return all
}
