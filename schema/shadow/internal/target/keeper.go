// Package target is the side of references that their targets' deployment keeps: blockades and holder
// entries, which other deployments establish, confirm and release, and the acknowledgements of deletions.
package target

import (
	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Keeper stores the blockades and entries of holders in other deployments on this deployment's resources.
type Keeper struct {
	*db.DB
	gate  *gate.Gate
	rows  *rows.Rows
	usage *usage

	establishes *gather.Queue[*establishment] // transactions
}

// New returns the Keeper of a database, which uses the given rooms.
func New(g *gate.Gate, rs *rows.Rows) *Keeper {
	s := &Keeper{DB: g.DB, gate: g, rows: rs, usage: newUsage()}
	s.establishes = gather.New(gather.Config[*establishment]{
		Run: s.establishAll, Most: mostGathered,
		Beside: batchesAtOnce, Pace: pace, Waiting: mostWaiting,
	})
	return s
}

// Close ends the background work.
func (s *Keeper) Close() {
	s.establishes.Wait()
	s.usage.close()
}
