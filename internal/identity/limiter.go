package identity

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// Limits bound what one identity may have at a server at a time, so that nobody takes it from the others.
type Limits struct {
	// Connections of one identity.
	Connections int
	// Calls are requests under way, watches included, on all connections together: from their first byte on.
	Calls int
	// Forwarded are calls that a deployment makes for one person. They do not count as its own; all that it forwards counts
	// as much as Calls.
	Forwarded int
}

// OnBehalfOf is the header in which a deployment says for whom it forwards a call: the path of an identity.
const OnBehalfOf = "dbcontroller-on-behalf-of"

// roleForwarder is that of a deployment as far as it forwards.
const roleForwarder Role = "forwarder"

// Limiter counts the open connections and the calls in flight of each identity, and refuses those above Limits.
type Limiter struct {
	limits Limits
	// refused hears of each refusal: "connections" or "calls".
	refused func(what string, who Identity)

	mu    sync.Mutex
	in    map[Identity]*presence // guarded by mu
	conns map[*counted]bool      // guarded by mu; those that are open
}

type presence struct{ connections, calls int }

// NewLimiter returns a limiter without connections. Refused may be nil.
func NewLimiter(limits Limits, refused func(what string, who Identity)) *Limiter {
	if refused == nil {
		refused = func(string, Identity) {}
	}
	return &Limiter{limits: limits, refused: refused, in: map[Identity]*presence{}, conns: map[*counted]bool{}}
}

// change counts, unless it would be too many.
func (l *Limiter) change(who Identity, connections, calls int) bool {
	most := l.limits.Calls
	if who.Name != "" && !who.Deployment.IsZero() { // somebody, by way of a deployment
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
func (l *Limiter) enter(info Info, conn net.Conn) (net.Conn, error) {
	if l == nil {
		return conn, nil
	}
	who := info.Identity
	if !l.change(who, 1, 0) {
		l.refused("connections", who)
		return nil, fmt.Errorf("%s has %d connections, which is as many as one may have", who, l.limits.Connections)
	}
	c := &counted{Conn: conn, info: info}
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

// closeIf closes the connections that a condition is true of, and returns whose they were.
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
	info  Info
	leave func()
}

func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
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
			return ctx, status.Errorf(codes.ResourceExhausted, "%s forwards as many calls as one may; try again", counts.Deployment)
		}
		return ctx, status.Errorf(codes.ResourceExhausted, "%s has as many calls under way as one may have; end some, or wait", counts)
	}
	// The context ends with the call, however that ends.
	context.AfterFunc(ctx, func() {
		for _, counted := range all {
			l.change(counted, 0, -1)
		}
	})
	return ctx, nil
}

// countedAs are whose calls one is counted with. Whether a deployment may speak for somebody is looked at later.
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
