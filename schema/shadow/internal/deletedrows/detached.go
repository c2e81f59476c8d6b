package deletedrows

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var (
	// Locked first: the uses of a target's shadow are read under its lock.
	lockFreeSQL = `SELECT id FROM dbcontroller.shadow WHERE kind_id = $1 AND name > $2 AND name <= $3 ORDER BY id FOR UPDATE`
	lastFreeSQL = `SELECT max(name) FROM (SELECT name FROM dbcontroller.shadow WHERE kind_id = $1 AND name > $2 ORDER BY name LIMIT $3) AS page`

	// Resources to which others refer, or that wait for others, stay.
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

// freePage is the number of shadows that one transaction looks at.
const freePage = 10_000

// removeAttachment removes the unused shadows of a detached table, page by page, and then the attachment: any
// number of them ends. Its rights are returned by the tidying of unused rights.
func (s *Deleter) removeAttachment(ctx context.Context, kind int32) error {
	for after := ""; ; {
		var last *string
		if err := s.Pool.QueryRow(ctx, lastFreeSQL, kind, after, freePage).Scan(&last); err != nil {
			return fmt.Errorf("read resources of a detached table: %w", err)
		}
		if last == nil {
			break
		}
		if err := s.removeFree(ctx, kind, after, *last); err != nil {
			return fmt.Errorf("remove resources of a detached table: %w", err)
		}
		after = *last
	}
	if _, err := s.Pool.Exec(ctx, `DELETE FROM dbcontroller.attachment WHERE kind_id = $1 AND NOT ready`,
		kind); err != nil {
		return fmt.Errorf("remove a detached table: %w", err)
	}
	return nil
}

func (s *Deleter) removeFree(ctx context.Context, kind int32, after, last string) error {
	return s.InTx(ctx, db.ChangeFeed, func(tx pgx.Tx) error {
		found, err := tx.Query(ctx, lockFreeSQL, kind, after, last)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(found, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, removeFreeSQL, ids)
		return err
	})
}
