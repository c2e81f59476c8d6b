package harness

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Line is the state of a proxy's connections.
type Line int32

// The lines.
const (
	// Clear forwards everything.
	Clear Line = iota
	// Dead forwards nothing in either direction, and closes nothing.
	Dead
	// OneWay forwards requests and no responses.
	OneWay
	// Trickling forwards a few bytes at a time.
	Trickling
	// Far takes five milliseconds each way.
	Far
	// CommitsUnanswered, on a line to a database: a commit takes effect, and its connection ends instead of
	// the response.
	CommitsUnanswered
)

// commits are COMMIT as pgx sends it: in the simple protocol, and as the statement of a Bind message, by the
// name that pgx prepares it with.
var commits = [][]byte{[]byte("Q\x00\x00\x00\x0bcommit\x00"), []byte("\x00" + preparedName("commit") + "\x00")}

func preparedName(sql string) string {
	digest := sha256.Sum256([]byte(sql))
	return "stmtcache_" + hex.EncodeToString(digest[:24])
}

func isCommit(sent []byte) bool {
	return slices.ContainsFunc(commits, func(c []byte) bool { return bytes.Contains(sent, c) })
}

// Proxy forwards TCP connections to an address that can be changed: like the name of a database server whose
// standby takes over, or a line that can be cut.
type Proxy struct {
	listener net.Listener
	line     atomic.Int32
	between  atomic.Pointer[func() (end bool)]

	mu         sync.Mutex
	to         string              // guarded by mu
	conns      map[net.Conn]func() // guarded by mu; the functions that end them
	unanswered map[net.Conn]bool   // guarded by mu; connections with a commit whose response is to be lost
}

// NewProxy listens on a free port, until the end of the test.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{listener: listener, to: to, conns: map[net.Conn]func(){}, unanswered: map[net.Conn]bool{}}
	go p.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		p.Move("")
		p.SetLine(Clear)
	})
	return p
}

// Address returns the address at which it listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// SetLine changes the state of all connections, existing and new.
func (p *Proxy) SetLine(l Line) { p.line.Store(int32(l)) }

// SetBetween calls a function before each statement that a client of a database sends, when the statements
// before it are sent: also within a batch. end ends the connection instead. nil: nothing is called.
func (p *Proxy) SetBetween(f func() (end bool)) {
	if f == nil {
		p.between.Store(nil)
		return
	}
	p.between.Store(&f)
}

// Move cuts all connections; new ones go to another address.
func (p *Proxy) Move(to string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	p.cut()
}

// Cut ends all connections; new ones can be made.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

func (p *Proxy) cut() {
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
			go p.copy(in, out, in, true)
			go p.copy(out, in, in, false)
		}
		p.mu.Unlock()
	}
}

// copy forwards one direction until it ends, and then ends the connection.
func (p *Proxy) copy(to, from, of net.Conn, answers bool) {
	buffer := make([]byte, 16<<10)
	var sent statements
	for {
		size := len(buffer)
		if Line(p.line.Load()) == Trickling {
			size = 32
		}
		n, err := from.Read(buffer[:size])
		if n > 0 {
			p.wait(of, answers)
			if p.losesAnswer(of, answers, buffer[:n]) {
				break
			}
			rest, ended := buffer[:n], false
			if !answers {
				rest, ended = p.divide(to, rest, &sent)
			}
			if ended {
				break
			}
			if _, werr := to.Write(rest); werr != nil {
				err = werr
			}
		}
		if err != nil {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if end := p.conns[of]; end != nil {
		end()
		delete(p.conns, of)
	}
	delete(p.unanswered, of)
}

// divide forwards the messages before each statement, and calls the function of SetBetween. It returns the
// messages that are still to be forwarded.
func (p *Proxy) divide(to net.Conn, b []byte, of *statements) (rest []byte, end bool) {
	begins, done := of.begins(b), 0
	for _, at := range begins {
		f := p.between.Load()
		if f == nil {
			break
		}
		if _, err := to.Write(b[done:at]); err != nil {
			return nil, true
		}
		if done = at; (*f)() {
			return nil, true
		}
	}
	return b[done:], false
}

// losesAnswer records the commits on a CommitsUnanswered line, and reports for each response whether it is to
// be lost.
func (p *Proxy) losesAnswer(of net.Conn, answers bool, sent []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if answers {
		return p.unanswered[of]
	}
	if Line(p.line.Load()) == CommitsUnanswered && isCommit(sent) {
		p.unanswered[of] = true
	}
	return false
}

// wait delays bytes as the line requires, at most until the connection ends.
func (p *Proxy) wait(of net.Conn, answers bool) {
	for {
		switch line := Line(p.line.Load()); {
		case line == Trickling:
			<-time.After(time.Millisecond)
			return
		case line == Far:
			<-time.After(5 * time.Millisecond)
			return
		case line == Clear, line == CommitsUnanswered, line == OneWay && !answers:
			return
		}
		p.mu.Lock()
		ended := p.conns[of] == nil
		p.mu.Unlock()
		if ended {
			return
		}
		<-time.After(2 * time.Millisecond)
	}
}
