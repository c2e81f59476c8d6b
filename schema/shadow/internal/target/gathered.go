package target

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

const (
	// aloneUpTo is the number of establishments under way up to which each has a transaction of its own.
	aloneUpTo = 4
	// mostGathered is the number of attempts in one transaction.
	mostGathered = 200
	// mostWaiting is the number of attempts of one deployment that wait for a transaction.
	mostWaiting = 1000
	// largestGathered is the number of references of an attempt that shares a transaction with others.
	largestGathered = 20
	gatheredTimeout = 10 * time.Second
	skipLocked      = ` SKIP LOCKED`
)

// establishSoon runs the transaction of an establishment: one of its own, or one that it shares with those that come at the same time. It
// returns when the transaction has ended, which a quota relies on.
func (s *Keeper) establishSoon(ctx context.Context, e *establishment) error {
	alone := func() error {
		return s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error { return s.establish(ctx, tx, e, db.CommitWith) })
	}
	if len(e.refs) > largestGathered || s.rows.Any(e.ids.rowKeys()) || db.IsFenced(ctx) {
		return alone()
	}
	err := s.establishes.Do(context.WithoutCancel(ctx), e.holder, e, alone)
	if errors.Is(err, gather.ErrTooMany) {
		return postgres.ErrTooMany
	}
	return err
}

// establishAll runs one transaction for several establishments, and returns their outcomes. It waits for no row: an establishment with a
// target that another transaction has locked is left out, and all are when the transaction fails.
func (s *Keeper) establishAll(establishments []*establishment) []error {
	ctx, cancel := context.WithTimeout(postgres.WithCaller(context.Background(), postgres.Caller{Lane: postgres.Peers}), gatheredTimeout)
	defer cancel()
	errs := make([]error, len(establishments))
	err := s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error {
		a, err := s.lockEstablished(ctx, tx, establishments, skipLocked)
		if err != nil {
			return err
		}
		var ready []*establishment
		for i, e := range establishments {
			if errs[i] = s.admitGathered(a, e); errs[i] == nil {
				ready = append(ready, e)
			}
		}
		return s.insertBlockades(ctx, tx, db.CommitWith, ready...)
	})
	for i := range errs {
		switch {
		case err == nil:
		case errors.Is(err, peer.ErrUnknown):
			errs[i] = err
		default:
			errs[i] = gather.ErrAlone
		}
	}
	return errs
}

// admitGathered checks an establishment whose locks were not waited for: a missing target may be locked by another transaction. A target
// in DELETING may be one that the holder blocks already, which is looked up alone.
func (s *Keeper) admitGathered(a *admission, e *establishment) error {
	if err := s.checkEstablishment(a, e); err != nil {
		return err
	}
	if slices.Contains(e.targets, 0) || slices.Contains(e.refused, peer.TargetDeleting) {
		return gather.ErrAlone
	}
	e.refuseAttempt(a.now)
	return s.refusals(e.refs, e.refused)
}
