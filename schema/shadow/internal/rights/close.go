package rights

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	selectTargetSQL = `SELECT id FROM dbcontroller.foreign_target WHERE uid = $1 AND deployment_id = $2`

	// The turn is new also where there is no right: an answer that grants one may be on its way.
	closeSQL = `
UPDATE dbcontroller.foreign_target
SET acting_epoch = NULL, acting_own = NULL, block_epoch = NULL, block_own = NULL, turn = nextval('dbcontroller.object_id') WHERE id = $1`
)

// walkAgainSQL makes the granter note the values without a right, also of rows that were written under a
// closed right: the deployment of the target may have released its proxy, and know nothing of the rows.
const walkAgainSQL = `UPDATE dbcontroller.attachment SET walked = false WHERE ready`

// When the holders have let go, the proxy that stood for them is released.
var lookAtClosedSQL = db.LookAtRights(`dbcontroller.foreign_target f WHERE f.id = $1 AND f.block_attempt IS NOT NULL`)

// close ends the rights to a target of another deployment (of), for that deployment, in an epoch of this
// database. The references that were written under them stay. closed: no write under them is under way, and
// none follows until a right is granted again. Without a row of the target there is no right, and an answer
// makes no row.
func (s *Rights) close(ctx context.Context, of schema.DeploymentID, target, epoch uuid.UUID) (closed bool, err error) {
	id, err := s.target(ctx, of, target)
	if err != nil || id == 0 {
		return err == nil, err
	}
	err = s.alone(ctx, id, func(tx pgx.Tx) error {
		if now, err := s.gate.EpochOf(ctx, tx); err != nil || now != epoch {
			return errors.Join(err, s.gate.RecoveringSelf())
		}
		rows, err := s.referring(ctx, tx, []int64{id}, 1)
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(closeSQL, id)
		b.Queue(lookAtClosedSQL, id)
		if len(rows) > 0 {
			b.Queue(walkAgainSQL)
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if db.HasCode(err, db.CodeLockNotAvailable) {
		return false, nil
	}
	return err == nil, err
}

// target returns the row of a target of another deployment; 0: there is none.
func (s *Rights) target(ctx context.Context, of schema.DeploymentID, target uuid.UUID) (id int64, err error) {
	deployment, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return 0, err
	}
	if err = s.Pool.QueryRow(ctx, selectTargetSQL, target, deployment).Scan(&id); errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return id, err
}

var (
	// An acting reference, or a right that was asked for and may be about to be used. An ALLOW_DANGLING
	// reference needs no entry. A reference marked as dangling counts: its target may be there again.
	usedActingSQL = db.Codes(`
SELECT EXISTS (SELECT FROM dbcontroller.foreign_target f WHERE f.id = $1 AND ` + db.KeptSQL + `)
    OR EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = $1 AND r.behaviour NOT IN ({block}, {allow_dangling}))`)

	endActingSQL = `
UPDATE dbcontroller.foreign_target SET acting_epoch = NULL, acting_own = NULL, turn = nextval('dbcontroller.object_id') WHERE id = $1`
)

// endUnused ends the acting right to a target of another deployment (of), for that deployment, if nothing
// here uses it. ended: no acting reference stands that the deployment has confirmed, and none is written
// under a right until one is granted again. A reference that is being established has a blockade there.
func (s *Rights) endUnused(ctx context.Context, of schema.DeploymentID, target,
	epoch uuid.UUID,
) (ended bool, err error) {
	id, err := s.target(ctx, of, target)
	if err != nil || id == 0 {
		return err == nil, err
	}
	if used, err := s.usedActing(ctx, s.Pool, id); err != nil || used { // without a lock: a right that is used stays
		return false, err
	}
	err = s.alone(ctx, id, func(tx pgx.Tx) error {
		if now, err := s.gate.EpochOf(ctx, tx); err != nil || now != epoch {
			return errors.Join(err, s.gate.RecoveringSelf())
		}
		used, err := s.usedActing(ctx, tx, id)
		if err != nil || used {
			return err
		}
		ended = true
		_, err = tx.Exec(ctx, endActingSQL, id)
		return err
	})
	if db.HasCode(err, db.CodeLockNotAvailable) {
		return false, nil
	}
	return ended && err == nil, err
}

// usedActing reports whether an acting reference to a target stands, stored or in a row of a table.
func (s *Rights) usedActing(ctx context.Context, q db.Querier, id int64) (used bool, err error) {
	rows, err := q.Query(ctx, usedActingSQL, id)
	if err != nil {
		return false, err
	}
	if used, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool]); err != nil || used || !s.rows.Refer() {
		return used, err
	}
	targets, err := s.rows.Targets(ctx, q, []int64{id})
	if err != nil {
		return false, err
	}
	found, err := s.rows.Referring(ctx, q, false, targets, 1)
	return len(found) > 0, err
}
