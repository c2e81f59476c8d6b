package cascade

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/feed"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/target"
)

// References with ALLOW_DANGLING to the resources that pieces of work look at again, up to a number.
var countDanglingSQL = db.Codes(`
SELECT count(*) FROM (
    SELECT FROM dbcontroller.reference r WHERE r.behaviour = {allow_dangling}
        AND r.target_id = ANY (ARRAY (SELECT target_id FROM dbcontroller.work WHERE seq = ANY ($1) AND action = {finalise})) LIMIT $2
) AS d`)

// Finalise checks the resources of some pieces of work, removes resources in DELETING that wait for nothing,
// and returns their number. The work is removed in the same transaction: each change for which a resource
// waits adds new work. Of references with ALLOW_DANGLING to them, transactions before that one remove all but
// the last batch.
func (s *Actor) Finalise(ctx context.Context, seqs []int64) (removed int, err error) {
	for more := true; more; {
		if removed, more, err = s.finaliseOnce(ctx, seqs); err != nil {
			return 0, fmt.Errorf("finalise: %w", err)
		}
	}
	if removed > 0 {
		crash.At("crash-finalise-committed")
	}
	return removed, nil
}

func (s *Actor) finaliseOnce(ctx context.Context, seqs []int64) (removed int, more bool, err error) {
	batch := s.Cfg.Limits.Batch
	err = s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		db.QueuePlans(tx, b, len(seqs))
		looked, dangling := target.QueueLook(b, seqs), 0
		b.Queue(countDanglingSQL, seqs, batch+1).QueryRow(func(row pgx.Row) error { return row.Scan(&dangling) })
		recovered := s.gate.QueueRecovered(tx, b)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if len(looked.Deleting) > 0 {
			if err := recovered.Check(ctx, looked.Kinds); err != nil {
				return err
			}
		}
		if dangling > batch && len(looked.Free) > 0 {
			tag, err := tx.Exec(ctx, removeSomeDanglingSQL, looked.Free, batch)
			if more = err == nil && tag.RowsAffected() == int64(batch); err != nil || more {
				return err
			}
		}
		removed = len(looked.Free) // each of them is locked: it was in DELETING before, and its work there
		return s.removeLooked(ctx, tx, seqs, looked, recovered.Behind)
	})
	return removed, more, err
}

// removeLooked removes resources that nothing holds any more, hides others, and ends the work.
func (s *Actor) removeLooked(ctx context.Context, tx pgx.Tx, seqs []int64, looked *target.Looked, behind bool) error {
	last, err := s.finalRows(ctx, tx, looked.Free, behind)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	s.progress.queueFinalised(tx, b, looked.Free)
	if hiding := s.hidingBodies(); len(hiding) > 0 && len(looked.Deleting) > len(looked.Free) {
		b.Queue(target.HideSQL, looked.Deleting, looked.Free, hiding)
	}
	if len(looked.Free) > 0 {
		left := new(feed.Topics)
		db.AfterCommit(tx, func() { s.Touched(*left) })
		queueGoing(b, left, removeSQL, (&reasons{}).parameters(looked.Free, s.SelfID)) // noted when they were marked
		b.Queue(removeDanglingSQL, looked.Free)
	}
	b.Queue(db.DoneSQL, seqs)
	db.QueueOwn(tx, b)
	if len(last) == 0 {
		return db.CommitWith(ctx, tx, b)
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	return s.rows.Delete(ctx, tx, last)
}
