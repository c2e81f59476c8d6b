package write

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/gather"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

const (
	// batchesAtOnce: one batch executes statements while the other one is flushed.
	batchesAtOnce = 2
	// pace is the time for which writes wait for a transaction that is delayed, by a lock or by the database.
	pace = 20 * time.Millisecond
	// mostGathered is the number of writes in one transaction.
	mostGathered = 200
	// mostWaiting is the number of writes of one caller that wait for a transaction.
	mostWaiting = 256
	// largestGathered is the number of resources, and of new references, of a write that shares a transaction
	// with others.
	largestGathered = 20
	// largestGatheredBody is the size of the bodies of such a write: it bounds the memory of a transaction of
	// mostGathered.
	largestGatheredBody = 64 << 10
	// gatheredLockTimeout is the time for which a transaction of several writes waits for a lock, in
	// milliseconds: for names and request ids that another process inserts, and for a switch of the version.
	// Afterwards its writes wait one by one.
	gatheredLockTimeout = "200"
	gatheredTimeout     = 10 * time.Second
)

// transact runs the transaction of a saving: one of its own, or one that it shares with savings that are
// ready at the same time.
func (s *Writer) transact(ctx context.Context, sv *prepare.Saving, also func(pgx.Tx) error) error {
	if sv.Within != nil {
		return s.gate.InUserTransaction(ctx, sv.Within, sv.Touches(), func(tx pgx.Tx) error {
			return s.write(ctx, tx, sv, db.Stay)
		})
	}
	alone := func() error { return s.transactAlone(ctx, sv, also) }
	if also != nil || !small(sv) || s.touchesRows(sv) || db.IsFenced(ctx) {
		return alone()
	}
	caller := postgres.CallerOf(ctx)
	until := ctx
	if len(sv.Foreign) > 0 {
		// the caller that abandons the attempt reads variables that the transaction sets
		until = context.WithoutCancel(ctx)
	}
	err := s.commits.Do(until, caller.Who, sv, alone)
	switch {
	case errors.Is(err, gather.ErrLeft):
		return fmt.Errorf("%w: %w", peer.ErrUnknown, context.Cause(ctx))
	case errors.Is(err, gather.ErrTooMany):
		if caller.Refused != nil {
			caller.Refused()
		}
		return postgres.ErrTooMany
	}
	return err
}

func (s *Writer) transactAlone(ctx context.Context, sv *prepare.Saving, also func(pgx.Tx) error) error {
	err := s.InTx(ctx, sv.Touches(), func(tx pgx.Tx) error {
		if also == nil {
			return s.write(ctx, tx, sv, db.CommitWith)
		}
		if err := s.write(ctx, tx, sv, db.Stay); err != nil {
			return err
		}
		return also(tx)
	})
	return Undecided(ctx, s.DB, err)
}

// small reports whether a saving may share its transaction.
func small(sv *prepare.Saving) bool {
	n, bytes := len(sv.Writes), 0
	for _, wr := range sv.Writes {
		bytes += len(wr.BodyText)
		n = max(n, len(wr.Add)+len(wr.Drop)+len(wr.AddOwners)+len(wr.DropOwners))
	}
	return n <= largestGathered && bytes <= largestGatheredBody
}

// errPending is the outcome of a saving whose transaction has not ended.
var errPending = errors.New("the transaction has not ended")

// transactAll runs one transaction for several savings, and returns their outcomes. When the transaction
// fails because of one of them, its halves run.
func (s *Writer) transactAll(savings []*prepare.Saving) []error {
	ctx, cancel := context.WithTimeout(postgres.WithCaller(context.Background(),
		postgres.Caller{Lane: postgres.Writes}), gatheredTimeout)
	defer cancel()
	errs := make([]error, len(savings))
	indexes := make([]int64, len(savings))
	for i := range savings {
		errs[i], indexes[i] = errPending, int64(i)
	}
	_, whole := retry.Halves[int64]{
		Run:   func(part []int64) error { return s.transactPart(ctx, savings, part, errs) },
		Whole: func(err error) bool { return !ofOne(err) },
		Failed: func(i int64, _ error) error {
			errs[i] = gather.ErrAlone
			return nil
		},
	}.Do(indexes)
	for i, err := range errs {
		if errors.Is(err, errPending) {
			errs[i] = whole
		}
	}
	return errs
}

// ofOne reports whether a transaction of several savings can have failed because of one of them, without
// effect.
func ofOne(err error) bool {
	return errors.Is(err, db.ErrStale) || errors.Is(err, peer.ErrAborted) || db.OfData(err)
}

// transactPart runs one transaction for a part of the savings, and sets their outcomes when it has committed.
// It waits for no row: a saving of which another transaction has locked a row is left out, and so is the
// second one of a resource.
func (s *Writer) transactPart(ctx context.Context, savings []*prepare.Saving, part []int64, errs []error) error {
	var in []int64
	var locking []*prepare.Saving
	touches := db.NoFeed
	named := map[string]bool{}
	for _, i := range part {
		if sv := savings[i]; nameOnce(sv, named) {
			in, locking, touches = append(in, i), append(locking, sv), touches|sv.Touches()
			errs[i] = errPending
		} else {
			errs[i] = gather.ErrAlone
		}
	}
	outcomes := make([]error, len(in))
	err := s.InTx(ctx, touches, func(tx pgx.Tx) error {
		l, err := s.lockAll(ctx, tx, locking, skipLocked)
		if err != nil {
			return err
		}
		var ready []*prepare.Saving
		for i, sv := range locking {
			if outcomes[i] = s.checkGathered(ctx, l, sv); outcomes[i] == nil {
				ready = append(ready, sv)
			}
		}
		if len(ready) == 0 {
			return errNoneReady
		}
		return s.store(ctx, tx, l, db.CommitWith, ready...)
	})
	err = Undecided(ctx, s.DB, err)
	if err != nil && !errors.Is(err, errNoneReady) {
		return err
	}
	for i, err := range outcomes {
		errs[in[i]] = err
	}
	return nil
}

// errNoneReady ends a transaction without effect.
var errNoneReady = errors.New("no write can be stored")

const shortLockTimeoutSQL = `SELECT set_config('lock_timeout', $1, true)`

// nameOnce adds the names of the written resources to the names of the batch. It adds none when one of them
// is there.
func nameOnce(sv *prepare.Saving, named map[string]bool) bool {
	for _, wr := range sv.Writes {
		if named[wr.Name] {
			return false
		}
	}
	for _, wr := range sv.Writes {
		named[wr.Name] = true
	}
	return true
}

// checkGathered is check for a saving whose locks were not waited for: a missing row may be locked by another
// transaction.
func (s *Writer) checkGathered(ctx context.Context, l *locked, sv *prepare.Saving) error {
	err := s.check(ctx, l, sv)
	if err != nil && (l.lacks(sv) || l.rights.lack(sv) || len(missingTargets(s.Self, sv)) > 0) {
		return gather.ErrAlone
	}
	return err
}

// lacks reports whether a stored resource of a saving was not locked.
func (l *locked) lacks(sv *prepare.Saving) bool {
	for _, wr := range sv.Writes {
		if _, ok := l.selfRows[wr.ID]; wr.Before != nil && !ok {
			return true
		}
	}
	return false
}
