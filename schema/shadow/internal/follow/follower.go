// Package follow acts on the holders here of resources that are deleted elsewhere, or that are gone: it
// unsets and cascades them in batches, any number of them.
package follow

import (
	"sync"

	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"

	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Follower acts on holders.
type Follower struct {
	*db.DB
	gate     *gate.Gate
	rows     *rows.Rows
	cascade  *cascade.Actor
	progress *cascade.Recorder
	// walks over the holders of targets that were interrupted.
	walks walks
	// positioned are the deployments (checkedPosition by schema.DeploymentID) that have a stored position.
	positioned sync.Map
}

// New returns the Follower of a database, which uses the given rooms.
func New(g *gate.Gate, rs *rows.Rows, c *cascade.Actor, p *cascade.Recorder) *Follower {
	return &Follower{DB: g.DB, gate: g, rows: rs, cascade: c, progress: p}
}
