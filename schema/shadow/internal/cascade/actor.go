// Package cascade is what a deletion does inside one database: the closure of references that act, the decision of what goes at
// once and what waits, and its execution; for deletions here, for those in other deployments, and for lost owners.
package cascade

import (
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// Actor acts on deletions.
type Actor struct {
	*db.DB
	gate *gate.Gate
	// walks over the holders of targets that were interrupted; see acting.
	walks walks
}

// New joins the parts.
func New(g *gate.Gate) *Actor {
	return &Actor{DB: g.DB, gate: g}
}
