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

// When the holders have let go, the proxy that stood for them is released.
var lookAtClosedSQL = db.LookAtRights(`dbcontroller.foreign_target f WHERE f.id = $1 AND f.block_attempt IS NOT NULL`)

// close ends the rights to a target of another deployment (of), for that deployment, in an epoch of this database. The references that were written
// under them stay. closed: no write under them is under way, and none follows until a right is granted again. Without a row of the target there
// is no right, and an answer makes no row.
func (s *Rights) close(ctx context.Context, of schema.DeploymentID, target, epoch uuid.UUID) (closed bool, err error) {
	deployment, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return false, err
	}
	var id int64
	err = s.Pool.QueryRow(ctx, selectTargetSQL, target, deployment).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	err = s.alone(ctx, id, func(tx pgx.Tx) error {
		if now, err := s.gate.EpochOf(ctx, tx); err != nil || now != epoch {
			return errors.Join(err, s.gate.RecoveringSelf())
		}
		b := &pgx.Batch{}
		b.Queue(closeSQL, id)
		b.Queue(lookAtClosedSQL, id)
		return tx.SendBatch(ctx, b).Close()
	})
	if db.HasCode(err, db.CodeLockNotAvailable) {
		return false, nil
	}
	return err == nil, err
}
