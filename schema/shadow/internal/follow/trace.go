package follow

import (
	"context"
	"fmt"
	"maps"
	"slices"

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

// Resources here whose deletion would remove some resources, of the kinds of attached tables.
var traceRowsSQL = db.Codes(`
WITH RECURSIVE up AS (
    SELECT uid AS origin, id FROM dbcontroller.shadow WHERE uid = ANY ($1)
    UNION
    SELECT up.origin, r.target_id FROM up JOIN dbcontroller.reference r ON r.holder_id = up.id AND r.behaviour IN ({cascade_delete}, {async_cascade_delete})
)
SELECT up.origin, s.kind_id, s.name FROM up JOIN dbcontroller.shadow s ON s.id = up.id WHERE s.kind_id = ANY ($2) LIMIT $3`)

// Trace returns, by uid, the resources whose deletion would remove some resources here. It follows references
// upwards (holder → target) where Plan follows them downwards; the fan-in is small where the fan-out is
// large.
func (s *Follower) Trace(ctx context.Context, uids []uuid.UUID) (map[uuid.UUID]peer.Trace, error) {
	out := map[uuid.UUID]peer.Trace{}
	err := s.traced(ctx, func(origin uuid.UUID, t peer.PlanTarget) {
		trace := out[origin]
		trace.Cascades = append(trace.Cascades, t)
		out[origin] = trace
	}, traceSQL, uids, s.SelfID, plan.MaxTraced)
	if err == nil && s.rows.Refer() {
		err = s.traceRows(ctx, uids, out)
	}
	if err != nil {
		return nil, err
	}
	return out, s.traced(ctx, func(origin uuid.UUID, t peer.PlanTarget) {
		trace := out[origin]
		trace.Owners = append(trace.Owners, t)
		out[origin] = trace
	}, traceOwnersSQL, uids, plan.MaxTraced)
}

func (s *Follower) traced(ctx context.Context, take func(origin uuid.UUID, t peer.PlanTarget), sql string,
	args ...any,
) error {
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

// traceRows adds the targets that rows of tables name.
func (s *Follower) traceRows(ctx context.Context, uids []uuid.UUID, out map[uuid.UUID]peer.Trace) error {
	found, err := s.Pool.Query(ctx, traceRowsSQL, uids, slices.Sorted(maps.Keys(s.rows.Tables())), plan.MaxTraced)
	if err != nil {
		return fmt.Errorf("trace cascades: %w", err)
	}
	origins := map[int32]map[string][]uuid.UUID{}
	var origin uuid.UUID
	var kind int32
	var name string
	_, err = pgx.ForEachRow(found, []any{&origin, &kind, &name}, func() error {
		if origins[kind] == nil {
			origins[kind] = map[string][]uuid.UUID{}
		}
		origins[kind][name] = append(origins[kind][name], origin)
		return nil
	})
	if err != nil {
		return fmt.Errorf("trace cascades: %w", err)
	}
	for kind, of := range origins {
		cascading, err := s.rows.Cascading(ctx, s.Pool, kind, slices.Sorted(maps.Keys(of)))
		if err != nil {
			return err
		}
		for name, targets := range cascading {
			for _, origin := range of[name] {
				trace := out[origin]
				trace.Cascades = append(trace.Cascades, targets...)
				out[origin] = trace
			}
		}
	}
	return nil
}
