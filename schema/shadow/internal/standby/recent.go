package standby

import (
	"sync"
	"time"
)

// mostRecent bounds the callers of a set; beyond it everybody counts.
const mostRecent = 1 << 16

// recent has the callers of a time, and some more: two sets in turn, so that none is kept longer than twice
// the time.
type recent struct {
	keep time.Duration

	mu          sync.Mutex
	new, before map[any]bool // guarded by mu
	turned      time.Time    // guarded by mu; when the set new began
}

func (r *recent) add(who any, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	if len(r.new) < mostRecent {
		r.new[who] = true
	}
}

func (r *recent) has(who any, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn(now)
	return r.new[who] || r.before[who] || len(r.new) == mostRecent || len(r.before) == mostRecent
}

// turn drops the callers that were added longer than keep ago.
func (r *recent) turn(now time.Time) {
	age := now.Sub(r.turned)
	switch {
	case age < r.keep:
		return
	case age < 2*r.keep:
		r.before = r.new
	default: // those of new are older, too
		r.before = nil
	}
	r.new, r.turned = map[any]bool{}, now
}
