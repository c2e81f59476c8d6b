package target

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
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
    UPDATE dbcontroller.shadow SET frozen = true WHERE id = ANY (@ids) AND NOT frozen
), begun AS (
    INSERT INTO dbcontroller.freeze (deletion, deployment_id, expires_at, root)
    SELECT @deletion, @coordinator, now() + @for::interval, @root WHERE cardinality(@ids::bigint[]) > 0 ON CONFLICT DO NOTHING
)
INSERT INTO dbcontroller.frozen (target_id, deletion, via_deployment_id, via_uid)
SELECT i.id, @deletion, NULLIF(i.via_deployment_id, 0), i.via_uid
FROM unnest(@ids::bigint[], @via_deployments::int[], @via_uids::uuid[]) AS i (id, via_deployment_id, via_uid) ON CONFLICT DO NOTHING`

	// The id of a deletion is of its first coordinator: a participant that knows it could open the members of
	// the true one.
	selectCoordinatorSQL = `SELECT deployment_id FROM dbcontroller.freeze WHERE deletion = $1`
	// It fails, behind freezeSQL, when another coordinator's freeze of the same id was committed meanwhile.
	otherCoordinatorSQL = `
INSERT INTO dbcontroller.freeze (deletion, deployment_id, expires_at, root)
SELECT deletion, $2, expires_at, root FROM dbcontroller.freeze WHERE deletion = $1 AND deployment_id <> $2`

	// The cascade comes soon.
	confirmFrozenSQL = `
UPDATE dbcontroller.freeze SET committed = true, expires_at = now() + interval '1 min'
WHERE deletion = ANY ($1) AND deployment_id = $2 AND NOT committed RETURNING deletion`

	// It returns the members of scheduled deletions, which are hidden.
	thawSQL = `
