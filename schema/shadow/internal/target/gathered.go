package target

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

const (
	// mostGathered is the number of attempts in one transaction.
	mostGathered = 200
	// mostWaiting is the number of attempts of one deployment that wait for a transaction.
	mostWaiting = 1000
	// batchesAtOnce: one batch executes statements while the other one is flushed.
	batchesAtOnce = 2
	// pace is the time for which attempts wait for a transaction that is delayed, by a lock or by the
	// database.
	pace            = 20 * time.Millisecond
	gatheredTimeout = 10 * time.Second
	skipLocked      = ` SKIP LOCKED`
)

// establishSoon runs the transaction of an establishment: one of its own, or one that it shares with
// establishments that come at the same time. It returns when the transaction has ended, which a quota relies
// on.
func (s *Keeper) establishSoon(ctx context.Context, e *establishment) error {
	alone := func() error {
		return s.InTx(ctx, db.NoFeed, func(tx pgx.Tx) error { return s.establish(ctx, tx, e, db.CommitWith) })
	}
	if !s.gathers(e) || db.IsFenced(ctx) {
		return alone()
	}
	err := s.establishes.Do(context.WithoutCancel(ctx), e.holder, e, alone)
	if errors.Is(err, gather.ErrTooMany) {
		return postgres.ErrTooMany
	}
	return err
}

// gathers reports whether an establishment may share its transaction.
func (s *Keeper) gathers(e *establishment) bool {
	return len(e.refs) <= peer.MaxTogether && !s.rows.Any(e.ids.rowKeys())
}

// EstablishTogether is Establish for several attempts in shared transactions, each by itself. An attempt that
// such a transaction leaves out, without effect, has the error ErrLeftOut: it may have to wait for a lock,
// for which the others do not.
func (s *Keeper) EstablishTogether(ctx context.Context, holder schema.DeploymentID,
	attempts []peer.EstablishAttempt,
) []peer.EstablishOutcome {
	out := make([]peer.EstablishOutcome, len(attempts))
	var together []*establishment
	var of []int
	for i, a := range attempts {
		e, reserved, err := s.establishmentOf(ctx, holder, a.Attempt, a.Refs)
		switch {
		case err != nil:
			out[i].Err = err
		case !s.gathers(e):
			reserved.giveBack()
			out[i].Err = peer.ErrLeftOut
		default:
			defer reserved.done()
			e.until = a.Until
			together, of = append(together, e), append(of, i)
		}
	}
	if len(together) == 0 {
		return out
	}
	for n, err := range s.establishNow(ctx, together) {
		switch o := &out[of[n]]; {
		case err == nil:
			o.Established = together[n].answer()
		case errors.Is(err, gather.ErrAlone):
			o.Err = peer.ErrLeftOut
		case errors.Is(err, gather.ErrTooMany):
			o.Err = postgres.ErrTooMany
		default:
			o.Err = err
		}
	}
	return out
}

// establishNow runs the shared transactions of establishments of one deployment, and returns their outcomes.
func (s *Keeper) establishNow(ctx context.Context, together []*establishment) []error {
	if err := s.gate.SetFlag(ctx, gate.NoteReferredSQL, together[0].ids.holder); err != nil {
		return slices.Repeat([]error{err}, len(together))
	}
	errs := s.establishes.DoAll(together[0].holder, together)
	crash.At("crash-establish-committed")
	return errs
}

// establishAll runs one transaction for several establishments, and returns their outcomes. It waits for no
// row: an establishment with a target that another transaction has locked is left out, and all are when the
// transaction fails.
func (s *Keeper) establishAll(establishments []*establishment) []error {
	ctx, cancel := context.WithTimeout(postgres.WithCaller(context.Background(), postgres.Caller{Lane: postgres.Peers}),
		gatheredTimeout)
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

// admitGathered checks an establishment whose locks were not waited for: a missing target may be locked by
// another transaction. The holder may already block a target in DELETING, which is looked up alone.
func (s *Keeper) admitGathered(a *admission, e *establishment) error {
	if err := s.checkEstablishment(a, e); err != nil {
		return err
	}
	if !e.until.IsZero() && time.Now().After(e.until) {
		return context.DeadlineExceeded
	}
	if slices.Contains(e.targets, 0) || slices.Contains(e.refused, peer.TargetDeleting) {
		return gather.ErrAlone
	}
	e.refuseAttempt(a.now)
	return s.refusals(e.refs, e.refused)
}
