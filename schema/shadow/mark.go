package shadow

import (
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// marks tell a database from a copy of before. Every transaction that removes or decides something takes a number from a
// sequence, which nobody else takes numbers from: it is greater than all that this process has committed with, or has seen on
// disk. A copy of before gives out a smaller one, whatever the server calls itself; then nothing is decided until a new epoch
// has begun.
type marks struct {
	// seen only grows. A number counts when the transaction that took it has committed: a crash may forget others.
	seen atomic.Int64
	// behind is the epoch in which a smaller number was met. It has ended: further tries would soon take greater ones.
	behind atomic.Pointer[uuid.UUID]
}

func (m *marks) see(n int64) {
	for {
		seen := m.seen.Load()
		if n <= seen || m.seen.CompareAndSwap(seen, n) {
			return
		}
	}
}

// ended reports whether an epoch has ended, as far as numbers say.
func (m *marks) ended(epoch uuid.UUID) bool {
	behind := m.behind.Load()
	return behind != nil && *behind == epoch
}

// presentSQL is of a row m of meta: the number of a transaction that decides, and the epoch it is in; see present.
const presentSQL = `nextval('dbcontroller.mark'), ` + epochNowSQL

// present is what a transaction reads by presentSQL.
type present struct {
	store *Store
	tx    pgx.Tx
	seen  int64 // when the statement was made
	mark  int64
	now   *uuid.UUID
}

func (s *Store) present(tx pgx.Tx) *present {
	return &present{store: s, tx: tx, seen: s.marks.seen.Load()}
}

// columns are those of presentSQL.
func (p *present) columns() []any { return []any{&p.mark, &p.now} }

// epoch is null where the server is not noticed yet: it is another one, or its database a copy of before.
func (p *present) epoch() *uuid.UUID {
	if p.now == nil {
		return nil
	}
	if p.mark <= p.seen {
		p.store.marks.behind.Store(p.now)
	}
	if p.store.marks.ended(*p.now) {
		return nil
	}
	if m, ok := p.tx.(*marked); ok {
		m.mark = p.mark
	}
	return p.now
}

// is reports whether a transaction works in an epoch.
func (p *present) is(epoch uuid.UUID) bool {
	now := p.epoch()
	return now != nil && *now == epoch
}

// marked is a transaction with the last number that it has taken.
type marked struct {
	pgx.Tx
	mark int64
}
