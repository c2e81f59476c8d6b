// Package write creates and updates resources: their references are established at other deployments first, then one
// transaction writes all.
package write

import (
	"sync/atomic"

	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/schema/shadow/internal/attempt"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Writer writes resources of one deployment.
type Writer struct {
	*db.DB
	gate     *gate.Gate
	rows     *rows.Rows
	preparer *prepare.Preparer
	attempts *attempt.Attempts
	// delegatedWrites counts the references written under rights.
	delegatedWrites atomic.Int64

	commits  *gather.Queue[*prepare.Saving] // transactions
	readings *gather.Queue[*prepare.Saving] // of the version, before references are established
}

// New joins the parts.
func New(g *gate.Gate, rs *rows.Rows, p *prepare.Preparer, a *attempt.Attempts) *Writer {
	s := &Writer{DB: g.DB, gate: g, rows: rs, preparer: p, attempts: a}
	s.commits = gather.New(gather.Config[*prepare.Saving]{Run: s.transactAll, Alone: aloneUpTo, Most: mostGathered, Batches: batchesAtOnce, Waiting: mostWaiting})
	s.readings = gather.New(gather.Config[*prepare.Saving]{Run: s.stillRunTogether, Alone: 1, Most: mostGathered, Waiting: mostWaiting})
	return s
}

// Close returns when no transaction runs in the background. Nothing may write any more.
func (s *Writer) Close() {
	s.readings.Wait()
	s.commits.Wait()
}
