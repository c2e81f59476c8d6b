package harness

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Proxy forwards TCP connections to an address that can be moved: the name of a database server whose standby takes over.
type Proxy struct {
	listener net.Listener

	mu    sync.Mutex
	to    string              // guarded by mu
	conns map[net.Conn]func() // guarded by mu; what ends each
}

// NewProxy listens on a free port, until the end of the test.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{listener: listener, to: to, conns: map[net.Conn]func(){}}
	go p.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		p.Move("")
	})
	return p
}

// Address is where it listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Move cuts all connections; new ones go to another address.
func (p *Proxy) Move(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	for conn, end := range p.conns {
		end()
		delete(p.conns, conn)
	}
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		to := p.to
		p.mu.Unlock()
		out, err := net.Dial("tcp", to) //nolint:noctx // a test's
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		if p.to != to { // it has moved meanwhile
			_, _ = in.Close(), out.Close()
		} else {
			p.conns[in] = func() { _, _ = in.Close(), out.Close() }
			go p.copy(in, out, in)
			go p.copy(out, in, in)
		}
		p.mu.Unlock()
	}
}

// copy forwards one direction until it ends, and then ends the connection.
func (p *Proxy) copy(to io.Writer, from io.Reader, of net.Conn) {
	_, _ = io.Copy(to, from)
	p.mu.Lock()
	defer p.mu.Unlock()
	if end := p.conns[of]; end != nil {
		end()
		delete(p.conns, of)
	}
}
