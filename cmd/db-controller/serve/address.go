package serve

import (
	"net"
	"net/netip"
	"sync"

	"github.com/db-controller/db-controller/internal/address"
)

const (
	// maxOfAddress is the number of connections that one address has to a listener whose callers are not
	// known by their connections.
	maxOfAddress = 200
	// maxUnproven is the number of connections of one address to the gRPC listener that have not proved an
	// identity yet. Many callers may share one address, such as a proxy's.
	maxUnproven = 1000
)

// byAddress bounds the connections of each address, so that one address leaves places for others. A further
// connection is closed at once.
type byAddress struct {
	net.Listener
	most int

	mu   sync.Mutex
	open map[netip.Addr]int // guarded by mu
}

func newByAddress(l net.Listener, most int) *byAddress {
	return &byAddress{Listener: l, most: most, open: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (l *byAddress) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := address.Network(conn.RemoteAddr())
		if l.enter(from) {
			return &addressed{Conn: conn, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		_ = conn.Close()
	}
}

func (l *byAddress) enter(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from] >= l.most {
		return false
	}
	l.open[from]++
	return true
}

func (l *byAddress) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from]--; l.open[from] == 0 {
		delete(l.open, from)
	}
}

// addressed is a connection that counts until it is closed, or has proved an identity, whose own bound it
// counts for then.
type addressed struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *addressed) Close() error {
	c.leave()
	return c.Conn.Close()
}

// Proved is identity.Unproven.
func (c *addressed) Proved() { c.leave() }
