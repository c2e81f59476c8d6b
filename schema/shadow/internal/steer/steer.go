// Package steer has the decisions of operators: pauses of deletions and handlers, work that is tried at once, and blockades, entries and owner
// references that are released without a release by their deployments.
package steer

import (
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// Steering carries out the decisions of operators.
type Steering struct {
	*db.DB
	gate    *gate.Gate
	cascade *cascade.Actor

	handlerPauses handlerPauses
}

// New joins the parts.
func New(g *gate.Gate, c *cascade.Actor) *Steering {
	return &Steering{DB: g.DB, gate: g, cascade: c}
}
