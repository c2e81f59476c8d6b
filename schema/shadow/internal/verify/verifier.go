// Package verify compares references with other deployments, and inside one database bodies, lists of owners,
// rows of attached tables and rights with what is stored about them: for operators, in the background, and
// after a failover or a restore. It repairs the differences.
package verify

import (
	"sync/atomic"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/follow"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/operate"
	"github.com/db-controller/db-controller/schema/shadow/internal/rights"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// Verifier compares one deployment's references with all sides.
type Verifier struct {
	*db.DB
	gate    *gate.Gate
	operate *operate.Operations
	target  *target.Keeper
	write   *write.Writer
	follow  *follow.Follower
	rights  *rights.Rights
	rows    *rows.Rows

	// sampled is the last resource whose body an audit compared.
	sampled atomic.Int64
}

// New returns the Verifier of a database, which uses the given rooms.
func New(g *gate.Gate, o *operate.Operations, t *target.Keeper, w *write.Writer, f *follow.Follower, r *rights.Rights,
	rs *rows.Rows,
) *Verifier {
	return &Verifier{DB: g.DB, gate: g, operate: o, target: t, write: w, follow: f, rights: r, rows: rs}
}
