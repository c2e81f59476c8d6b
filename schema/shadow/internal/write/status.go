package write

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

const (
	selectStatusSQL = `SELECT status IS NOT DISTINCT FROM $2::jsonb, COALESCE(status_generation, 0) FROM dbcontroller.resource WHERE id = $1`

	// MaxStatusBytes is the maximum size of a status as JSON: lists and watches carry it beside the body.
	MaxStatusBytes = 64 << 10
)

var writeStatusSQL = db.Codes(`
WITH s AS (
    UPDATE dbcontroller.shadow
    SET revision = nextval('dbcontroller.revision'), updated_at = CASE WHEN state = {active} THEN now() ELSE updated_at END
    WHERE id = $1
    RETURNING id, uid, kind_id, state, name, revision, generation, created_at, block_deletion, finalizers
), r AS (
    UPDATE dbcontroller.resource SET status = $2::jsonb, status_generation = COALESCE(status_generation, 0) + 1
    WHERE id = $1
    RETURNING id, labels, body, owners, status, status_generation
)` + db.ChangeTo(`state`, `s JOIN r USING (id)`))

// UpdateStatus replaces the status of a resource by a JSON object, or removes it if status is nil, and
// returns the resource. The generation of the body stays as it is, the generation of the status increases; a
// status that is equal to the stored one changes nothing, so that a repeated call has no effect. With a
// generation it fails with ErrConflict unless the stored status has that generation. It fails with
// ErrNotFound, and *InvalidError.
func (s *Writer) UpdateStatus(ctx context.Context, name string, uid uuid.UUID, status []byte,
	generation *int64,
) (*peer.Resource, error) {
	return s.UpdateStatusIn(ctx, nil, name, uid, status, generation)
}

// UpdateStatusIn is UpdateStatus in one transaction with an application's own statements; nil: with none.
func (s *Writer) UpdateStatusIn(ctx context.Context, within *gate.UserTransaction, name string, uid uuid.UUID,
	status []byte, generation *int64,
) (*peer.Resource, error) {
	var text *string
	if status != nil {
		t := string(status)
		if text = &t; prepare.Storable("status", t, MaxStatusBytes) != nil {
			return nil, &peer.InvalidError{Err: prepare.Storable("status", t, MaxStatusBytes)}
		}
	}
	if m := s.Model(); m != nil {
		if kind, err := m.KindOf(name); err == nil && kind.Table != nil {
			return nil, &peer.InvalidError{Err: fmt.Errorf("%s is the row of a table, which has no status", name)}
		}
	}
	return s.changeColumns(ctx, extraStatements{within: within}, name, uid, func(tx pgx.Tx, l lockedResource) error {
		var same bool
		var stored int64
		err := tx.QueryRow(ctx, selectStatusSQL, l.id, text).Scan(&same, &stored)
		switch {
		case err != nil:
			return fmt.Errorf("read the status of %s: %w", name, err)
		case same:
			return nil
		case generation != nil && *generation != stored:
			return fmt.Errorf("%s: %w: its status has generation %d, not %d", name, peer.ErrConflict, stored,
				*generation)
		}
		if _, err := tx.Exec(ctx, writeStatusSQL, l.id, text); err != nil {
			return fmt.Errorf("write the status of %s: %w", name, err)
		}
		return nil
	})
}
