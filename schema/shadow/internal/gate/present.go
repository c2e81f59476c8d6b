package gate

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// PresentSQL is a select list over a row m of meta: the next number of the sequence mark, and the current epoch. Its columns
// are scanned into EpochCheck.Columns.
const PresentSQL = `nextval('dbcontroller.mark'), ` + EpochNowSQL

// EpochCheck checks the epoch of a transaction by the columns of PresentSQL.
type EpochCheck struct {
	store *Gate
	tx    pgx.Tx
	seen  int64 // the greatest mark seen before the statement was sent
	mark  int64
	found *uuid.UUID // the epoch of the transaction; nil: the server is not the one on which it began
}

// Present returns the check of the epoch of a transaction.
func (s *Gate) Present(tx pgx.Tx) *EpochCheck {
	return &EpochCheck{store: s, tx: tx, seen: s.Rollback.Seen.Load()}
}

// Columns returns the scan targets of PresentSQL.
func (p *EpochCheck) Columns() []any { return []any{&p.mark, &p.found} }

// epoch returns the epoch of the transaction; nil when the server is not the one on which the stored epoch began, or the
// number shows that its database is an older copy. It records the number in the transaction.
func (p *EpochCheck) epoch() *uuid.UUID {
	if p.found == nil {
		return nil
	}
	if p.mark <= p.seen {
		p.store.Rollback.EndedEpoch.Store(p.found)
	}
	if p.store.Rollback.HasEnded(*p.found) {
		return nil
	}
	if m, ok := p.tx.(*db.Marked); ok {
		m.Mark = p.mark
	}
	return p.found
}

// Is reports whether the transaction runs in an epoch.
func (p *EpochCheck) Is(epoch uuid.UUID) bool {
	found := p.epoch()
	return found != nil && *found == epoch
}
