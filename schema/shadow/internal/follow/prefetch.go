package follow

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// The deleted resources of another deployment that references here name ($1, $2).
const deletedTargets = `dbcontroller.foreign_target f WHERE f.deployment_id = $1 AND f.uid = ANY ($2)`

const (
	anyRightSQL = `
SELECT EXISTS (SELECT FROM ` + deletedTargets + ` AND (f.acting_epoch IS NOT NULL OR f.block_attempt IS NOT NULL))`
)

var holdersAtOnceSQL = db.Codes(`
SELECT f.id, r.holder_id FROM dbcontroller.foreign_target f CROSS JOIN LATERAL (
    SELECT holder_id FROM dbcontroller.reference WHERE target_id = f.id AND behaviour IN ({unset}, {cascade_delete}, {async_unset}, {async_cascade_delete}) LIMIT $3
) AS r WHERE f.deployment_id = $1 AND f.uid = ANY ($2) LIMIT $4`)

// held is a holder of a deleted resource.
type held struct{ Target, Holder int64 }

// prefetched has the holders of deleted resources of another deployment when no right to them has to be
// ended: then nothing is written under a right, and the holders can be read at once.
type prefetched struct {
	holders []held
}

// prefetch reads the targets of deletions and, for another deployment's deletions while delegations are off,
// a prefetched list of holders, in one round trip: each statement has a newer snapshot than the one before.
// It fails when the deletions are paused.
func (a *acting) prefetch(ctx context.Context, uids []uuid.UUID) (err error) {
	s := a.store
	if a.fromID, err = s.Names.Deployment(ctx, a.from); err != nil {
		return err
	}
	a.targets, a.rights = map[int64]Target{}, map[int64]Target{}
	b, g, rights := &pgx.Batch{}, &prefetched{}, s.Cfg.Delegations
	if len(uids) <= db.FewRows {
		b.Queue(db.GenericPlansSQL)
	}
	s.gate.QueueNotPaused(b, a.from)
	sql, args := s.targetsSQL(a.from, a.fromID, uids)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error { return scanTargets(rows, a.targets) })
	if a.from == s.Self && s.rows.Refer() {
		b.Queue(selectForeignTargetsSQL, a.fromID, uids).Query(func(rows pgx.Rows) error {
			return scanTargets(rows, a.rights)
		})
	}
	if a.from != s.Self && !rights {
		b.Queue(anyRightSQL, a.fromID, uids).QueryRow(func(row pgx.Row) error { return row.Scan(&rights) })
		b.Queue(holdersAtOnceSQL, a.fromID, uids, smallTarget+1, s.Cfg.Limits.Batch).
			Query(func(rows pgx.Rows) (err error) {
				g.holders, err = pgx.CollectRows(rows, pgx.RowToStructByPos[held])
				return err
			})
	}
	if err := s.Pool.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("read deleted targets: %w", err)
	}
	if a.from != s.Self {
		a.rights = a.targets
		if !rights {
			a.prefetched = g
		}
	}
	return nil
}

// firstHolders reads some holders of each of some targets. The first time it returns the holders of the
// prefetched list, if it is of these targets.
func (a *acting) firstHolders(ctx context.Context, ids []int64) (found []held, err error) {
	if g := a.prefetched; g != nil && len(ids) == len(a.targets) {
		a.prefetched = nil
		return g.holders, nil
	}
	rows, err := a.store.Pool.Query(ctx, firstHoldersSQL, ids, smallTarget+1, a.store.Cfg.Limits.Batch)
	if err != nil {
		return nil, fmt.Errorf("read holders: %w", err)
	}
	if found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[held]); err != nil {
		return nil, fmt.Errorf("read holders: %w", err)
	}
	return found, nil
}
