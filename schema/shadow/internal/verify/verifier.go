// Package verify compares references with bodies and with other deployments, for operators, in the background, and after a
// failover or a restore, and repairs the differences.
package verify

import (
	"github.com/db-controller/db-controller/schema/shadow/internal/compare"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/follow"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/inspect"
	"github.com/db-controller/db-controller/schema/shadow/internal/rights"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// Verifier compares one deployment's references with all sides.
type Verifier struct {
	*db.DB
	gate    *gate.Gate
	inspect *inspect.Inspector
	target  *target.Keeper
	write   *write.Writer
	follow  *follow.Follower
	compare *compare.Comparer
	rights  *rights.Rights
}

// New joins the parts.
func New(g *gate.Gate, i *inspect.Inspector, t *target.Keeper, w *write.Writer, f *follow.Follower, c *compare.Comparer, r *rights.Rights) *Verifier {
	return &Verifier{DB: g.DB, gate: g, inspect: i, target: t, write: w, follow: f, compare: c, rights: r}
}
