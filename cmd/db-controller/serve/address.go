package serve

import (
	"net"
	"net/netip"
	"sync"
)

// maxOfAddress is the number of connections that one address has to a listener whose callers are not known by their connections.
const maxOfAddress = 200

// byAddress bounds the connections of each address: those of one address leave places for others. A further connection is closed at once.
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
		from := addressOf(conn)
		if l.enter(from) {
			return &addressed{Conn: conn, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		_ = conn.Close()
	}
}

// addressOf returns the address of the other end; the zero one for a connection without an address, which counts with the others of its kind.
func addressOf(conn net.Conn) netip.Addr {
	at, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	return at.Addr().Unmap().WithZone("")
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

// addressed is a connection that counts until it is closed.
type addressed struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *addressed) Close() error {
	c.leave()
	return c.Conn.Close()
}
