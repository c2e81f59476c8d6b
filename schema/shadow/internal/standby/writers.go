package standby

import (
	"sync"
	"time"
)

// writers has the callers that have written within a time, and some more: two sets in turn, so that nothing is kept longer than twice the time.
type writers struct {
	keep time.Duration

	mu             sync.Mutex
	recent, before map[any]bool // guarded by mu
	turned         time.Time    // guarded by mu; when recent began
}

func (w *writers) wrote(who any, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn(now)
	w.recent[who] = true
}

func (w *writers) lately(who any, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn(now)
	return w.recent[who] || w.before[who]
}

// turn drops the callers whose last write is older than keep.
func (w *writers) turn(now time.Time) {
	age := now.Sub(w.turned)
	switch {
	case age < w.keep:
		return
	case age < 2*w.keep:
		w.before = w.recent
	default: // also the writes of recent are older
		w.before = nil
	}
	w.recent, w.turned = map[any]bool{}, now
}
