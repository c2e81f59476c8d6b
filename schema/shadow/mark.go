package shadow

import (
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// marks detects that the database was replaced by an older copy of itself. Every transaction that removes or decides
// something takes a number from the sequence mark, which nothing else uses: it is greater than each one that this process
// has committed with or has read from disk. An older copy returns a smaller number, even if its server has the same system
// identifier and timeline; from then on nothing is decided until a new epoch has begun.
type rollbackDetector struct {
	// seen only grows. Only numbers of committed transactions are included: a crash may lose the others.
	seen atomic.Int64
	// endedEpoch is the epoch in which a smaller number was taken. It counts as ended from then on, also when later transactions
	// take greater numbers: retries advance the copy's sequence.
	endedEpoch atomic.Pointer[uuid.UUID]
}

func (m *rollbackDetector) observe(n int64) {
	for {
		seen := m.seen.Load()
		if n <= seen || m.seen.CompareAndSwap(seen, n) {
			return
		}
	}
}

// ended reports whether a smaller number was taken in an epoch.
func (m *rollbackDetector) hasEnded(epoch uuid.UUID) bool {
	behind := m.endedEpoch.Load()
	return behind != nil && *behind == epoch
}

// presentSQL is a select list over a row m of meta: the next number of the sequence mark, and the current epoch; present reads it.
const presentSQL = `nextval('dbcontroller.mark'), ` + epochNowSQL

// present checks the epoch of a transaction by the columns of presentSQL.
type present struct {
	store *Store
	tx    pgx.Tx
	seen  int64 // marks.seen before the statement was sent
	mark  int64
	now   *uuid.UUID
}

func (s *Store) present(tx pgx.Tx) *present {
	return &present{store: s, tx: tx, seen: s.rollback.seen.Load()}
}

// columns returns the scan targets of presentSQL.
func (p *present) columns() []any { return []any{&p.mark, &p.now} }

// epoch returns the epoch of the transaction; nil when the server is not the one on which the stored epoch began, or the
// number shows that its database is an older copy. It records the number in the transaction.
func (p *present) epoch() *uuid.UUID {
	if p.now == nil {
		return nil
	}
	if p.mark <= p.seen {
		p.store.rollback.endedEpoch.Store(p.now)
	}
	if p.store.rollback.hasEnded(*p.now) {
		return nil
	}
	if m, ok := p.tx.(*marked); ok {
		m.mark = p.mark
	}
	return p.now
}

// is reports whether the transaction runs in an epoch.
func (p *present) is(epoch uuid.UUID) bool {
	now := p.epoch()
	return now != nil && *now == epoch
}

// marked is a transaction with the last number that it has taken from the sequence mark.
type marked struct {
	pgx.Tx
	mark int64
}
