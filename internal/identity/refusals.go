package identity

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/address"
)

// refusals logs the handshakes that servers refuse: each reason of an address once a minute, because a whole
// network can share one address; and so few reasons and addresses that a flood does not fill the log.
type refusals struct {
	log atomic.Pointer[zap.Logger] // nil until Follow runs

	mu    sync.Mutex
	began time.Time           // guarded by mu; of the minute
	said  map[string][]string // guarded by mu; the reasons by address in this minute
}

const (
	refusalsEvery   = time.Minute
	refusalsAtMost  = 100 // addresses
	refusalsOfOne   = 3   // reasons of an address: they can have texts that the other end chooses
	refusalMostText = 500
)

// handshake logs the reason for which a connection is refused.
func (r *refusals) handshake(raw net.Conn, reason error) {
	log := r.log.Load()
	if log == nil || errors.Is(reason, io.EOF) { // a probe that only connects
		return
	}
	from, _, err := net.SplitHostPort(raw.RemoteAddr().String())
	if err != nil {
		return
	}
	text := address.Alert(reason.Error()) // of the alert that the other end has sent
	text = text[:min(len(text), refusalMostText)]
	if r.first(from, text) {
		log.Warn("a connection was refused", zap.String("from", from), zap.String("reason", text))
	}
}

func (r *refusals) first(from, reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.began) > refusalsEvery {
		r.began, r.said = now, map[string][]string{}
	}
	said := r.said[from]
	if len(said) == refusalsOfOne || slices.Contains(said, reason) || (said == nil && len(r.said) == refusalsAtMost) {
		return false
	}
	r.said[from] = append(said, reason)
	return true
}
