package deletion

import (
	"context"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

// manner is how a deletion reaches other deployments: in turn, or atomically, now or later.
type manner interface {
	// prepare runs before a look-ahead. again: the try is repeated first.
	prepare(ctx context.Context) (again bool, err error)
	// walk returns the walk of a look-ahead that begins at an obstacle. exact: it names each member.
	walk(from *obstacle, exact bool) *plan.Walk
	// refusal is the error with which the result of a walk refuses the delete. waits: it waits for undecided
	// blockades, and looks again.
	refusal(ctx context.Context, w *plan.Walk, waits bool) error
	// carryOut carries a decision out, or schedules it, with further statements behind.
	carryOut(ctx context.Context, tx pgx.Tx, decided cascade.Decision, also *pgx.Batch, last db.Sender) error
	// ended returns the results, or the error, of the last try, when what it has prepared is settled.
	ended(ctx context.Context, results []peer.DeleteResult, err error) ([]peer.DeleteResult, error)
}

// inTurn is a deletion that acts in one deployment after the other. References that are written in between
// can keep a part of it.
type inTurn struct{ *deletion }

func (inTurn) prepare(context.Context) (again bool, err error) { return false, nil }

func (d inTurn) walk(from *obstacle, exact bool) *plan.Walk {
	w := plan.NewWalk(d.store.Self, d.store.Peers, false)
	w.MindAll, w.NameLeaves = from.tooMany(), exact || len(from.blockades)+len(from.blocks) > 0
	w.Begin(from.members)
	for _, t := range from.later {
		w.Follow(d.store.Self, t)
	}
	return w
}

func (d inTurn) refusal(ctx context.Context, w *plan.Walk, waits bool) error {
	if !waits { // otherwise the next look-ahead logs
		for _, u := range w.Unasked {
			d.store.Log.Warn("cannot ask a deployment for the part of a deletion there",
				zap.String("name", d.name()), zap.Stringer("deployment", u.Deployment), zap.Error(u),
				requestid.Field(ctx))
		}
	}
	return w.Refusal(d.name())
}

func (d inTurn) carryOut(ctx context.Context, tx pgx.Tx, decided cascade.Decision, also *pgx.Batch,
	last db.Sender,
) error {
	return d.store.cascade.CarryOutAnd(ctx, tx, decided, also, last)
}

func (inTurn) ended(_ context.Context, results []peer.DeleteResult, err error) ([]peer.DeleteResult, error) {
	return results, err
}
