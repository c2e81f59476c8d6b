package capture

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var (
	selectDetachedSQL = `SELECT kind_id FROM dbcontroller.attachment WHERE NOT ready ORDER BY kind_id`

	selectHoldersSQL = db.Codes(`
SELECT s.name, s.uid, s.revision FROM dbcontroller.shadow s JOIN dbcontroller.resource r USING (id)
WHERE s.kind_id = $1 AND s.state = {active} AND r.body <> '{}' ORDER BY s.name LIMIT $2`)

	// Locked first: what a target's shadow is needed for is read under its lock.
	lockFreeSQL = `SELECT id FROM dbcontroller.shadow WHERE kind_id = $1 ORDER BY id FOR UPDATE`

	// What others refer to, or what waits for others, stays.
	removeFreeSQL = db.Codes(`
WITH gone AS (
    DELETE FROM dbcontroller.shadow s WHERE s.id = ANY ($1) AND s.state = {active} AND NOT s.block_deletion
        AND NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = s.id) AND NOT EXISTS (SELECT FROM dbcontroller.holder_entry WHERE target_id = s.id)
        AND NOT EXISTS (SELECT FROM dbcontroller.reference WHERE target_id = s.id OR holder_id = s.id) AND NOT EXISTS (SELECT FROM dbcontroller.ownee_entry WHERE owner_id = s.id)
    RETURNING *
), bodies AS (
    DELETE FROM dbcontroller.resource r USING gone WHERE r.id = gone.id
)` + db.ChangeGone(`nextval('dbcontroller.revision')`, `gone`))
)

// letGo gives up what the rows of detached tables refer to, a batch of each at a time. It reports whether there is more.
func (s *Capturer) letGo(ctx context.Context) (more bool, err error) {
	found, err := s.Pool.Query(ctx, selectDetachedSQL)
	if err != nil {
		return false, fmt.Errorf("read detached tables: %w", err)
	}
	kinds, err := pgx.CollectRows(found, pgx.RowTo[int32])
	if err != nil {
		return false, fmt.Errorf("read detached tables: %w", err)
	}
	for _, kind := range kinds {
		if again, err := s.letGoOf(ctx, kind); err != nil || again {
			return again, err
		}
	}
	return false, nil
}

func (s *Capturer) letGoOf(ctx context.Context, kind int32) (more bool, err error) {
	found, err := s.Pool.Query(ctx, selectHoldersSQL, kind, batch)
	if err != nil {
		return false, fmt.Errorf("read resources of a detached table: %w", err)
	}
	var writes []peer.Write
	w := peer.Write{Mode: peer.Update, Body: map[string]any{}}
	if _, err = pgx.ForEachRow(found, []any{&w.Name, &w.UID, &w.Revision}, func() error { writes = append(writes, w); return nil }); err != nil {
		return false, fmt.Errorf("read resources of a detached table: %w", err)
	}
	if len(writes) > 0 {
		return true, s.write.SaveRows(ctx, writes, nil, nil)
	}
	return false, s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error {
		found, err := tx.Query(ctx, lockFreeSQL, kind)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(found, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(removeFreeSQL, ids)
		b.Queue(`DELETE FROM dbcontroller.attachment WHERE kind_id = $1 AND NOT ready`, kind)
		return tx.SendBatch(ctx, b).Close()
	})
}
