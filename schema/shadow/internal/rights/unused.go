package rights

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	// Rights to block that were asked for, and that nothing here is known to use.
	unusedSQL = `
SELECT f.id, f.asked_by FROM dbcontroller.foreign_target f
WHERE f.deployment_id = $1 AND f.asked_by = ANY ($2) AND f.block_attempt IS NOT NULL`

	nowUsedSQL = `UPDATE dbcontroller.foreign_target SET asked_by = NULL WHERE id = ANY ($1)`
)

var selectReferredSQL = db.Codes(`
SELECT f.id FROM dbcontroller.foreign_target f
WHERE f.id = ANY ($1) AND EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id AND r.behaviour = {block} AND NOT r.dangling)`)

// admit returns the number of rights to block targets at a deployment that each asker gets of the wanted
// ones: a role, or a caller, may have a limited number that nothing here uses (Quotas.Unused). Otherwise a
// role that may ask could hold back the deletions of any number of resources, when this deployment cannot be
// reached any more to return the rights.
func (s *Rights) admit(ctx context.Context, at schema.DeploymentID, wanted map[string]int) (map[string]int, error) {
	deployment, err := s.Names.Deployment(ctx, at)
	if err != nil {
		return nil, err
	}
	limit := int(s.Tuning.Load().Quotas.Unused)
	askers := slices.Sorted(maps.Keys(wanted))
	unused, err := s.unused(ctx, deployment, askers)
	if err != nil {
		return nil, err
	}
	var crowded []string
	for _, by := range askers {
		if len(unused[by])+wanted[by] > limit {
			crowded = append(crowded, by)
		}
	}
	if len(crowded) > 0 { // rows may use them since
		var ids []int64
		for _, by := range crowded {
			ids = append(ids, unused[by]...)
		}
		if err := s.noteUsed(ctx, ids); err != nil {
			return nil, err
		}
		if unused, err = s.unused(ctx, deployment, askers); err != nil {
			return nil, err
		}
	}
	admitted := map[string]int{}
	for _, by := range askers {
		admitted[by] = min(wanted[by], max(0, limit-len(unused[by])))
	}
	return admitted, nil
}

// unused returns the targets with rights that nothing is known to use, by asker.
func (s *Rights) unused(ctx context.Context, deployment int32, askers []string) (map[string][]int64, error) {
	rows, err := s.Pool.Query(ctx, unusedSQL, deployment, askers)
	if err != nil {
		return nil, fmt.Errorf("read unused rights: %w", err)
	}
	out := map[string][]int64{}
	var id int64
	var by string
	_, err = pgx.ForEachRow(rows, []any{&id, &by}, func() error { out[by] = append(out[by], id); return nil })
	if err != nil {
		return nil, fmt.Errorf("read unused rights: %w", err)
	}
	return out, nil
}

// noteUsed notes which of some rights to block are used: by stored references, or by rows of tables.
func (s *Rights) noteUsed(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	rows, err := s.Pool.Query(ctx, selectReferredSQL, ids)
	if err != nil {
		return fmt.Errorf("read unused rights: %w", err)
	}
	used, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("read unused rights: %w", err)
	}
	targets, err := s.rows.Targets(ctx, s.Pool, ids)
	if err != nil {
		return err
	}
	found, err := s.rows.Referring(ctx, s.Pool, true, targets, 1)
	if err != nil {
		return err
	}
	for _, r := range found {
		used = append(used, targets[r.Target].ID)
	}
	if _, err := s.Pool.Exec(ctx, nowUsedSQL, used); err != nil {
		return fmt.Errorf("note used rights: %w", err)
	}
	return nil
}
