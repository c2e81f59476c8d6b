// Package admin changes a deployment: version switches, kept environments, decommissioned deployments; and tidies up.
package admin

import (
	"sync/atomic"

	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/verify"
)

// Admin administers one deployment's database.
type Admin struct {
	*db.DB
	gate    *gate.Gate
	cascade *cascade.Actor
	verify  *verify.Verifier
	// tidied is the last foreign target that Tidy looked at.
	tidied atomic.Int64
}

// New joins the parts.
func New(g *gate.Gate, c *cascade.Actor, v *verify.Verifier) *Admin {
	return &Admin{DB: g.DB, gate: g, cascade: c, verify: v}
}
