// Package admin changes a deployment: version switches, kept environments, decommissioned deployments; and
// tidies up.
package admin

import (
	"sync/atomic"

	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/follow"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/rights"
	"github.com/db-controller/db-controller/schema/shadow/internal/verify"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// Admin administers one deployment's database.
type Admin struct {
	*db.DB
	*Deriver
	gate    *gate.Gate
	cascade *cascade.Actor
	follow  *follow.Follower
	verify  *verify.Verifier
	rights  *rights.Rights
	// tidied is the last foreign target that Tidy looked at.
	tidied atomic.Int64
}

// New returns the Admin of a database, which uses the given rooms.
func New(g *gate.Gate, p *prepare.Preparer, w *write.Writer, c *cascade.Actor, f *follow.Follower, v *verify.Verifier,
	r *rights.Rights,
) *Admin {
	return &Admin{DB: g.DB, Deriver: newDeriver(g, p, w), gate: g, cascade: c, follow: f, verify: v, rights: r}
}
