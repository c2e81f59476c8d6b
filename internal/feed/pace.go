package feed

import (
	"sync"
	"time"
)

// Pace calls a function at once after a pause, and else no more often than once in an interval: several calls
// of Ring are one then. It is for rows that no caller waits for. The last Ring is always followed by a call.
type Pace struct {
	every time.Duration
	do    func()

	mu   sync.Mutex
	next time.Time // guarded by mu; not before
	due  bool      // guarded by mu; a timer runs
}

// NewPace returns a Pace.
func NewPace(every time.Duration, do func()) *Pace { return &Pace{every: every, do: do} }

// Ring calls the function now, or by a timer.
func (p *Pace) Ring() {
	p.mu.Lock()
	now := time.Now()
	wait := p.next.Sub(now)
	switch {
	case p.due:
		p.mu.Unlock()
		return
	case wait > 0:
		p.due = true
		time.AfterFunc(wait, p.fire)
		p.mu.Unlock()
		return
	}
	p.next = now.Add(p.every)
	p.mu.Unlock()
	p.do()
}

// fire calls the function. A Ring from now on is a further call, because the rows of its transaction may come
// too late for this one.
func (p *Pace) fire() {
	p.mu.Lock()
	p.due, p.next = false, time.Now().Add(p.every)
	p.mu.Unlock()
	p.do()
}
