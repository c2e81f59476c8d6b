package postgres

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pool is a *pgxpool.Pool, or its *Lanes.
type Pool interface {
	Statements
	Transactions
	Connections
}

// Statements run outside of a transaction of the caller's.
type Statements interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Transactions begins them.
type Transactions interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Connections are the pool's methods that are not about statements.
type Connections interface {
	Ping(ctx context.Context) error
	Config() *pgxpool.Config
	Reset()
	Close()
}

// Lane is a class of statements. Each lane has connections that no other lane uses.
type Lane int

// The lanes. Work is the lane of a context without a Caller.
const (
	Work    Lane = iota // handlers, audits and other work of the process
	Control             // leases, epochs, reads that watches share, health: short statements that nothing may delay
	Peers               // calls of other deployments
	Writes              // writes of people
	Reads               // reads of people
	lanes
)

// Caller is on whose behalf statements run.
type Caller struct {
	Lane Lane
	// The key who of a caller is comparable. The statements of one Who are bounded; statements with nil are
	// not.
	Who any
	// Refused is called for each statement that is refused; may be nil.
	Refused func()
	// Standby: the call may be answered by a standby, by a state that is a little older than the primary's.
	Standby bool
}

type callerKey struct{}

// WithCaller returns a context for the statements of a caller.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller of WithCaller; the zero Caller, of the lane Work, without one.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// OfPrimary returns a context for the same caller's reads of the latest state.
func OfPrimary(ctx context.Context) context.Context {
	c := CallerOf(ctx)
	c.Standby = false
	return WithCaller(ctx, c)
}

// InControl returns a context for statements of the process in the lane Control.
func InControl(ctx context.Context) context.Context { return WithCaller(ctx, Caller{Lane: Control}) }

type overKey struct{}

// Over returns a context whose statements and transactions run over the connections of a standby, of whatever
// lanes of the primary they are asked; with nil, of those again.
func Over(ctx context.Context, standby *Lanes) context.Context {
	return context.WithValue(ctx, overKey{}, standby)
}

// over returns the lanes whose connections serve a context.
func (l *Lanes) over(ctx context.Context) *Lanes {
	if standby, _ := ctx.Value(overKey{}).(*Lanes); standby != nil {
		return standby
	}
	return l
}

// ErrTooMany is the error of a statement whose caller has maxUnderWay others.
var ErrTooMany = errors.New(
	"256 statements of this caller are running or waiting, and more are not allowed: wait until some of them end")

// maxUnderWay is the number of statements and transactions of one caller that run or wait.
const maxUnderWay = 256

// Lanes divides the connections of a pool among lanes. Some connections are reserved for each lane, the
// others are shared. Within a lane the callers are served in turn, and one caller has at most half of all
// connections, so that neither a lane nor a caller can make another one wait for long. A transaction counts
// from its begin to its end.
type Lanes struct {
	*pgxpool.Pool               // of the calls
	own           *pgxpool.Pool // of the lanes Work and Control: the same one, or one of another role

	most int // connections of one caller
	// answered is when a row or a batch was last answered, in Unix nanoseconds; 0 behind a failure.
	answered atomic.Int64

	mu     sync.Mutex
	shared int          // guarded by mu; free connections that every lane may take
	lanes  [lanes]*lane // guarded by mu; two lanes can be the same
	uses   map[any]*use // guarded by mu; of callers with statements running or waiting
}

type lane struct {
	reserved int    // free connections of the lane
	waiting  []*use // callers with tickets, in the order of their turns
}

// use counts the statements of one caller, in all lanes. The process itself has one for each lane.
type use struct {
	key      any
	bounded  bool
	running  int // statements
	underWay int // including the waiting ones
	waiting  map[*lane][]*ticket
}

// ticket is a wait for a connection, and then the connection.
type ticket struct {
	use     *use
	lane    *lane
	granted chan struct{} // closed when the connection is granted
	shared  bool          // it is one of the shared connections
}

// NewLanes divides a pool. A pool of four connections has one lane for all calls of people.
func NewLanes(pool *pgxpool.Pool) *Lanes { return NewLanesOfRoles(pool, pool) }

