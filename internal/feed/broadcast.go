package feed

import "sync"

// Topics is a set of tables that watches follow; which bit is which belongs to the package that has the tables.
type Topics uint8

// Broadcast wakes the watches of some topics. It carries nothing and is never the reason that data is seen or missed.
type Broadcast struct {
	mu      sync.Mutex
	waiting map[Topics]chan struct{} // guarded by mu; closed, and forgotten, at the next Wake of the topic
}

// NewBroadcast makes a broadcast that nobody waits for yet.
func NewBroadcast() *Broadcast { return &Broadcast{waiting: map[Topics]chan struct{}{}} }

// Wait gives a channel that the next Wake of the topic closes. Take it before looking at the data.
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

// Wake wakes everybody who waits for one of the topics.
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
