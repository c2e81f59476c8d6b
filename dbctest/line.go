package dbctest

import (
	"context"
	"io"
	"net"
	"sync"
)

// line forwards TCP connections to an address, and can be cut.
type line struct {
	listener net.Listener
	network  string // of to
	to       string

	mu    sync.Mutex
	isCut bool              // guarded by mu
	conns map[net.Conn]bool // guarded by mu; both ends of each connection
}

func newLine(to string) (*line, error) { return newLineTo("tcp", to) }

func newLineTo(network, to string) (*line, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &line{listener: listener, network: network, to: to, conns: map[net.Conn]bool{}}
	go l.accept()
	return l, nil
}

func (l *line) address() string { return l.listener.Addr().String() }

// cut ends all connections, and lets no new one in while it is cut.
func (l *line) cut(is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut = is; is {
		for conn := range l.conns {
			_ = conn.Close()
		}
	}
}

func (l *line) close() {
	_ = l.listener.Close()
	l.cut(true)
}

func (l *line) accept() {
	for {
		in, err := l.listener.Accept()
		if err != nil {
			return
		}
		go l.connect(in)
	}
}

func (l *line) connect(in net.Conn) {
	out, err := (&net.Dialer{}).DialContext(context.Background(), l.network, l.to)
	if err != nil || !l.enter(in, out) {
		_ = in.Close()
		if out != nil {
			_ = out.Close()
		}
		return
	}
	var both sync.WaitGroup
	both.Go(func() { forward(in, out) })
	both.Go(func() { forward(out, in) })
	both.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, in)
	delete(l.conns, out)
}

// enter counts a connection, unless the line is cut.
func (l *line) enter(in, out net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		return false
	}
	l.conns[in], l.conns[out] = true, true
	return true
}

// forward copies one direction until it ends, and then ends the connection.
func forward(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = to.Close(), from.Close()
}
