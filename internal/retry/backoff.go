// Package retry is shared by the loops that try again: growing pauses (Backoff), batches without the elements
// that fail (Halves), and an end for streams that fall silent (Watch).
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff has the pauses between tries: they double up to a maximum, with jitter, so that processes that
// failed together do not come back together. (The shape is the exponential back-off of gRPC's connection
// back-off protocol.) The zero Backoff is ready to use. It belongs to one goroutine.
type Backoff struct {
	// First is the first pause (default 50 ms), Max the longest one (default 10 s).
	First, Max time.Duration
	// AtOnce ends a pause of Forever, which then begins anew with the first one; may be nil.
	AtOnce <-chan struct{}
	last   time.Duration // without jitter; 0: the next pause is the first one
}

// Next is the next pause: between half of its nominal length and the whole.
func (b *Backoff) Next() time.Duration {
	first, longest := b.First, b.Max
	if first <= 0 {
		first = 50 * time.Millisecond
	}
	if longest <= 0 {
		longest = 10 * time.Second
	}
	b.last = min(max(2*b.last, first), longest)
	return b.last/2 + rand.N(b.last/2+1)
}

// Wait waits for the next pause; it fails with the error of ctx when that ends before.
func (b *Backoff) Wait(ctx context.Context) error {
	timer := time.NewTimer(b.Next())
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Reset makes the next pause the first one.
func (b *Backoff) Reset() { b.last = 0 }

// Fresh reports whether the next pause is the first one.
func (b *Backoff) Fresh() bool { return b.last == 0 }
