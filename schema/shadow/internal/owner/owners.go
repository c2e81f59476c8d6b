// Package owner keeps owner references true across deployments: owners are found, pinned, recorded with their
// ownees, and upgraded; ownees that lost their last owner are collected.
package owner

import (
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// Owners keeps the owner references of one deployment's resources.
type Owners struct {
	*db.DB
	gate    *gate.Gate
	cascade *cascade.Actor
	passes  passes
}

// New returns the Owners of a database, which uses the given rooms.
func New(g *gate.Gate, c *cascade.Actor) *Owners {
	return &Owners{DB: g.DB, gate: g, cascade: c}
}
