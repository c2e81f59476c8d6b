package feed

import "sync"

// Topics is a set of tables that watches follow. The package that has the tables assigns the bits.
type Topics uint8

// Broadcast wakes the watches of some topics. It carries no data: a lost or needless wake-up changes only
// when a watch reads.
type Broadcast struct {
	mu      sync.Mutex
	waiting map[Topics]chan struct{} // guarded by mu; closed and removed at the next Wake of the topic
}

// NewBroadcast returns a broadcast without waiters.
func NewBroadcast() *Broadcast { return &Broadcast{waiting: map[Topics]chan struct{}{}} }

// Wait returns a channel that the next Wake of the topic closes. Call it before reading the data.
func (b *Broadcast) Wait(topic Topics) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	ch := b.waiting[topic]
	if ch == nil {
		ch = make(chan struct{})
		b.waiting[topic] = ch
	}
	return ch
}

// Wake wakes all waiters of the topics.
func (b *Broadcast) Wake(touched Topics) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for topic, ch := range b.waiting {
		if topic&touched != 0 {
			close(ch)
			delete(b.waiting, topic)
		}
	}
}
