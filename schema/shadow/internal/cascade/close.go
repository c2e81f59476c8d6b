package cascade

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	// Committed before the lock is waited for: writes look here first and share the row no more, since PostgreSQL lets new
	// sharers of a row pass who waits for it alone.
	beginEndingSQL = `
INSERT INTO dbcontroller.ending (target_id, until)
SELECT id, now() + interval '10 s' FROM dbcontroller.foreign_target WHERE id = ANY ($1) AND acting_epoch IS NOT NULL ORDER BY id
ON CONFLICT (target_id) DO UPDATE SET until = EXCLUDED.until`

	// A write under the right that has not committed yet delays this deletion alone, which is then tried again.
	closeLockTimeoutSQL = `SET LOCAL lock_timeout = '300ms'`
	lockRightsSQL       = `SELECT id FROM dbcontroller.foreign_target WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`

	// The turn is new also where there is no right: an answer that grants one may be on its way.
	endRightsSQL = `
UPDATE dbcontroller.foreign_target SET acting_epoch = NULL, acting_own = NULL, turn = nextval('dbcontroller.object_id') WHERE id = ANY ($1)`
	doneEndingSQL = `DELETE FROM dbcontroller.ending WHERE target_id = ANY ($1)`
)

// closeTargets ends the rights to refer to targets of another deployment without asking. From then on no reference to them is
// written under a right, by whichever process, and those that were are committed: holders are looked for afterwards. It returns
// the targets that are closed; the others are recorded as failed.
func (a *Acting) closeTargets(ctx context.Context, ids []int64) ([]int64, error) {
	s := a.Store
	if a.From == s.Self || !s.Cfg.Delegations || len(ids) == 0 {
		return ids, nil
	}
	if _, err := s.Pool.Exec(ctx, beginEndingSQL, ids); err != nil {
		return nil, fmt.Errorf("begin to end delegations: %w", err)
	}
	crash.At("crash-close-ending")
	open := map[int64]bool{}
	left, err := s.Halving(ctx, ids, retry.Halves{
		Run: func(part []int64) error { return a.Store.endRights(ctx, part) },
		Failed: func(id int64, err error) error {
			open[id], a.failed[a.Targets[id].UID] = true, err
			return nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("end delegations: %w", err)
	}
	for _, id := range left {
		open[id], a.failed[a.Targets[id].UID] = true, schema.ErrUnfinished
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return open[id] }), nil
}

func (s *Actor) endRights(ctx context.Context, ids []int64) error {
	return s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(closeLockTimeoutSQL)
		b.Queue(lockRightsSQL, ids)
		b.Queue(endRightsSQL, ids)
		b.Queue(doneEndingSQL, ids)
		return tx.SendBatch(ctx, b).Close()
	})
}
