package deletion

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// By the index of targets; without the targets of the question, which are no new resources, and without the holders, whose shadows would cost more than the count itself.
var (
	countReferencesSQL = db.Codes(`
SELECT r.field_id, r.behaviour, count(*) FROM dbcontroller.reference r
WHERE r.target_id = ANY ($1) AND r.behaviour IN ({cascade_delete}, {async_cascade_delete}) AND NOT r.holder_id = ANY ($2)
GROUP BY r.field_id, r.behaviour`)

	// Materialized: otherwise the planner can read the whole table in the order of its primary key, which has the holders in order.
	countHoldersSQL = db.Codes(`
WITH r AS MATERIALIZED (
    SELECT r.holder_id FROM dbcontroller.reference r
    WHERE r.target_id = ANY ($1) AND r.behaviour IN ({cascade_delete}, {async_cascade_delete}) AND NOT r.holder_id = ANY ($2)
)
SELECT count(DISTINCT holder_id) FROM r`)

	// Without the holders that are deleted as well.
	countUnsetsSQL = db.Codes(`
SELECT r.field_id, r.behaviour, count(*) FROM dbcontroller.reference r
WHERE r.target_id = ANY ($1) AND r.behaviour IN ({unset}, {async_unset}) AND NOT r.holder_id = ANY ($2) AND NOT EXISTS (
    SELECT FROM dbcontroller.reference c
    WHERE c.holder_id = r.holder_id AND c.target_id = ANY ($1) AND c.behaviour IN ({cascade_delete}, {async_cascade_delete})
) GROUP BY r.field_id, r.behaviour`)
)

// count counts the references that the plan leaves out. It has half of the time that is left: without the counts the plan is as good as
// before.
func (p *planning) count(ctx context.Context) {
	ctx, cancel := peer.InPart(ctx, 1, 2)
	defer cancel()
	targets, members := slices.Collect(maps.Keys(p.targets)), map[int64]bool{}
	for _, id := range p.ids {
		members[id] = true
	}
	named := slices.DeleteFunc(slices.Clone(targets), func(id int64) bool { return members[id] })
	counts, holders := []peer.PlanCount(nil), 0
	err := p.countBy(ctx, &counts, countReferencesSQL, targets, named)
	if err == nil {
		err = p.store.Pool.QueryRow(ctx, countHoldersSQL, targets, named).Scan(&holders)
	}
	if err == nil && p.plan.MoreUnsets {
		err = p.countBy(ctx, &counts, countUnsetsSQL, targets, append([]int64{}, p.ids...))
	}
	if err != nil {
		p.store.Log.Debug("a plan has no counts beyond its limit", zap.Error(err))
		return
	}
	p.plan.Counts, p.plan.Holders = counts, holders
}

func (p *planning) countBy(ctx context.Context, counts *[]peer.PlanCount, sql string, args ...any) error {
	rows, err := p.store.Pool.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	type row struct {
		Field     int32
		Behaviour schema.Behaviour
		Count     int
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return err
	}
	for _, f := range found {
		path, err := p.store.Names.FieldOf(ctx, p.store.Pool, f.Field)
		if err != nil {
			return err
		}
		*counts = append(*counts, peer.PlanCount{Path: path, Behaviour: f.Behaviour, Count: f.Count})
	}
	return nil
}
