// Package operate serves operators. It has their decisions: pauses of deletions and handlers, work that is
// tried at once, and blockades, entries and owner references that are released without a release by their
// deployments. It answers their questions about the state of the constraints, and changes nothing then:
// explanations, removals, referrers, audits, stuck deletions.
package operate

import (
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Operations are the decisions and questions of the operators of one deployment.
type Operations struct {
	*db.DB
	gate    *gate.Gate
	read    *read.Reader
	rows    *rows.Rows
	cascade *cascade.Actor

	handlerPauses handlerPauses
}

// New returns the Operations of a database, which uses the given rooms.
func New(g *gate.Gate, r *read.Reader, rs *rows.Rows, c *cascade.Actor) *Operations {
	return &Operations{DB: g.DB, gate: g, read: r, rows: rs, cascade: c}
}
