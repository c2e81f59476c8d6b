// Package compare finds differences inside one database: between bodies and their stored references and
// owners, and between the rows of attached tables, their resources and their rights. It has the values of all
// verifications, also of verifications with other deployments.
package compare

import (
	"context"
	"sync/atomic"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/rights"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// Comparer compares one deployment's bodies and rows.
type Comparer struct {
	*db.DB
	gate   *gate.Gate
	rows   *rows.Rows
	rights *rights.Rights
	// sampled is the last resource whose body an audit compared.
	sampled atomic.Int64
}

// New joins the parts.
func New(g *gate.Gate, rs *rows.Rows, r *rights.Rights) *Comparer {
	return &Comparer{DB: g.DB, gate: g, rows: rs, rights: r}
}

// comparing is the part of a run that a Comparer does.
type comparing struct {
	*Run
	store *Comparer
}

// Bodies compares the references and owners that the current version derives from bodies with the stored ones.
func (s *Comparer) Bodies(ctx context.Context, r *Run) error { return (&comparing{r, s}).bodies(ctx) }

// Tables compares the rows of attached tables with their resources, and the values of their references with the rights.
func (s *Comparer) Tables(ctx context.Context, r *Run) error { return (&comparing{r, s}).tables(ctx) }
