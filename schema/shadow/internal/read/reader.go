// Package read reads resources for clients: one, lists, watches, and the references that are stored of them.
// It changes nothing.
package read

import (
	"sync"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Reader reads one deployment's database.
type Reader struct {
	*db.DB
	gate *gate.Gate
	rows *rows.Rows
	// unknownKeys are the deployments that have shown a position of an unknown key: the log says so once.
	unknownKeys sync.Map // of schema.DeploymentID
}

// New returns the Reader of a database, which uses the given rooms.
func New(g *gate.Gate, rs *rows.Rows) *Reader { return &Reader{DB: g.DB, gate: g, rows: rs} }
