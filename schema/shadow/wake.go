package shadow

import "sync"

// broadcast wakes everybody who waits. It carries nothing and is never the reason that data is seen or missed.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{} // guarded by mu; closed at the next Wake, which puts a new one here
}

func newBroadcast() *broadcast { return &broadcast{ch: make(chan struct{})} }

// Wait gives a channel that the next Wake closes. Take it before looking at the data.
func (b *broadcast) Wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}

// Wake closes the channel that was given out.
func (b *broadcast) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ch)
	b.ch = make(chan struct{})
}
