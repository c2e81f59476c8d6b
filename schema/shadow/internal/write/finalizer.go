package write

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// The time of the last update stays: for a resource in DELETING it is the time of the mark, by which long
// waits are found.
var removeFinalizerSQL = db.Codes(`
WITH s AS (
    UPDATE dbcontroller.shadow SET finalizers = NULLIF(array_remove(finalizers, $2), '{}'), revision = nextval('dbcontroller.revision')
    WHERE id = $1
    RETURNING id, uid, kind_id, state, shard, name, revision, generation, created_at, block_deletion, finalizers
), looked AS (
` + db.LookAgain(`$3`, `s WHERE s.finalizers IS NULL`) + `
)` + db.ChangeTo(`state`, `s JOIN dbcontroller.resource r USING (id)`))

// RemoveFinalizer removes a finalizer of a resource in DELETING and returns the resource, which is removed
// soon if nothing else holds it. A finalizer that the resource in DELETING does not have was removed before,
// or is given when nothing blocks the resource any more: the call has no effect. It fails with ErrNotFound,
// and with ErrNotDeleting for a resource that is not in DELETING: its clean-up would not be the last one.
func (s *Writer) RemoveFinalizer(ctx context.Context, name string, uid uuid.UUID,
	finalizer string,
) (*peer.Resource, error) {
	return s.changeColumns(ctx, extraStatements{}, name, uid, func(tx pgx.Tx, l lockedResource) error {
		return s.removeFinalizer(ctx, tx, l, name, finalizer)
	})
}

// RemoveFinalizerIn is RemoveFinalizer by its holder, in one transaction with an application's own
// statements. It fails with ErrDenied when the version that runs names another holder, and with ErrAborted
// when this process does not know that version.
func (s *Writer) RemoveFinalizerIn(ctx context.Context, within *gate.UserTransaction, by, name string, uid uuid.UUID,
	finalizer string,
) (*peer.Resource, error) {
	first := func(tx pgx.Tx) error { return s.holdsFinalizer(ctx, tx, by, name, finalizer) }
	return s.changeColumns(ctx, extraStatements{within, first}, name, uid, func(tx pgx.Tx, l lockedResource) error {
		return s.removeFinalizer(ctx, tx, l, name, finalizer)
	})
}

// holdsFinalizer fails unless the version that runs names the caller as the holder of a finalizer. No switch
// commits before the transaction ends.
func (s *Writer) holdsFinalizer(ctx context.Context, tx pgx.Tx, by, name, finalizer string) error {
	v := s.Version.Load()
	if v == nil {
		return fmt.Errorf("%w: no version runs yet", peer.ErrAborted)
	}
	if _, err := tx.Exec(ctx, gate.ShareVersionSQL, gate.VersionLock); err != nil {
		return err
	}
	if err := s.gate.CheckRuns(ctx, tx, v); err != nil {
		return err
	}
	if kind, err := v.Model.KindOf(name); err != nil || kind.FinalizerHolder(finalizer) != by {
		return fmt.Errorf("%s: %s is not the holder of finalizer %s: %w", name, by, finalizer, peer.ErrDenied)
	}
	return nil
}

func (s *Writer) removeFinalizer(ctx context.Context, tx pgx.Tx, l lockedResource, name, finalizer string) error {
	switch {
	case l.state != peer.Deleting:
		return fmt.Errorf("%s: %w", name, peer.ErrNotDeleting)
	case !slices.Contains(l.finalizers, finalizer):
		return nil
	}
	if _, err := tx.Exec(ctx, removeFinalizerSQL, l.id, finalizer, s.SelfID); err != nil {
		return fmt.Errorf("remove finalizer %s of %s: %w", finalizer, name, err)
	}
	return nil
}
