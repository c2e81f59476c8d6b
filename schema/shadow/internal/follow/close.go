package follow

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var (
	// The turn is new also where there is no right: an answer that grants one may be on its way.
	endRightsSQL = `
UPDATE dbcontroller.foreign_target
SET acting_epoch = NULL, acting_own = NULL, block_epoch = NULL, block_own = NULL, turn = nextval('dbcontroller.object_id') WHERE id = ANY ($1)`

	holdsRightsSQL = `
SELECT EXISTS (SELECT FROM dbcontroller.foreign_target WHERE id = ANY ($1) AND (acting_epoch IS NOT NULL OR block_attempt IS NOT NULL))`

	// When the holders have let go, the proxy that stood for them is released.
	lookAtClosedSQL = db.LookAtRights(
		`dbcontroller.foreign_target f WHERE f.id = ANY ($1) AND f.block_attempt IS NOT NULL`)
)

// closeTargets ends the rights to refer to targets without asking. From then on no reference to them is
// written under a right, by any process, and the references under it are committed: holders are looked for
// afterwards. It returns the targets that are closed; the others are recorded as failed.
func (a *acting) closeTargets(ctx context.Context, ids []int64) ([]int64, error) {
	if len(ids) == 0 || a.prefetched != nil {
		return ids, nil
	}
	if a.from != a.store.Self {
		return a.close(ctx, ids)
	}
	if _, err := a.close(ctx, slices.Sorted(maps.Keys(a.rights))); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return a.failed[a.targets[id].UID] != nil }), nil
}

// close ends the rights of rows, and returns the rows that have none left.
func (a *acting) close(ctx context.Context, ids []int64) ([]int64, error) {
	s := a.store
	if len(ids) == 0 {
		return nil, nil
	}
	if held, err := s.holdsRights(ctx, ids); err != nil || !held {
		return ids, err
	}
	if _, err := s.Pool.Exec(ctx, db.BeginEndingSQL, ids); err != nil {
		return nil, fmt.Errorf("begin to end delegations: %w", err)
	}
	crash.At("crash-close-ending")
	open := map[int64]bool{}
	left, err := s.Halving(ctx, ids, retry.Halves[int64]{
		Run: func(part []int64) error { return a.store.endRights(ctx, part) },
		Failed: func(id int64, err error) error {
			open[id], a.failed[a.rights[id].UID] = true, err
			return nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("end delegations: %w", err)
	}
	for _, id := range left {
		open[id], a.failed[a.rights[id].UID] = true, schema.ErrUnfinished
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return open[id] }), nil
}

// holdsRights reports whether rights to targets may have to be ended. A process with rights switched off
// takes none by a late answer, and no other process does beside it.
func (s *Follower) holdsRights(ctx context.Context, ids []int64) (held bool, err error) {
	if s.Cfg.Delegations {
		return true, nil
	}
	if err = s.Pool.QueryRow(ctx, holdsRightsSQL, ids).Scan(&held); err != nil {
		return false, fmt.Errorf("read delegations: %w", err)
	}
	return held, nil
}

func (s *Follower) endRights(ctx context.Context, ids []int64) error {
	return s.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(db.EndingLockTimeoutSQL)
		b.Queue(db.LockRightsSQL, ids)
		b.Queue(endRightsSQL, ids)
		b.Queue(lookAtClosedSQL, ids)
		b.Queue(db.DoneEndingSQL, ids)
		return tx.SendBatch(ctx, b).Close()
	})
}

const selectRightsSQL = `SELECT id FROM dbcontroller.foreign_target WHERE uid = ANY ($1) AND deployment_id = $2`

// EndRights ends the rights to refer to targets of a deployment without asking. From then on no reference to
// them is written under a right until one is granted again, and the references under it are committed.
func (s *Follower) EndRights(ctx context.Context, of schema.DeploymentID, uids []uuid.UUID) error {
	deployment, known := s.Names.KnownDeployment(of)
	if !known {
		return nil
	}
	rows, err := s.Pool.Query(ctx, selectRightsSQL, uids, deployment)
	if err != nil {
		return fmt.Errorf("read delegations: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("read delegations: %w", err)
	}
	if held, err := s.holdsRights(ctx, ids); err != nil || !held || len(ids) == 0 {
		return err
	}
	for pauses := (retry.Backoff{First: 5 * time.Millisecond, Max: 100 * time.Millisecond}); ; {
		if _, err := s.Pool.Exec(ctx, db.BeginEndingSQL, ids); err != nil {
			return fmt.Errorf("begin to end delegations: %w", err)
		}
		err := s.endRights(ctx, ids)
		if !db.HasCode(err, db.CodeLockNotAvailable) || pauses.Wait(ctx) != nil {
			return err
		}
	}
}
