package shadow

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const lockProtectedSQL = `
SELECT id, uid, state, shard, hidden FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2 FOR NO KEY UPDATE`

var protectSQL = codes(`
WITH s AS (
    UPDATE dbcontroller.shadow SET block_deletion = $2, revision = nextval('dbcontroller.revision'), updated_at = now()
    WHERE id = $1 AND block_deletion <> $2
    RETURNING id, uid, kind_id, state, shard, name, revision, generation, created_at, block_deletion
), looked AS (
` + lookAgain(`$3`, `s WHERE s.state = {deleting} AND NOT s.block_deletion`) + `
)` + changeTo(`state`, `s JOIN dbcontroller.resource r USING (id)`))

// SetBlockDeletion sets or clears block_deletion of a resource and returns the resource. While it is set, a delete that would
// remove the resource is refused, and an asynchronous cascade leaves it in DELETING. A non-zero uid has to match the resource's.
// It fails with ErrNotFound.
func (s *Store) SetBlockDeletion(ctx context.Context, name string, uid uuid.UUID, block bool) (*Resource, error) {
	kindID, err := s.kindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	var out *Resource
	err = s.inTx(ctx, changeFeed|workFeed, func(tx pgx.Tx) error {
		var m member
		var hidden bool
		err := tx.QueryRow(ctx, lockProtectedSQL, kindID, name).Scan(&m.id, &m.uid, &m.state, &m.shard, &hidden)
		switch {
		case errors.Is(err, pgx.ErrNoRows) || hidden:
			return fmt.Errorf("%s: %w", name, ErrNotFound)
		case err != nil:
			return fmt.Errorf("lock %s: %w", name, err)
		case uid != uuid.Nil && uid != m.uid:
			return fmt.Errorf("%s: %w with uid %s", name, ErrNotFound, uid)
		}
		if _, err := tx.Exec(ctx, protectSQL, m.id, block, s.selfID); err != nil {
			return fmt.Errorf("block the deletion of %s: %w", name, err)
		}
		out, err = s.get(ctx, tx, kindID, name)
		return err
	})
	return out, err
}
