package target

import (
	"context"
	"fmt"
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

	// As for a delete: the locks of other members, and of the version, are not held while one is waited for.
	shortFreezeSQL = `SET LOCAL lock_timeout = '300ms'`

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

// Freezing is one transaction of a freeze.
type Freezing struct {
	*peer.Freeze
	Own uuid.UUID // epoch of this database in which ids were looked up
	// Find returns the ids of resources to lock, and Look which of them are members behind their locks, and may return others: a resource may have
	// dropped its reference since it was found, and would stay frozen.
	Find, Look func(ctx context.Context, tx pgx.Tx) ([]int64, error)
}

// Freeze keeps writers away from members of an atomic deletion until the coordinator has decided it, and if it commits until their mark. all: each
// member was locked. It fails with ErrStaleEpoch, with ErrDecommissioned, with ErrAborted when the deletion is decided ABORTED, with
// *UnavailableError during a recovery, and with db.CodeLockNotAvailable while others hold the lock of a resource.
func (s *Keeper) Freeze(ctx context.Context, f Freezing) (all bool, err error) {
	coordinator, err := s.Names.Deployment(ctx, f.Coordinator)
	if err != nil {
		return false, err
	}
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		ids, err := f.Find(ctx, tx)
		if err != nil {
			return err
		}
		active, err := s.lockFrozen(ctx, tx, f, coordinator, ids)
		if err != nil {
			return err
		}
		members, err := f.Look(ctx, tx)
		if err != nil {
			return err
		}
		frozen := []int64{}
		all = true
		for _, id := range members {
			stands, locked := active[id]
			if all = all && locked; stands {
				frozen = append(frozen, id)
			}
		}
		b := &pgx.Batch{}
		b.Queue(freezeSQL, frozen, f.Deletion, coordinator, min(f.For, maxFreeze), f.Root)
		return db.CommitWith(ctx, tx, b)
	})
	if err != nil {
		return false, fmt.Errorf("freeze resources: %w", err)
	}
	return all, nil
}

// lockFrozen locks resources, and checks behind the locks that the deletion may freeze them. It returns those that are ACTIVE.
func (s *Keeper) lockFrozen(ctx context.Context, tx pgx.Tx, f Freezing, coordinator int32, ids []int64) (active map[int64]bool, err error) {
	active = map[int64]bool{}
	var closed, decommissioned bool
	var database *uuid.UUID
	var n int
	b := &pgx.Batch{}
	b.Queue(shortFreezeSQL)
	b.Queue(gate.ShareVersionSQL, gate.VersionLock) // a concurrent decommissioning, switch or new epoch of the coordinator waits for us, or is visible below
	b.Queue(lockFrozenSQL, ids).Query(func(rows pgx.Rows) error {
		var id int64
		var state peer.State
		_, err := pgx.ForEachRow(rows, []any{&id, &state}, func() error { active[id] = state == peer.Active; return nil })
		return err
	})
	s.gate.CheckPeerEpoch(tx, b, coordinator, f.Epoch, f.Own)
	b.Queue(selectClosedSQL, []uuid.UUID{f.Deletion}, []int32{coordinator}).QueryRow(func(row pgx.Row) error {
		return row.Scan(&n, &closed, &decommissioned, &database)
	})
	recovered := s.gate.QueueRecovered(tx, b)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	switch {
	case decommissioned:
		return nil, peer.ErrDecommissioned
	case closed:
		return nil, fmt.Errorf("%w: the deletion is decided", peer.ErrAborted)
	}
	if f.Coordinator != s.Self {
		if err := gate.CheckCallerDatabase(ctx, f.Coordinator, database); err != nil {
			return nil, err
		}
	}
	return active, recovered.Check(ctx, nil) // during a recovery blockades and entries may be missing
}

// QueueCommitted keeps the members of a deletion that this deployment coordinates frozen until their mark.
func QueueCommitted(b *pgx.Batch, deletion peer.AttemptID, self int32) {
	b.Queue(confirmFrozenSQL, []peer.AttemptID{deletion}, self)
}

const countNotFrozenSQL = `
SELECT count(*) FROM unnest($2::bigint[]) AS id WHERE NOT EXISTS (SELECT FROM dbcontroller.frozen f WHERE f.target_id = id AND f.deletion = $1)`

// QueueNotFrozen counts the resources that a deletion has not frozen.
func QueueNotFrozen(b *pgx.Batch, deletion peer.AttemptID, ids []int64) *int {
	n := new(int)
	b.Queue(countNotFrozenSQL, deletion, ids).QueryRow(func(row pgx.Row) error { return row.Scan(n) })
	return n
}
