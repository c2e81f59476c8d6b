package rights

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var (
	selectLooksSQL = db.Codes(`SELECT DISTINCT target_id FROM dbcontroller.work WHERE seq = ANY ($1) AND action = {look_at_right}`)

	// Nothing was written under the right that still stands; and it does not count any more, or nothing blocks the target from here.
	selectFreeSQL = db.Codes(`
SELECT f.id, f.block_attempt FROM dbcontroller.foreign_target f
WHERE f.id = ANY ($1) AND f.block_attempt IS NOT NULL AND ` + db.NotPinnedSQL + ` AND NOT (` + db.KeptSQL + ` AND ` + db.BlockRightCountsSQL + `)
    AND NOT EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id AND r.delegated AND r.behaviour = {block} AND NOT r.dangling)
    AND NOT (` + db.BlockRightCountsSQL + ` AND EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id AND r.behaviour = {block}))`)
)

// LookAtRights returns the rights that are not needed any more. The look decides, under the lock of the right, and not the drop of a
// reference that has led to it.
func (s *Rights) LookAtRights(ctx context.Context, seqs []int64) error {
	rows, err := s.Pool.Query(ctx, selectLooksSQL, seqs)
	if err != nil {
		return fmt.Errorf("look at rights: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("look at rights: %w", err)
	}
	free, err := s.free(ctx, s.Pool, ids)
	if err != nil {
		return fmt.Errorf("look at rights: %w", err)
	}
	for _, f := range free {
		if err := s.alone(ctx, f.ID, func(tx pgx.Tx) error {
			still, err := s.free(ctx, tx, []int64{f.ID})
			if err != nil || !slices.Contains(still, f) {
				return err
			}
			return s.remove(ctx, tx, f.ID, f.Attempt)
		}); err != nil {
			return fmt.Errorf("return a right: %w", err)
		}
	}
	return s.Finish(ctx, seqs)
}

type freeRight struct {
	ID      int64
	Attempt peer.AttemptID
}

func (s *Rights) free(ctx context.Context, q db.Querier, ids []int64) ([]freeRight, error) {
	rows, err := q.Query(ctx, selectFreeSQL, ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[freeRight])
}
