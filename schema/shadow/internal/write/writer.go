// Package write creates and updates resources: their references are established at other deployments first,
// then one transaction writes all. It also writes what is stored beside bodies: finalizers that are done,
// statuses, and block_deletion.
package write

import (
	"sync/atomic"

	"golang.org/x/sync/singleflight"

	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/schema"
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
	rights   *rightFinder
	// delegatedWrites counts the references written under rights.
	delegatedWrites atomic.Int64

	// ran has the version and the epoch that a transaction has seen last as the current ones.
	ran atomic.Pointer[ran]

	cohorts cohorts
	commits *gather.Queue[*prepare.Saving] // transactions
	reading singleflight.Group             // of the version, before references are established
}

// New returns the Writer of a database, which uses the given rooms.
func New(g *gate.Gate, rs *rows.Rows, p *prepare.Preparer, a *attempt.Attempts) *Writer {
	s := &Writer{
		DB: g.DB, gate: g, rows: rs, preparer: p, attempts: a, rights: newRightFinder(g.DB),
		cohorts: cohorts{at: map[schema.DeploymentID]*gather.Queue[*member]{}},
	}
	s.commits = gather.New(gather.Config[*prepare.Saving]{
		Run: s.transactAll, Most: mostGathered, Beside: batchesAtOnce,
		Pace: pace, Waiting: mostWaiting,
	})
	return s
}

// Close returns when no transaction runs in the background. Nothing may write any more.
func (s *Writer) Close() {
	s.cohorts.wait()
	s.commits.Wait()
}

// DelegatedWrites is the number of references that this process has written under rights.
func (s *Writer) DelegatedWrites() int64 { return s.delegatedWrites.Load() }
