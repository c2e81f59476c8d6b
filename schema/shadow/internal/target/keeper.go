// Package target is the side of references that their targets' deployment keeps: blockades and holder entries, which other
// deployments establish, confirm and release, and the acknowledgements of deletions.
package target

import (
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// Keeper keeps what holders in other deployments have on this deployment's resources.
type Keeper struct {
	*db.DB
	gate  *gate.Gate
	usage *usage
}

// New joins the parts.
func New(g *gate.Gate) *Keeper {
	return &Keeper{DB: g.DB, gate: g, usage: newUsage(g.Cfg.Limits.Quotas)}
}

// Close ends what runs in the background.
func (s *Keeper) Close() { s.usage.close() }
