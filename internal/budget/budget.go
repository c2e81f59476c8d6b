// Package budget bounds the memory that callers have in use at a server: each caller has a share of several
// pools, and all callers together have a total. A call that waits in one pool may hold memory of the pools
// before it, and of no other: no two wait for each other.
package budget

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Pool is a class of memory.
type Pool int

// The pools, in the order in which a call may hold them.
const (
	Receiving  Pool = iota // messages that have not arrived completely
	Working                // calls in progress, and answers that are not sent
	Streaming              // watches and other streams
	Converting             // stored bodies, while they are decoded or encoded
	Watching               // pages of watches
	Sending                // messages of watches that are not sent
	pools
)

// Share is the memory of one caller in each pool, in bytes.
var Share = [pools]int64{
	Receiving: 8 << 20, Working: 18 << 20, Streaming: 8 << 20, Converting: 12 << 20,
	Watching: 6 << 20, Sending: 6 << 20,
}

// DefaultTotal is the memory of all callers together.
const DefaultTotal = 512 << 20

// ErrExhausted is the error of a caller that had too much in use for as long as it waited.
var ErrExhausted = errors.New(
	"requests and answers of this caller, or of all together, take all the memory that they may: read the answers, and send fewer requests at a time")

// Budget is the memory of all callers. Within a pool they are served in turn.
type Budget struct {
	mu       sync.Mutex
	free     [pools]int64     // guarded by mu; less than 0 when messages were larger than expected
	accounts map[any]*Account // guarded by mu; of callers
	turns    [pools][]*Account
}

// New returns a budget of so many bytes; each pool has its part of them, and at least one caller's share.
func New(total int64) *Budget {
	b := &Budget{accounts: map[any]*Account{}}
	var all int64
	for _, share := range Share {
		all += share
	}
	for p := range b.free {
		b.free[p] = max(Share[p], total/all*Share[p])
	}
	return b
}

// Account is the memory of one caller.
type Account struct {
	budget *Budget
	key    any
	parent *Account // its memory counts for this one too; may be nil
	share  [pools]int64

	// Guarded by budget.mu.
	references int
	used       [pools]int64
	waiting    [pools][]*Hold
}

// Open returns the account of a comparable key, or of two: the first one's memory counts for the second as
// well, of whose share it may have a half. Close it.
func (b *Budget) Open(keys ...any) *Account {
	b.mu.Lock()
	defer b.mu.Unlock()
	var a *Account
	for i := len(keys) - 1; i >= 0; i-- {
		parent := a
		if a = b.accounts[keys[i]]; a == nil {
			a = &Account{budget: b, key: keys[i], parent: parent, share: Share}
			if parent != nil {
				for p := range a.share {
					a.share[p] /= 2
				}
			}
			b.accounts[a.key] = a
		}
		a.references++
	}
	return a
}

// Close gives an account back, which its holds may outlive.
func (a *Account) Close() {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.close()
}

func (a *Account) close() {
	for ; a != nil; a = a.parent {
		if a.references--; a.references == 0 {
			delete(a.budget.accounts, a.key)
		}
	}
}

// Hold is a part of a caller's memory.
type Hold struct {
	account *Account
	pool    Pool
	bytes   int64         // guarded by budget.mu
	granted chan struct{} // closed when it is granted
}

// Acquire waits until so many bytes are free, at most the share of the account. Without an account it returns
// a hold of nothing. Release it.
func (a *Account) Acquire(ctx context.Context, pool Pool, bytes int64) (*Hold, error) {
	if a == nil {
		return nil, nil //nolint:nilnil // its methods do nothing
	}
	h := a.ask(pool, bytes)
	select {
	case <-h.granted:
		return h, nil
	case <-ctx.Done():
		h.Release()
		return nil, ErrExhausted
	}
}

// Take is Acquire without a wait: others wait longer.
func (a *Account) Take(pool Pool, bytes int64) *Hold {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	h := a.hold(pool, bytes)
	a.add(pool, bytes)
	return h
}

// TakeHalf is Take if it is free, and the account has taken at most half of its share with it.
func (a *Account) TakeHalf(pool Pool, bytes int64) (h *Hold, ok bool) {
	if a == nil {
		return nil, true
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	if a.used[pool]+bytes > a.share[pool]/2 || bytes > a.budget.free[pool] {
		return nil, false
	}
	h = a.hold(pool, bytes)
	a.add(pool, bytes)
	return h, true
}

func (a *Account) hold(pool Pool, bytes int64) *Hold {
	for up := a; up != nil; up = up.parent {
		up.references++
	}
	return &Hold{account: a, pool: pool, bytes: bytes, granted: make(chan struct{})}
}

func (a *Account) ask(pool Pool, bytes int64) *Hold {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	h := a.hold(pool, min(bytes, a.share[pool]))
	if a.waiting[pool] = append(a.waiting[pool], h); len(a.waiting[pool]) == 1 {
		a.budget.turns[pool] = append(a.budget.turns[pool], a)
	}
	a.budget.grant(pool)
	return h
}

// grant serves the calls that wait in a pool, one of each caller in turn. A call that fits into its share and
// not into the free memory keeps its turn: others, who need less, do not pass it for ever.
func (b *Budget) grant(pool Pool) {
	for i := 0; i < len(b.turns[pool]); {
		a := b.turns[pool][i]
		h := a.waiting[pool][0]
		switch {
		case !a.fits(pool, h.bytes):
			i++
			continue
		case h.bytes > b.free[pool]:
			return
		}
		a.add(pool, h.bytes)
		close(h.granted)
		b.turns[pool] = slices.Delete(b.turns[pool], i, i+1)
		if a.waiting[pool] = a.waiting[pool][1:]; len(a.waiting[pool]) > 0 {
			b.turns[pool] = append(b.turns[pool], a)
		}
	}
}

func (a *Account) fits(pool Pool, bytes int64) bool {
	for ; a != nil; a = a.parent {
		if a.used[pool]+bytes > a.share[pool] {
			return false
		}
	}
	return true
}

func (a *Account) add(pool Pool, bytes int64) {
	a.budget.free[pool] -= bytes
	for ; a != nil; a = a.parent {
		a.used[pool] += bytes
	}
}

// Set changes the size of a hold. It does not wait: a call that needs more than expected gets it, and others
// wait longer.
func (h *Hold) Set(bytes int64) {
	if h == nil {
		return
	}
	h.account.budget.mu.Lock()
	defer h.account.budget.mu.Unlock()
	h.account.add(h.pool, bytes-h.bytes)
	h.bytes = bytes
	h.account.budget.grant(h.pool)
}

// Release ends a hold, or the wait for it. It may be called once.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	a, b := h.account, h.account.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(a.waiting[h.pool], h); i >= 0 {
		if a.waiting[h.pool] = slices.Delete(a.waiting[h.pool], i, i+1); len(a.waiting[h.pool]) == 0 {
			b.turns[h.pool] = slices.DeleteFunc(b.turns[h.pool], func(other *Account) bool { return other == a })
		}
	} else {
		a.add(h.pool, -h.bytes)
	}
	a.close()
	b.grant(h.pool)
}
