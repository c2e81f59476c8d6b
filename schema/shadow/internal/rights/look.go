package rights

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var (
	selectLooksSQL = db.Codes(
		`SELECT DISTINCT target_id FROM dbcontroller.work WHERE seq = ANY ($1) AND action = {look_at_right}`)

	// Nothing was written under the right that still stands; and it does not count any more, or nothing
	// blocks the target from here.
	selectFreeSQL = db.Codes(`
SELECT f.id, f.block_attempt FROM dbcontroller.foreign_target f
WHERE f.id = ANY ($1) AND f.block_attempt IS NOT NULL AND NOT (` + db.KeptSQL + ` AND ` + db.BlockRightCountsSQL + `)
    AND NOT EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id AND r.delegated AND r.behaviour = {block} AND NOT r.dangling)
    AND NOT (` + db.BlockRightCountsSQL + ` AND EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id AND r.behaviour = {block}))`)
)

// LookAtRights returns the rights that are not needed any more. The look decides, under the lock of the
// right, and not the drop of a reference that has led to it.
func (s *Rights) LookAtRights(ctx context.Context, seqs []int64) error {
	rows, err := s.Pool.Query(ctx, selectLooksSQL, seqs)
	if err != nil {
		return fmt.Errorf("look at rights: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("look at rights: %w", err)
	}
	if err := s.LookAt(ctx, ids); err != nil {
		return err
	}
	return s.Finish(ctx, seqs)
}

// LookAt gives back the rights to block, among some, that are not needed any more.
func (s *Rights) LookAt(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	if err := s.rows.Refresh(ctx, s.Pool, false); err != nil {
		return err
	}
	free, err := s.free(ctx, s.Pool, ids)
	if err != nil {
		return fmt.Errorf("look at rights: %w", err)
	}
	var failed error
	for _, f := range free { // a right that an open transaction shares keeps no other one back
		if err := s.alone(ctx, f.ID, func(tx pgx.Tx) error {
			still, err := s.free(ctx, tx, []int64{f.ID})
			if err != nil || !slices.Contains(still, f) {
				return err
			}
			return s.remove(ctx, tx, f.ID, f.Attempt)
		}); err != nil {
			failed = errors.Join(failed, fmt.Errorf("return a right: %w", err))
		}
	}
	// Used rights are looked at when a reference is dropped, and by tidying.
	used := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool {
		return slices.ContainsFunc(free, func(f freeRight) bool { return f.ID == id })
	})
	if _, err := s.Pool.Exec(ctx, usedSQL, used); err != nil {
		return fmt.Errorf("look at rights: %w", err)
	}
	return failed
}

const usedSQL = `
UPDATE dbcontroller.foreign_target f SET kept_until = NULL, asked_by = NULL WHERE f.id = ANY ($1) AND f.kept_until IS NOT NULL AND NOT ` + db.KeptSQL + ` AND f.block_attempt IS NOT NULL`

type freeRight struct {
	ID      int64
	Attempt peer.AttemptID
}

// free returns the rights that nothing here uses: no stored reference, and no row of a table. Rows do not use
// the right to a target that does not exist any more.
func (s *Rights) free(ctx context.Context, q db.Querier, ids []int64) ([]freeRight, error) {
	rows, err := q.Query(ctx, selectFreeSQL, ids)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[freeRight])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	unused := make([]int64, len(found))
	for i, f := range found {
		unused[i] = f.ID
	}
	targets, err := s.rows.Targets(ctx, q, unused)
	if err != nil {
		return nil, err
	}
	referrers, err := s.rows.Referring(ctx, q, true, targets, 1)
	if err != nil {
		return nil, err
	}
	missing, err := s.rows.Missing(ctx, q, targets, referrers)
	used := map[int64]bool{}
	for i, r := range referrers {
		if !missing[i] {
			used[targets[r.Target].ID] = true
		}
	}
	return slices.DeleteFunc(found, func(f freeRight) bool { return used[f.ID] }), err
}