// NewLanesOfRoles divides as many connections as the pool of the calls has: statements for calls use that
// pool, those of the process the other one. Each pool opens the connections that its lanes need at a time.
func NewLanesOfRoles(calls, own *pgxpool.Pool) *Lanes {
	free := int(calls.Config().MaxConns)
	l := &Lanes{Pool: calls, own: own, most: max(1, free/2), uses: map[any]*use{}}
	each := 1 + free/20
	for i := range l.lanes {
		if free < each { // the last ones
			l.lanes[i] = l.lanes[i-1]
			continue
		}
		l.lanes[i] = &lane{reserved: each}
		free -= each
	}
	l.shared = free
	return l
}

// pool returns the pool of a caller's lane.
func (l *Lanes) pool(ctx context.Context) *pgxpool.Pool {
	if lane := CallerOf(ctx).Lane; lane == Work || lane == Control {
		return l.own
	}
	return l.Pool
}

// Pools returns the different pools.
func (l *Lanes) Pools() []*pgxpool.Pool {
	if l.own == l.Pool {
		return []*pgxpool.Pool{l.Pool}
	}
	return []*pgxpool.Pool{l.Pool, l.own}
}

// Reset closes the connections of all pools; those in use when they are given back.
func (l *Lanes) Reset() {
	for _, p := range l.Pools() {
		p.Reset()
	}
}

// Close closes all pools.
func (l *Lanes) Close() {
	for _, p := range l.Pools() {
		p.Close()
	}
}

// Config is of the pool of the process's own work.
func (l *Lanes) Config() *pgxpool.Config { return l.own.Config() }

// enter waits for a connection for the caller of ctx. leave gives it back; it may be called more than once.
func (l *Lanes) enter(ctx context.Context) (leave func(), err error) {
	c := CallerOf(ctx)
	t := l.join(c)
	if t == nil {
		if c.Refused != nil {
			c.Refused()
		}
		return nil, ErrTooMany
	}
	leave = sync.OnceFunc(func() { l.leave(t) })
	select {
	case <-t.granted:
		return leave, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// join returns a ticket, which may be granted already; nil when the caller has too many.
func (l *Lanes) join(c Caller) *ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := c.Who
	if key == nil {
		key = c.Lane
	}
	u := l.uses[key]
	if u == nil {
		u = &use{key: key, bounded: c.Who != nil, waiting: map[*lane][]*ticket{}}
		l.uses[key] = u
	}
	if u.bounded && u.underWay == maxUnderWay {
		return nil
	}
	t := &ticket{use: u, lane: l.lanes[c.Lane], granted: make(chan struct{})}
	u.underWay++
	u.waiting[t.lane] = append(u.waiting[t.lane], t)
	if !slices.Contains(t.lane.waiting, u) {
		t.lane.waiting = append(t.lane.waiting, u)
	}
	l.grant(t.lane)
	return t
}

// grant assigns free connections to the callers that wait in a lane.
func (l *Lanes) grant(at *lane) {
	for at.reserved > 0 || l.shared > 0 {
		t := l.next(at)
		if t == nil {
			return
		}
		if t.shared = at.reserved == 0; t.shared {
			l.shared--
		} else {
			at.reserved--
		}
		t.use.running++
		close(t.granted)
	}
}

// next removes the ticket whose turn it is, and puts its caller behind the others; nil when no caller may
// have a connection.
func (l *Lanes) next(at *lane) *ticket {
	i := slices.IndexFunc(at.waiting, func(u *use) bool { return !u.bounded || u.running < l.most })
	if i < 0 {
		return nil
	}
	u := at.waiting[i]
	at.waiting = slices.Delete(at.waiting, i, i+1)
	t := u.waiting[at][0]
	if u.waiting[at] = u.waiting[at][1:]; len(u.waiting[at]) > 0 {
		at.waiting = append(at.waiting, u)
	}
	return t
}

// leave ends a statement, or the wait of one.
func (l *Lanes) leave(t *ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u, at := t.use, t.lane
	if i := slices.Index(u.waiting[at], t); i >= 0 { // its turn has not come
		if u.waiting[at] = slices.Delete(u.waiting[at], i, i+1); len(u.waiting[at]) == 0 {
			at.waiting = slices.DeleteFunc(at.waiting, func(other *use) bool { return other == u })
		}
	} else {
		u.running--
		if t.shared {
			l.shared++
		} else {
			at.reserved++
		}
	}
	if u.underWay--; u.underWay == 0 {
		delete(l.uses, u.key)
	}
	for _, at := range l.lanes { // a caller that was at its limit may wait in another lane
		l.grant(at)
	}
}
