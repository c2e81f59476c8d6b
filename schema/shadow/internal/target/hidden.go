package target

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// The members of a scheduled deletion are frozen, and hidden from readers, until it is carried out or
// undeleted. (test/model/atomic, S1 to S5)

const (
	// Of the others, the decision is told.
	selectScheduledSQL = `
SELECT f.deletion, f.deleted_at, f.purge_at FROM dbcontroller.freeze f JOIN dbcontroller.attempt a ON a.id = f.deletion
WHERE f.deletion = ANY ($1) AND f.purge_at IS NOT NULL AND a.committed IS NULL`

	scheduleSQL = `
UPDATE dbcontroller.freeze f SET deleted_at = i.deleted_at, purge_at = i.purge_at, expires_at = 'infinity'
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS i (deletion, deleted_at, purge_at)
WHERE f.deletion = i.deletion AND f.deployment_id = $4 AND NOT f.committed`

	scheduleOwnSQL = `
UPDATE dbcontroller.freeze SET deleted_at = now(), purge_at = now() + $2::interval, expires_at = 'infinity', participants = $3
WHERE deletion = $1`

	selectUndeletedSQL = `SELECT attempt FROM dbcontroller.closed_attempt WHERE attempt = ANY ($1) AND deployment_id = $2`

	// The coordinator has answered a question: it is scheduled.
	keepScheduledSQL = `UPDATE dbcontroller.freeze SET expires_at = 'infinity' WHERE deletion = ANY ($1) AND deployment_id = $2 AND NOT committed`

	lockScheduledSQL = `
SELECT id FROM dbcontroller.shadow WHERE id = ANY (ARRAY (
    SELECT m.target_id FROM dbcontroller.frozen m JOIN dbcontroller.freeze f USING (deletion) WHERE f.deletion = ANY ($1) AND f.purge_at IS NOT NULL AND NOT f.committed
)) ORDER BY id FOR NO KEY UPDATE`
	lockHiddenSQL = `SELECT id FROM dbcontroller.shadow WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`
)

var (
	hideScheduledSQL = db.Codes(`
WITH hiding AS (
    UPDATE dbcontroller.shadow SET hidden = true, revision = nextval('dbcontroller.revision')
    WHERE id = ANY (ARRAY (
        SELECT m.target_id FROM dbcontroller.frozen m JOIN dbcontroller.freeze f USING (deletion) WHERE f.deletion = ANY ($1) AND f.purge_at IS NOT NULL AND NOT f.committed
    )) AND state = {active} AND NOT hidden
    RETURNING uid, revision, generation, kind_id, created_at, name
)` + db.ChangeGone(`revision`, `hiding`))

	// Another scheduled deletion may hide them as well.
	unhideSQL = db.Codes(`
WITH s AS (
    UPDATE dbcontroller.shadow s SET hidden = false, revision = nextval('dbcontroller.revision'), updated_at = now()
    WHERE id = ANY ($1) AND state = {active} AND hidden
        AND NOT EXISTS (SELECT FROM dbcontroller.frozen m JOIN dbcontroller.freeze f USING (deletion) WHERE m.target_id = s.id AND f.purge_at IS NOT NULL)
    RETURNING id, uid, kind_id, name, revision, generation, created_at, block_deletion, finalizers
)` + db.ChangeTo(`{active}`, `s JOIN dbcontroller.resource r USING (id)`))
)

// QueueSchedule hides the members of a deletion that this deployment coordinates. They are locked and frozen.
func QueueSchedule(b *pgx.Batch, deletion peer.AttemptID, retention time.Duration, participants []int32) {
	// not null: it is the coordinator's
	b.Queue(scheduleOwnSQL, deletion, retention, append([]int32{}, participants...))
	b.Queue(hideScheduledSQL, []peer.AttemptID{deletion})
}

// schedule hides the members of scheduled deletions here, for their coordinator in the given epoch of its
// database. Deletions that have frozen nothing here, or that are decided, are left out: it is idempotent. It
// returns those that the coordinator has undeleted, which its database has lost. It fails with ErrStaleEpoch.
func (s *Keeper) schedule(ctx context.Context, coordinator schema.DeploymentID,
	c peer.Confirm,
) (undeleted []peer.AttemptID, err error) {
	own := s.gate.PresentEpoch()
	deployment, err := s.Names.Deployment(ctx, coordinator)
	if err != nil {
		return nil, err
	}
	deletions, deleted, purge := []peer.AttemptID{}, []time.Time{}, []time.Time{}
	for _, d := range c.Scheduled {
		deletions, deleted, purge = append(deletions, d.Deletion), append(deleted, d.Deleted), append(purge, d.Purge)
	}
	err = s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		s.gate.CheckPeerEpoch(tx, b, deployment, c.Epoch, own)
		b.Queue(scheduleSQL, deletions, deleted, purge, deployment)
		b.Queue(lockScheduledSQL, deletions)
		b.Queue(hideScheduledSQL, deletions)
		b.Queue(selectUndeletedSQL, deletions, deployment).Query(func(rows pgx.Rows) (err error) {
			undeleted, err = pgx.CollectRows(rows, pgx.RowTo[peer.AttemptID])
			return err
		})
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("hide the members of scheduled deletions: %w", err)
	}
	return undeleted, nil
}

// LockScheduled locks the members of scheduled deletions here.
func LockScheduled(ctx context.Context, tx pgx.Tx, deletions []peer.AttemptID) error {
	_, err := tx.Exec(ctx, lockScheduledSQL, deletions)
	return err
}

// Thaw opens the members here of deletions that this deployment coordinates, and that are aborted.
func (s *Keeper) Thaw(ctx context.Context, tx pgx.Tx, self int32, deletions []peer.AttemptID) error {
	b := &pgx.Batch{}
	thawed := queueThaw(b, thawSQL, deletions, self)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("open frozen resources: %w", err)
	}
	return Unhide(ctx, tx, s.DB, *thawed)
}

// stillScheduled returns the deletions that are not decided yet.
func (s *Keeper) stillScheduled(ctx context.Context, deletions []peer.AttemptID) ([]peer.Scheduled, error) {
	if len(deletions) == 0 {
		return nil, nil
	}
	rows, err := s.Pool.Query(ctx, selectScheduledSQL, deletions)
	if err != nil {
		return nil, fmt.Errorf("read scheduled deletions: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[peer.Scheduled])
	if err != nil {
		return nil, fmt.Errorf("read scheduled deletions: %w", err)
	}
	return all, nil
}

// queueThaw runs a statement that opens frozen resources, and returns their ids when the batch has been sent.
func queueThaw(b *pgx.Batch, sql string, args ...any) *[]int64 {
	thawed := new([]int64)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		*thawed, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	return thawed
}

// Unhide shows resources again of which a scheduled deletion has ended.
func Unhide(ctx context.Context, tx pgx.Tx, d *db.DB, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	b.Queue(lockHiddenSQL, ids)
	b.Queue(unhideSQL, ids)
	db.AfterCommit(tx, func() { d.Touched(db.ChangeFeed) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("show resources again: %w", err)
	}
	return nil
}
