package shadow

import "sync"

// feeds is a set of tables that watches follow.
type feeds uint8

const (
	changeFeed feeds = 1 << iota
	workFeed
	noticeFeed
	noFeed   feeds = 0
	allFeeds feeds = changeFeed | workFeed | noticeFeed
)

// broadcast wakes the watches of some feeds. It carries nothing and is never the reason that data is seen or missed.
type broadcast struct {
	mu      sync.Mutex
	waiting map[feeds]chan struct{} // guarded by mu; closed, and forgotten, at the next Wake of the feed
}

func newBroadcast() *broadcast { return &broadcast{waiting: map[feeds]chan struct{}{}} }

// Wait gives a channel that the next Wake of the feed closes. Take it before looking at the data.
func (b *broadcast) Wait(feed feeds) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	ch := b.waiting[feed]
	if ch == nil {
		ch = make(chan struct{})
		b.waiting[feed] = ch
	}
	return ch
}

// Wake wakes everybody who waits for one of the feeds.
func (b *broadcast) Wake(touched feeds) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for feed, ch := range b.waiting {
		if feed&touched != 0 {
			close(ch)
			delete(b.waiting, feed)
		}
	}
}
