// Package cascade carries out deletions inside one database: it finds the closure of acting references,
// decides which members are removed at once and which wait, and executes that; also for rows that SQL has
// deleted, and for lost owners.
package cascade

import (
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"

	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Actor acts on deletions.
type Actor struct {
	*db.DB
	gate     *gate.Gate
	rows     *rows.Rows
	progress *Recorder
}

// New returns the Actor of a database, which uses the given rooms.
func New(g *gate.Gate, rs *rows.Rows, p *Recorder) *Actor {
	return &Actor{DB: g.DB, gate: g, rows: rs, progress: p}
}
