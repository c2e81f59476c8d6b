package write

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

const lockProtectedSQL = `
SELECT id, uid, state, hidden, frozen FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2 FOR NO KEY UPDATE`

var protectSQL = db.Codes(`
WITH s AS (
    UPDATE dbcontroller.shadow SET block_deletion = $2, revision = nextval('dbcontroller.revision'),
        updated_at = CASE WHEN state = {active} THEN now() ELSE updated_at END
    WHERE id = $1 AND block_deletion <> $2
    RETURNING id, uid, kind_id, state, shard, name, revision, generation, created_at, block_deletion, finalizers
), looked AS (
` + db.LookAgain(`$3`, `s WHERE s.state = {deleting} AND NOT s.block_deletion AND COALESCE(s.finalizers, '{}') = '{}'`) + `
)` + db.ChangeTo(`state`, `s JOIN dbcontroller.resource r USING (id)`))

// SetBlockDeletion sets or clears block_deletion of a resource and returns the resource. While it is set, a
// delete that would remove the resource is refused, and an asynchronous cascade leaves it in DELETING. A
// non-zero uid has to match the resource's. It fails with ErrNotFound, and with ErrAborted while an atomic
// deletion that reaches the resource is undecided.
func (s *Writer) SetBlockDeletion(ctx context.Context, name string, uid uuid.UUID, block bool) (*peer.Resource, error) {
	return gate.UnlessSkewed(ctx, s.gate, s.Pool, func() (*peer.Resource, error) {
		return s.protect(ctx, name, uid, block)
	})
}

func (s *Writer) protect(ctx context.Context, name string, uid uuid.UUID, block bool) (*peer.Resource, error) {
	kindID, err := s.KindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	var out *peer.Resource
	err = s.InTx(ctx, db.ChangeFeed|db.WorkFeed, func(tx pgx.Tx) error {
		var id int64
		var found uuid.UUID
		var hidden, frozen bool
		var state peer.State
		err := tx.QueryRow(ctx, lockProtectedSQL, kindID, name).Scan(&id, &found, &state, &hidden, &frozen)
		switch {
		case hidden && state == peer.Active:
			return db.ScheduledFreeze.Refuse(name)
		case errors.Is(err, pgx.ErrNoRows) || hidden:
			return fmt.Errorf("%s: %w", name, peer.ErrNotFound)
		case err != nil:
			return fmt.Errorf("lock %s: %w", name, err)
		case uid != uuid.Nil && uid != found:
			return fmt.Errorf("%s: %w with uid %s", name, peer.ErrNotFound, uid)
		}
		if block && frozen {
			members, err := db.Frozen(ctx, tx, []int64{id})
			if err != nil {
				return err
			}
			if how := members[id]; how != db.NotFrozen {
				return how.Refuse(name)
			}
		}
		if _, err := tx.Exec(ctx, protectSQL, id, block, s.SelfID); err != nil {
			return fmt.Errorf("block the deletion of %s: %w", name, err)
		}
		out, err = read.LookUp(ctx, s.DB, tx, kindID, name)
		return err
	})
	return out, err
}
