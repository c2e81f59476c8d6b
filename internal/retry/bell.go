package retry

import (
	"context"
	"sync"
)

// bellRoom is the number of keys that wait for a busy listener.
const bellRoom = 16

// Bell makes loops of one process try waiting work at once. The zero key stands for everything. The zero Bell
// is ready to use, and safe for concurrent use.
type Bell[K comparable] struct {
	mu        sync.Mutex
	listeners map[chan K]bool // guarded by mu
}

// Listen returns a channel of the keys that are rung until ctx ends. It is never closed.
func (b *Bell[K]) Listen(ctx context.Context) <-chan K {
	heard := make(chan K, bellRoom)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listeners == nil {
		b.listeners = map[chan K]bool{}
	}
	b.listeners[heard] = true
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listeners, heard)
	})
	return heard
}

// Ring sends a key to the listeners, and waits for none of them: a listener that is too busy for single keys
// gets the zero key.
func (b *Bell[K]) Ring(k K) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for heard := range b.listeners {
		select {
		case heard <- k:
			continue
		default:
		}
		for len(heard) == cap(heard) { // the only sender holds mu: there is a place for the next one
			select {
			case <-heard:
			default:
			}
		}
		var all K
		heard <- all
	}
}