WITH aborted AS (
    DELETE FROM dbcontroller.freeze WHERE deletion = ANY ($1) AND deployment_id = $2 AND NOT committed RETURNING deletion, purge_at
), thawed AS (
    DELETE FROM dbcontroller.frozen m USING aborted a WHERE m.deletion = a.deletion RETURNING m.target_id, a.purge_at
), undeleted AS (
    INSERT INTO dbcontroller.closed_attempt (attempt, deployment_id, closed_at)
    SELECT deletion, $2::int, GREATEST(now(), purge_at) + interval '1 year' FROM aborted WHERE purge_at IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT target_id FROM thawed WHERE purge_at IS NOT NULL`

	// Of committed deletions, by the targets for which resources are members.
	keepFrozenSQL = `UPDATE dbcontroller.freeze SET expires_at = now() + interval '1 min' WHERE deletion = ANY ($1) AND committed`
	thawLostSQL   = `
DELETE FROM dbcontroller.frozen m USING unnest($1::uuid[], $2::uuid[]) AS i (deletion, via_uid), dbcontroller.freeze f
WHERE m.deletion = i.deletion AND m.via_uid = i.via_uid AND m.via_deployment_id = $3 AND f.deletion = m.deletion AND f.committed RETURNING m.target_id`
)

// maxFreeze is the longest time before a participant asks the coordinator.
const maxFreeze = 9 * time.Minute

// Freezing is one transaction of a freeze.
type Freezing struct {
	*peer.Freeze
	Own uuid.UUID // epoch of this database in which ids were looked up
	// Find returns the ids of resources to lock.
	Find func(ctx context.Context, tx pgx.Tx) ([]int64, error)
	// Look returns which of them are members behind their locks, and may return others: a resource may have
	// dropped its reference since it was found, and would stay frozen.
	Look func(ctx context.Context, tx pgx.Tx) ([]Member, error)
}

// Member is a resource of an atomic deletion. Via is the first target or owner for which it is one; zero: the
// deletion names it.
type Member struct {
	ID  int64
	Via peer.PlanTarget
}

// Freeze keeps writers away from members of an atomic deletion until the coordinator has decided it, and if
// it commits until their mark. all: each member was locked. It fails with ErrStaleEpoch, with
// ErrDecommissioned, with ErrAborted when the deletion is decided ABORTED, with *UnavailableError during a
// recovery, and with db.CodeLockNotAvailable while others hold the lock of a resource.
func (s *Keeper) Freeze(ctx context.Context, f Freezing) (all bool, err error) {
	coordinator, err := s.Names.Deployment(ctx, f.Coordinator)
	if err != nil {
		return false, err
	}
	if f.ParticipantEpoch != uuid.Nil && f.ParticipantEpoch != f.Own {
		return false, fmt.Errorf("%w: this database was restored or failed over during the deletion", peer.ErrAborted)
	}
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		found, err := f.Find(ctx, tx)
		if err != nil {
			return err
		}
		active, err := s.lockFrozen(ctx, tx, f, coordinator, found)
		if err != nil {
			return err
		}
		members, err := f.Look(ctx, tx)
		if err != nil {
			return err
		}
		all = true
		members = slices.DeleteFunc(members, func(m Member) bool {
			stands, locked := active[m.ID]
			all = all && locked
			return !stands
		})
		b := &pgx.Batch{}
		s.QueueFreeze(b, *f.Freeze, coordinator, members)
		return db.CommitWith(ctx, tx, b)
	})
	if err != nil {
		return false, fmt.Errorf("freeze resources: %w", err)
	}
	return all, nil
}

// QueueFreeze adds the rows of members of a deletion. They are locked.
func (s *Keeper) QueueFreeze(b *pgx.Batch, f peer.Freeze, coordinator int32, members []Member) {
	ids, deployments, uids := []int64{}, []int32{}, []*uuid.UUID{}
	for _, m := range members {
		via, known := s.Names.KnownDeployment(m.Via.Deployment)
		ids, deployments, uids = append(ids, m.ID), append(deployments, via), append(uids, nil)
		if known {
			uids[len(uids)-1] = &m.Via.UID
		}
	}
	b.Queue(freezeSQL, db.Named{
		"ids": ids, "via_deployments": deployments, "via_uids": uids, "deletion": f.Deletion,
		"coordinator": coordinator, "for": min(f.For, maxFreeze), "root": f.Root,
	})
	b.Queue(otherCoordinatorSQL, f.Deletion, coordinator)
}

// lockFrozen locks resources, and checks behind the locks that the deletion may freeze them. It returns those
// that are ACTIVE.
func (s *Keeper) lockFrozen(ctx context.Context, tx pgx.Tx, f Freezing, coordinator int32,
	ids []int64,
) (active map[int64]bool, err error) {
	active = map[int64]bool{}
	var closed, decommissioned bool
	var database *uuid.UUID
	var n int
	begunBy := coordinator
	b := &pgx.Batch{}
	b.Queue(shortFreezeSQL)
	// a concurrent decommissioning, switch or new epoch of the coordinator waits for us, or is visible below
	b.Queue(gate.ShareVersionSQL, gate.VersionLock)
	b.Queue(lockFrozenSQL, ids).Query(func(rows pgx.Rows) error {
		var id int64
		var state peer.State
		_, err := pgx.ForEachRow(rows, []any{&id, &state}, func() error {
			active[id] = state == peer.Active
			return nil
		})
		return err
	})
	s.gate.CheckPeerEpoch(tx, b, coordinator, f.Epoch, f.Own)
	b.Queue(selectCoordinatorSQL, f.Deletion).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&begunBy}, func() error { return nil })
		return err
	})
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
	case begunBy != coordinator:
		return nil, fmt.Errorf("%w: another deployment has begun a deletion of the same id", peer.ErrAborted)
	}
	if f.Coordinator != s.Self {
		if err := gate.CheckCallerDatabase(ctx, f.Coordinator, database); err != nil {
			return nil, err
		}
	}
	return active, recovered.Check(ctx, nil) // during a recovery blockades and entries may be missing
}

// behind are targets of which a deployment says whether their marks may still come to members of committed
// deletions here.
type behind struct {
	held, others struct{ deletions, targets []uuid.UUID }
}

func (f *behind) take(k peer.BlockadeKey, held bool) {
	of := &f.others
	if held {
		of = &f.held
	}
	of.deletions, of.targets = append(of.deletions, k.Attempt), append(of.targets, k.TargetUID)
}

// settleLost opens the members of committed deletions to which no mark comes any more: their targets were
// restored, or went for another reason.
func (s *Keeper) settleLost(ctx context.Context, at schema.DeploymentID, epoch uuid.UUID, f behind) error {
	if len(f.held.targets)+len(f.others.targets) == 0 {
		return nil
	}
	own := s.gate.PresentEpoch()
	deployment, err := s.Names.Deployment(ctx, at)
	if err != nil {
		return err
	}
	err = s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		s.gate.CheckPeerEpoch(tx, b, deployment, epoch, own)
		thawed := queueThaw(b, thawLostSQL, f.others.deletions, f.others.targets, deployment)
		// some may be members for other targets
		b.Queue(keepFrozenSQL, slices.Concat(f.held.deletions, f.others.deletions))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		return Unhide(ctx, tx, s.DB, *thawed)
	})
	if err != nil {
		return fmt.Errorf("settle frozen resources: %w", err)
	}
	return nil
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
