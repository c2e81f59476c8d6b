package serve

import (
	"sync"
	"time"
)

// reloads passes the settings of a process that are read again to its parts, once they exist.
type reloads[C any] struct {
	mu     sync.Mutex
	latest *C      // guarded by mu; nil until settings are read again
	apply  func(C) // guarded by mu; nil until the parts exist
}

func (r *reloads[C]) pass(settings C) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = &settings
	if r.apply != nil {
		r.apply(settings)
	}
}

// to registers apply for settings that are read again, and calls it with the last ones read before.
func (r *reloads[C]) to(apply func(C)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apply = apply
	if r.latest != nil {
		apply(*r.latest)
	}
}

// reload applies the settings that can change while the process runs.
func (d *deployment) reload(c deploymentConfig) {
	d.store.Tune(c.store.tuning())
	d.server.Written.SetMax(c.store.maxWritten << 20)
	d.endpoints.reload(c.server)
	d.auditing.reload(c.audit)
}

func (e *endpoints) reload(c serverConfig) { e.stopTimeout.Store(int64(c.stopTimeout)) }

// auditing is the pace of the audits.
type auditing struct {
	mu      sync.Mutex
	present auditConfig   // guarded by mu
	changed chan struct{} // one place
}

func newAuditing(c auditConfig) *auditing {
	return &auditing{present: c, changed: make(chan struct{}, 1)}
}

func (a *auditing) reload(c auditConfig) {
	a.mu.Lock()
	a.present = c
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default: // it is read soon
	}
}

func (a *auditing) pace() (pause time.Duration, rate int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.present.interval, a.present.rate
}
