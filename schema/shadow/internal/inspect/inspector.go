// Package inspect answers questions about the state of the constraints: explanations, removals, referrers, audits, stuck deletions. It
// changes nothing.
package inspect

import (
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Inspector reads one deployment's database.
type Inspector struct {
	*db.DB
	gate *gate.Gate
	read *read.Reader
	rows *rows.Rows
}

// New joins the parts.
func New(g *gate.Gate, r *read.Reader, rs *rows.Rows) *Inspector {
	return &Inspector{DB: g.DB, gate: g, read: r, rows: rs}
}
