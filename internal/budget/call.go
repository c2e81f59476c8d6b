package budget

import (
	"context"
	"sync"
)

// Call is the account of a call, and the memory of its conversion.
type Call struct {
	account *Account

	mu         sync.Mutex
	ended      bool  // guarded by mu
	converting *Hold // guarded by mu
}

type contextKey struct{}

// NewContext returns a context of a call with its account. End the call.
func NewContext(ctx context.Context, a *Account) (context.Context, *Call) {
	c := &Call{account: a}
	return context.WithValue(ctx, contextKey{}, c), c
}

func callOf(ctx context.Context) *Call {
	c, _ := ctx.Value(contextKey{}).(*Call)
	return c
}

// FromContext returns the account of a call; nil for calls of the process itself.
func FromContext(ctx context.Context) *Account {
	if c := callOf(ctx); c != nil {
		return c.account
	}
	return nil
}

// freeBytes are converted without a wait: its share of Working has room for it.
const freeBytes = 64 << 10

// Convert waits for the memory in which a call decodes or encodes stored bodies, until its end. It takes the
// place of the conversion before: a call that waits holds nothing of the pool. The call has no transaction
// and no connection.
func Convert(ctx context.Context, bytes int64) error {
	c := callOf(ctx)
	if c == nil {
		return nil
	}
	c.replace(nil)
	if bytes <= freeBytes {
		return nil
	}
	hold, err := c.account.Acquire(ctx, Converting, bytes)
	if err != nil {
		return err
	}
	c.replace(hold)
	return nil
}

func (c *Call) replace(hold *Hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.converting.Release(); c.ended {
		hold.Release()
		hold = nil
	}
	c.converting = hold
}

// End releases the memory of the conversion: the answer is encoded, or there is none.
func (c *Call) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.converting.Release()
	c.converting = nil
}
