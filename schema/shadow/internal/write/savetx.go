package write

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// SaveTx writes resources inside the caller's own transaction, which has to be READ COMMITTED and READ WRITE, in the deployment's
// database. New references can only be to resources of this deployment, and acting ones to resources that are delegated to it, since
// no RPC is made while a transaction is open. It fails
// with the errors of Save, with ErrForeignReference, or with ErrTransaction when the transaction is not as described. It runs in a
// savepoint: after an error the transaction can go on. It sets synchronous_commit on when it was off, and
// idle_in_transaction_session_timeout to at most 30 s, both until the end of the transaction. Call Wake after the commit.
func (s *Writer) SaveTx(ctx context.Context, tx pgx.Tx, writes []peer.Write) (saved []peer.Resource, err error) {
	ctx = context.WithValue(ctx, db.SeparateConnection{}, true)
	saved, err = gate.UnlessBehind(ctx, s.gate, tx, func() ([]peer.Resource, error) { return s.saveIn(ctx, tx, writes) })
	switch {
	case errors.Is(err, db.ErrStale):
		return nil, peer.ErrAborted
	case errors.Is(err, pgx.ErrTxClosed):
		return nil, fmt.Errorf("%w: it has ended: begin another one", peer.ErrTransaction)
	case db.HasCode(err, db.CodeInFailedTransaction):
		return nil, fmt.Errorf("%w: an earlier statement in it has failed: roll it back, or roll back to a savepoint before that statement", peer.ErrTransaction)
	case err != nil:
		return nil, err
	}
	return saved, nil
}

// saveIn runs in a savepoint: a failed write leaves the caller's transaction usable and its settings unchanged.
func (s *Writer) saveIn(ctx context.Context, tx pgx.Tx, writes []peer.Write) (saved []peer.Resource, err error) {
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		return s.gate.WithSettings(ctx, tx, func(tx pgx.Tx) error {
			sv, err := s.preparer.Prepare(ctx, tx, writes, false)
			if err != nil {
				return err
			}
			if err := s.rights.Take(ctx, tx, sv); err != nil {
				return err
			}
			if len(sv.Foreign) > 0 {
				return peer.ErrForeignReference
			}
			saved, err = s.write(ctx, tx, sv, db.Stay)
			return err
		})
	})
	return saved, err
}

// SaveWithin is Save in one transaction with an application's own statements: the references to other deployments are established
// before it begins, and decided with it. It fails with the errors of Save, with those of the application's function, and with
// ErrTransaction.
func (s *Writer) SaveWithin(ctx context.Context, within *gate.Within, writes []peer.Write) ([]peer.Resource, error) {
	return s.settled(ctx, writes, func(ctx context.Context, unread bool) ([]peer.Resource, error) {
		sv, err := s.preparer.Prepare(ctx, s.Pool, writes, unread)
		if err != nil {
			return nil, err
		}
		sv.Within = within
		return Commit(ctx, s, sv, nil)
	})
}
