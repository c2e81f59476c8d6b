// Package control stores reports of controllers and decisions about resources, beside the bodies: finalizers that are done, statuses, and
// block_deletion.
package control

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// Controls writes them.
type Controls struct {
	*db.DB
	gate *gate.Gate
}

// New returns the controls of a database.
func New(g *gate.Gate) *Controls { return &Controls{g.DB, g} }

// inTx runs a transaction: its own, or one with an application's statements after the given ones.
func (s *Controls) inTx(ctx context.Context, within *gate.Within, fn func(pgx.Tx) error) error {
	if within == nil {
		return s.InTx(ctx, db.ChangeFeed|db.WorkFeed, fn)
	}
	return s.gate.InTxWithin(ctx, within, db.ChangeFeed|db.WorkFeed, fn)
}

const lockSQL = `
SELECT id, uid, state, hidden, finalizers FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2 FOR NO KEY UPDATE`

// locked is a resource of which other transactions change nothing until the end of this one.
type locked struct {
	id         int64
	uid        uuid.UUID
	state      peer.State
	finalizers []string
}

// part has the statements that run with a change in its transaction.
type part struct {
	within *gate.Within          // with an application's statements after it; nil: with none
	first  func(tx pgx.Tx) error // runs before the resource is locked; may be nil
}

// change locks a resource, changes it, and returns it as it is then. A non-zero uid has to match the resource's. It fails with
// ErrNotFound.
func (s *Controls) change(ctx context.Context, p part, name string, uid uuid.UUID, change func(tx pgx.Tx, l locked) error) (*peer.Resource, error) {
	return gate.UnlessBehind(ctx, s.gate, s.Pool, func() (*peer.Resource, error) { return s.changeNow(ctx, p, name, uid, change) })
}

func (s *Controls) changeNow(ctx context.Context, p part, name string, uid uuid.UUID, change func(tx pgx.Tx, l locked) error) (*peer.Resource, error) {
	kindID, err := s.KindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	var out *peer.Resource
	err = s.inTx(ctx, p.within, func(tx pgx.Tx) error {
		if p.first != nil {
			if err := p.first(tx); err != nil {
				return err
			}
		}
		var l locked
		var hidden bool
		err := tx.QueryRow(ctx, lockSQL, kindID, name).Scan(&l.id, &l.uid, &l.state, &hidden, &l.finalizers)
		switch {
		case errors.Is(err, pgx.ErrNoRows) || hidden:
			return fmt.Errorf("%s: %w", name, peer.ErrNotFound)
		case err != nil:
			return fmt.Errorf("lock %s: %w", name, err)
		case uid != uuid.Nil && uid != l.uid:
			return fmt.Errorf("%s: %w with uid %s", name, peer.ErrNotFound, uid)
		}
		if err := change(tx, l); err != nil {
			return err
		}
		out, err = read.LookUp(ctx, s.DB, tx, kindID, name)
		return err
	})
	return out, err
}

// The time of the last update stays: for a resource in DELETING it is the time of the mark, by which long waits are found.
var removeFinalizerSQL = db.Codes(`
WITH s AS (
    UPDATE dbcontroller.shadow SET finalizers = NULLIF(array_remove(finalizers, $2), '{}'), revision = nextval('dbcontroller.revision')
    WHERE id = $1
    RETURNING id, uid, kind_id, state, shard, name, revision, generation, created_at, block_deletion, finalizers
), looked AS (
` + db.LookAgain(`$3`, `s WHERE s.finalizers IS NULL`) + `
)` + db.ChangeTo(`state`, `s JOIN dbcontroller.resource r USING (id)`))

// RemoveFinalizer removes a finalizer of a resource in DELETING and returns the resource, which is removed
// soon if nothing else holds it. A finalizer that the resource in DELETING does not have was removed before.
// It fails with ErrNotFound, and with ErrNotDeleting for a resource that is not in DELETING: its clean-up
// would not be the last one.
func (s *Controls) RemoveFinalizer(ctx context.Context, name string, uid uuid.UUID, finalizer string) (*peer.Resource, error) {
	return s.change(ctx, part{}, name, uid, func(tx pgx.Tx, l locked) error { return s.remove(ctx, tx, l, name, finalizer) })
}

// RemoveFinalizerWithin is RemoveFinalizer by its holder, in one transaction with an application's own statements. It fails with
// ErrDenied when the version that runs names another holder, and with ErrAborted when this process does not know that version.
func (s *Controls) RemoveFinalizerWithin(ctx context.Context, within *gate.Within, by, name string, uid uuid.UUID, finalizer string) (*peer.Resource, error) {
	first := func(tx pgx.Tx) error { return s.holds(ctx, tx, by, name, finalizer) }
	return s.change(ctx, part{within, first}, name, uid, func(tx pgx.Tx, l locked) error { return s.remove(ctx, tx, l, name, finalizer) })
}

// holds fails unless the version that runs names the caller as the holder of a finalizer. No switch commits before the transaction ends.
func (s *Controls) holds(ctx context.Context, tx pgx.Tx, by, name, finalizer string) error {
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

func (s *Controls) remove(ctx context.Context, tx pgx.Tx, l locked, name, finalizer string) error {
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
func (s *Controls) UpdateStatus(ctx context.Context, name string, uid uuid.UUID, status []byte, generation *int64) (*peer.Resource, error) {
	return s.UpdateStatusWithin(ctx, nil, name, uid, status, generation)
}

// UpdateStatusWithin is UpdateStatus in one transaction with an application's own statements; nil: with none.
func (s *Controls) UpdateStatusWithin(ctx context.Context, within *gate.Within, name string, uid uuid.UUID, status []byte, generation *int64) (*peer.Resource, error) {
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
	return s.change(ctx, part{within: within}, name, uid, func(tx pgx.Tx, l locked) error {
		var same bool
		var stored int64
		err := tx.QueryRow(ctx, selectStatusSQL, l.id, text).Scan(&same, &stored)
		switch {
		case err != nil:
			return fmt.Errorf("read the status of %s: %w", name, err)
		case same:
			return nil
		case generation != nil && *generation != stored:
			return fmt.Errorf("%s: %w: its status has generation %d, not %d", name, peer.ErrConflict, stored, *generation)
		}
		if _, err := tx.Exec(ctx, writeStatusSQL, l.id, text); err != nil {
			return fmt.Errorf("write the status of %s: %w", name, err)
		}
		return nil
	})
}
