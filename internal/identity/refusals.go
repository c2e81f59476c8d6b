package identity

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// refusals logs the handshakes that servers refuse: the first of each address in a minute, of so many addresses that a flood of them
// does not fill the log.
type refusals struct {
	log atomic.Pointer[zap.Logger] // nil until Follow runs

	mu    sync.Mutex
	began time.Time       // guarded by mu; of the minute
	said  map[string]bool // guarded by mu; addresses in this minute
}

const (
	refusalsEvery   = time.Minute
	refusalsAtMost  = 100
	refusalMostText = 500
)

// handshake logs the reason for which a connection is refused.
func (r *refusals) handshake(raw net.Conn, reason error) {
	log := r.log.Load()
	if log == nil || errors.Is(reason, io.EOF) { // a probe that only connects
		return
	}
	from, _, err := net.SplitHostPort(raw.RemoteAddr().String())
	if err != nil || !r.first(from) {
		return
	}
	text := reason.Error() // of what the other end has sent
	log.Warn("a connection was refused", zap.String("from", from), zap.String("reason", text[:min(len(text), refusalMostText)]))
}

func (r *refusals) first(address string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.began) > refusalsEvery {
		r.began, r.said = now, map[string]bool{}
	}
	if r.said[address] || len(r.said) == refusalsAtMost {
		return false
	}
	r.said[address] = true
	return true
}
