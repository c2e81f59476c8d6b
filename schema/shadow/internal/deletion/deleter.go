// Package deletion is a user's delete: it looks ahead over all deployments, refuses a blocked deletion, and
// begins the deletion in this deployment's database. Plans and traces read the same graph.
package deletion

import (
	"context"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/attempt"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/follow"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
)

// Deleter deletes resources of one deployment.
type Deleter struct {
	*db.DB
	gate    *gate.Gate
	target  *target.Keeper
	cascade *cascade.Actor
	follow  *follow.Follower
	rows    *rows.Rows
	// Of atomic deletions.
	attempts *attempt.Attempts
	prepare  *prepare.Preparer
	tries    *gather.Queue[*try]
}

// New returns the Deleter of a database, which uses the given rooms.
func New(g *gate.Gate, t *target.Keeper, p *prepare.Preparer, a *attempt.Attempts, c *cascade.Actor, f *follow.Follower,
	rs *rows.Rows,
) *Deleter {
	s := &Deleter{DB: g.DB, gate: g, target: t, prepare: p, attempts: a, cascade: c, follow: f, rows: rs}
	s.tries = gather.New(gather.Config[*try]{
		Run: s.tryAll, Most: mostGathered, Beside: 2, Pace: pace,
		Waiting: mostWaiting,
	})
	return s
}

// Trace is the follower's Trace.
func (s *Deleter) Trace(ctx context.Context, uids []uuid.UUID) (map[uuid.UUID]peer.Trace, error) {
	return s.follow.Trace(ctx, uids)
}
