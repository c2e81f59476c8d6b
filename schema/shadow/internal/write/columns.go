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

// inUserTransaction runs a transaction: its own, or one with an application's statements after the given
// ones.
func (s *Writer) inUserTransaction(ctx context.Context, within *gate.UserTransaction, fn func(pgx.Tx) error) error {
	if within == nil {
		return s.InTx(ctx, db.ChangeFeed|db.WorkFeed, fn)
	}
	return s.gate.InUserTransaction(ctx, within, db.ChangeFeed|db.WorkFeed, fn)
}

const lockResourceSQL = `
SELECT id, uid, state, hidden, finalizers FROM dbcontroller.shadow WHERE kind_id = $1 AND name = $2 FOR NO KEY UPDATE`

// lockedResource is a resource of which other transactions change nothing until the end of this one.
type lockedResource struct {
	id         int64
	uid        uuid.UUID
	state      peer.State
	finalizers []string
}

// extraStatements has the statements that run with a change in its transaction.
type extraStatements struct {
	within *gate.UserTransaction // with an application's statements after it; nil: with none
	first  func(tx pgx.Tx) error // runs before the resource is locked; may be nil
}

// changeColumns locks a resource, changes it, and returns it as it is then. A non-zero uid has to match the
// resource's. It fails with ErrNotFound.
func (s *Writer) changeColumns(ctx context.Context, p extraStatements, name string, uid uuid.UUID,
	change func(tx pgx.Tx, l lockedResource) error,
) (*peer.Resource, error) {
	return gate.UnlessSkewed(ctx, s.gate, s.Pool, func() (*peer.Resource, error) {
		return s.changeColumnsNow(ctx, p, name, uid, change)
	})
}

func (s *Writer) changeColumnsNow(ctx context.Context, p extraStatements, name string, uid uuid.UUID,
	change func(tx pgx.Tx, l lockedResource) error,
) (*peer.Resource, error) {
	kindID, err := s.KindOfName(ctx, name)
	if err != nil {
		return nil, err
	}
	var out *peer.Resource
	err = s.inUserTransaction(ctx, p.within, func(tx pgx.Tx) error {
		if p.first != nil {
			if err := p.first(tx); err != nil {
				return err
			}
		}
		var l lockedResource
		var hidden bool
		err := tx.QueryRow(ctx, lockResourceSQL, kindID, name).Scan(&l.id, &l.uid, &l.state, &hidden, &l.finalizers)
		switch {
		case hidden && l.state == peer.Active:
			return db.ScheduledFreeze.Refuse(name)
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
