// Package attempt establishes the references of a write at other deployments, decides the attempt ABORTED
// when one refuses, and answers their questions about attempts.
package attempt

import (
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// Attempts are the attempts of one deployment.
type Attempts struct {
	*db.DB
	gate *gate.Gate
}

// New returns the Attempts of a database, which uses the given rooms.
func New(g *gate.Gate) *Attempts { return &Attempts{DB: g.DB, gate: g} }
