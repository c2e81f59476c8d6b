// Package verify compares references with bodies and with other deployments, for operators, in the background, and after a
// failover or a restore, and repairs the differences.
package verify

import (
	"sync"
	"sync/atomic"

	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// Verifier compares one deployment's references with all sides.
type Verifier struct {
	*db.DB
	gate    *gate.Gate
	read    *read.Reader
	target  *target.Keeper
	write   *write.Writer
	cascade *cascade.Actor
	rows    *rows.Rows
	// sampled is the last resource whose body an audit compared.
	sampled atomic.Int64
	// compared are the keys (by kind) after which an audit goes on comparing an attached table.
	compared sync.Map
}

// New joins the parts.
func New(g *gate.Gate, r *read.Reader, t *target.Keeper, w *write.Writer, c *cascade.Actor, rs *rows.Rows) *Verifier {
	return &Verifier{DB: g.DB, gate: g, read: r, target: t, write: w, cascade: c, rows: rs}
}
