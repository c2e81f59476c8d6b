package cascade

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
)

// Finalise checks the resources of some pieces of work, removes those in DELETING that wait for nothing, and returns
// their number. The work is removed in the same transaction: each change for which a resource waits adds new work.
func (s *Actor) Finalise(ctx context.Context, seqs []int64) (removed int, err error) {
	err = s.InTx(ctx, db.ChangeFeed|db.WorkFeed, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, target.SelectFinaliseSQL, seqs)
		if err != nil {
			return err
		}
		targets, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		if targets, err = target.Deleting(ctx, tx, targets); err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, target.LockDeletingSQL, targets); err != nil {
			return err
		}
		if targets, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
			return err
		}
		if len(targets) > 0 {
			if err := s.gate.CheckRecovered(ctx, tx); err != nil {
				return err
			}
		}
		if rows, err = tx.Query(ctx, target.NothingLeftSQL, targets); err != nil {
			return err
		}
		free, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		removed = len(free)
		last, err := s.finalRows(ctx, tx, free)
		if err != nil {
			return err
		}
		if err := s.progress.Finalised(ctx, tx, free); err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(db.KnowsSQL)
		if hiding := s.hidingBodies(); len(hiding) > 0 {
			b.Queue(target.HideSQL, targets, free, hiding)
		}
		b.Queue(removeSQL, (&reasons{}).parameters(free, s.SelfID)) // noted when they were marked
		b.Queue(removeDanglingSQL, free)
		b.Queue(db.DoneSQL, seqs)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		return s.rows.Delete(ctx, tx, last)
	})
	if err != nil {
		return 0, fmt.Errorf("finalise: %w", err)
	}
	if removed > 0 {
		crash.At("crash-finalise-committed")
	}
	return removed, nil
}
