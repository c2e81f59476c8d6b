package deletion

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// By the index of targets; without the targets of the question, which are no new resources, and without the
// holders, whose shadows would cost more than the count itself.
var (
	countReferencesSQL = db.Codes(`
SELECT r.field_id, r.behaviour, count(*) FROM dbcontroller.reference r
WHERE r.target_id = ANY ($1) AND r.behaviour IN ({cascade_delete}, {async_cascade_delete}) AND NOT r.holder_id = ANY ($2)
GROUP BY r.field_id, r.behaviour`)

	// Materialized: otherwise the planner can read the whole table in the order of its primary key, which has
	// the holders in order.
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

// countReferences counts the references beyond the limit of a plan: references to targets, which are members
// of it and the named ones of its question. With unsets it also counts references that are unset. holders is
// the number of the holders that cascade.
func countReferences(ctx context.Context, s *db.DB, members, named []int64,
	unsets bool,
) (counts []peer.PlanCount, holders int, err error) {
	targets := slices.Concat(members, named)
	if err = countBy(ctx, s, &counts, countReferencesSQL, targets, named); err != nil {
		return nil, 0, err
	}
	if err = s.Pool.QueryRow(ctx, countHoldersSQL, targets, named).Scan(&holders); err == nil && unsets {
		err = countBy(ctx, s, &counts, countUnsetsSQL, targets, members)
	}
	return counts, holders, err
}

func countBy(ctx context.Context, s *db.DB, counts *[]peer.PlanCount, sql string, args ...any) error {
	rows, err := s.Pool.Query(ctx, sql, args...)
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
		path, err := s.Names.FieldOf(ctx, s.Pool, f.Field)
		if err != nil {
			return err
		}
		*counts = append(*counts, peer.PlanCount{Path: path, Behaviour: f.Behaviour, Count: f.Count})
	}
	return nil
}
