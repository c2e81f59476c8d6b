package follow

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
)

var traceSQL = db.Codes(`
WITH RECURSIVE up AS (
    SELECT s.uid AS origin, r.target_id
    FROM dbcontroller.shadow s JOIN dbcontroller.reference r ON r.holder_id = s.id AND r.behaviour IN ({cascade_delete}, {async_cascade_delete})
    WHERE s.uid = ANY ($1)
    UNION
    SELECT up.origin, r.target_id FROM up JOIN dbcontroller.reference r ON r.holder_id = up.target_id AND r.behaviour IN ({cascade_delete}, {async_cascade_delete})
)
SELECT up.origin, COALESCE(f.deployment_id, $2), COALESCE(f.uid, t.uid)
FROM up LEFT JOIN dbcontroller.foreign_target f ON f.id = up.target_id LEFT JOIN dbcontroller.shadow t ON t.id = up.target_id
WHERE COALESCE(f.uid, t.uid) IS NOT NULL LIMIT $3`)

var traceOwnersSQL = db.Codes(`
WITH RECURSIVE up AS (
    SELECT uid AS origin, id FROM dbcontroller.shadow WHERE uid = ANY ($1)
    UNION
    SELECT up.origin, r.target_id FROM up JOIN dbcontroller.reference r ON r.holder_id = up.id AND r.behaviour IN ({cascade_delete}, {async_cascade_delete})
)
SELECT DISTINCT up.origin, o.deployment_id, o.uid FROM up JOIN dbcontroller.owner_reference o ON o.ownee_id = up.id LIMIT $2`)

// Trace returns, by uid, the resources whose deletion would remove some resources here. It follows references upwards (holder →
// target) where Plan follows them downwards; the fan-in is small where the fan-out is large.
func (s *Follower) Trace(ctx context.Context, uids []uuid.UUID) (map[uuid.UUID]peer.Trace, error) {
	out := map[uuid.UUID]peer.Trace{}
	err := s.traced(ctx, func(origin uuid.UUID, t peer.PlanTarget) {
		trace := out[origin]
		trace.Cascades = append(trace.Cascades, t)
		out[origin] = trace
	}, traceSQL, uids, s.SelfID, plan.MaxTraced)
	if err != nil {
		return nil, err
	}
	return out, s.traced(ctx, func(origin uuid.UUID, t peer.PlanTarget) {
		trace := out[origin]
		trace.Owners = append(trace.Owners, t)
		out[origin] = trace
	}, traceOwnersSQL, uids, plan.MaxTraced)
}

func (s *Follower) traced(ctx context.Context, take func(origin uuid.UUID, t peer.PlanTarget), sql string, args ...any) error {
	rows, err := s.Pool.Query(ctx, sql, args...)
	if err != nil {
		return fmt.Errorf("trace cascades: %w", err)
	}
	type found struct {
		Origin     uuid.UUID
		Deployment int32
		UID        uuid.UUID
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[found])
	if err != nil {
		return fmt.Errorf("trace cascades: %w", err)
	}
	for _, f := range all {
		d, err := s.Names.DeploymentOf(ctx, s.Pool, f.Deployment)
		if err != nil {
			return err
		}
		take(f.Origin, peer.PlanTarget{Deployment: d, UID: f.UID})
	}
	return nil
}
