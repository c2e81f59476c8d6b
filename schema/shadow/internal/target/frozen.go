package target

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// Freezes of one resource by several deletions stand side by side: they keep writers away, and no deletion.

const (
	// FOR UPDATE waits for writes that share the row, and for a write of the resource itself.
	lockFrozenSQL = `SELECT id, state FROM dbcontroller.shadow WHERE id = ANY ($1) ORDER BY id FOR UPDATE`

	freezeSQL = `
WITH marked AS (
    UPDATE dbcontroller.shadow SET frozen = true WHERE id = ANY ($1) AND NOT frozen
)
INSERT INTO dbcontroller.frozen (target_id, deletion, deployment_id, expires_at, root)
SELECT id, $2, $3, now() + $4::interval, $5 FROM unnest($1::bigint[]) AS id ON CONFLICT DO NOTHING`

	confirmFrozenSQL = `
UPDATE dbcontroller.frozen SET expires_at = NULL
WHERE deletion = ANY ($1) AND deployment_id = $2 AND expires_at IS NOT NULL RETURNING deletion`

	thawSQL = `DELETE FROM dbcontroller.frozen WHERE deletion = ANY ($1) AND deployment_id = $2`

	// It has expired, or its expiry is impossibly late because the clock went back.
	frozenExpiredSQL = `(f.expires_at <= now() OR f.expires_at > now() + interval '10 min')`
)

// maxFreeze is the longest time before a participant asks the coordinator.
const maxFreeze = 9 * time.Minute

// Freeze keeps writers away from members of an atomic deletion, by their ids, until the coordinator has decided it, and if it commits until their
// mark. members, unless nil, returns which resources are members behind their locks, in order: one may have dropped its reference since it was found, and would
// stay frozen. It fails with ErrStaleEpoch, with ErrDecommissioned, with ErrAborted when the deletion is decided
// ABORTED, and with *UnavailableError during a recovery.
func (s *Keeper) Freeze(ctx context.Context, f *peer.Freeze, ids []int64, selfEpoch uuid.UUID, members func(tx pgx.Tx) ([]int64, error)) error {
	coordinator, err := s.Names.Deployment(ctx, f.Coordinator)
	if err != nil {
		return err
	}
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		var active []int64
		var closed, decommissioned bool
		var database *uuid.UUID
		b := &pgx.Batch{}
		b.Queue(gate.ShareVersionSQL, gate.VersionLock) // a concurrent decommissioning, switch or new epoch of the coordinator waits for us, or is visible below
		b.Queue(lockFrozenSQL, ids).Query(func(rows pgx.Rows) error {
			var id int64
			var state peer.State
			_, err := pgx.ForEachRow(rows, []any{&id, &state}, func() error {
				if state == peer.Active {
					active = append(active, id)
				}
				return nil
			})
			return err
		})
		s.gate.CheckPeerEpoch(tx, b, coordinator, f.Epoch, selfEpoch)
		var n int
		b.Queue(selectClosedSQL, []uuid.UUID{f.Deletion}, []int32{coordinator}).QueryRow(func(row pgx.Row) error {
			return row.Scan(&n, &closed, &decommissioned, &database)
		})
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		switch {
		case decommissioned:
			return peer.ErrDecommissioned
		case closed:
			return fmt.Errorf("%w: the deletion is decided", peer.ErrAborted)
		}
		if f.Coordinator != s.Self {
			if err := gate.CheckCallerDatabase(ctx, f.Coordinator, database); err != nil {
				return err
			}
		}
		if err := s.gate.CheckRecovered(ctx, tx, nil); err != nil { // blockades and entries may be missing
			return err
		}
		if members != nil {
			still, err := members(tx)
			if err != nil {
				return err
			}
			active = slices.DeleteFunc(active, func(id int64) bool { _, found := slices.BinarySearch(still, id); return !found })
		}
		if len(active) == 0 {
			return nil
		}
		_, err := tx.Exec(ctx, freezeSQL, active, f.Deletion, coordinator, min(f.For, maxFreeze), f.Root)
		return err
	})
	if err != nil {
		return fmt.Errorf("freeze resources: %w", err)
	}
	return nil
}

// QueueCommitted keeps the members of a deletion that this deployment coordinates frozen until their mark.
func QueueCommitted(b *pgx.Batch, deletion peer.AttemptID, self int32) {
	b.Queue(confirmFrozenSQL, []peer.AttemptID{deletion}, self)
}

const selectFrozenBySQL = `SELECT target_id FROM dbcontroller.frozen WHERE deletion = $1 AND target_id = ANY ($2)`

// NotFrozenBy returns which of some resources a deletion has not frozen.
func NotFrozenBy(ctx context.Context, q db.Querier, deletion uuid.UUID, ids []int64) ([]int64, error) {
	rows, err := q.Query(ctx, selectFrozenBySQL, deletion, ids)
	if err != nil {
		return nil, err
	}
	frozen, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, err
	}
	slices.Sort(frozen)
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool {
		_, found := slices.BinarySearch(frozen, id)
		return found
	}), nil
}
