// Package prepare compares writes with the stored resources: a Saving has the references and owners that are
// added and dropped.
package prepare

import (
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// Preparer prepares the writes of one deployment.
type Preparer struct {
	*db.DB
	gate *gate.Gate
}

// New returns the Preparer of a database, which uses the given rooms.
func New(g *gate.Gate) *Preparer { return &Preparer{DB: g.DB, gate: g} }
