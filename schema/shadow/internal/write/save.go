package write

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/crash"
	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/attempt"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// saveTimeout bounds a write whose caller gives no deadline.
const saveTimeout = 10 * time.Second

// Save creates or updates resources, all or nothing (I6), and returns them in the order of writes. References
// to other deployments are established there first, under one attempt id; then one transaction decides the
// attempt and writes all rows. The resources may refer to one another in any order. Temporary failures (a
// target that a delete is closing, a concurrent write, a lock of another transaction) are retried until the
// deadline of ctx, 10 s by default. It fails with *InvalidError, *RefusedError, ErrNotFound, ErrExists,
// ErrConflict, ErrDeleting, ErrAborted, or ErrUnknown when the answer to the commit was lost.
func (s *Writer) Save(ctx context.Context, writes []peer.Write) ([]peer.Resource, error) {
	return s.save(ctx, nil, writes)
}

// SaveRequested is Save with a request id, for a client that repeats the request when it has lost the answer:
// for 24 h, the same id and writes return the same answer and take effect at most once. With other writes it
// fails with ErrRequestReused. A definite refusal is recorded, under the primary key that a commit of the
// same request inserts too, before it is returned. Other errors are not recorded, and the request can be
// repeated.
func (s *Writer) SaveRequested(ctx context.Context, id uuid.UUID, writes []peer.Write) ([]peer.Resource, error) {
	o, err := prepare.Once(ctx, s.DB, id, writes, func(req *prepare.Request) (prepare.Outcome, error) {
		saved, err := s.save(ctx, req, writes)
		return prepare.Outcome{Saved: saved}, err
	})
	return o.Saved, err
}

func (s *Writer) save(ctx context.Context, req *prepare.Request, writes []peer.Write) ([]peer.Resource, error) {
	return s.settled(ctx, writes, func(ctx context.Context, unread bool) ([]peer.Resource, error) {
		saved, err := s.saveOnce(ctx, req, writes, unread)
		if postgres.LockTimedOut(err) {
			err = fmt.Errorf("%w: another transaction holds the lock of a row that the write needs", peer.ErrAborted)
		}
		return saved, err
	})
}

// settled repeats a write while its failures are temporary, or come from a process that is behind a switch of
// the version.
func (s *Writer) settled(ctx context.Context, writes []peer.Write,
	once func(ctx context.Context, unread bool) ([]peer.Resource, error),
) ([]peer.Resource, error) {
	ctx, cancel := peer.WithDefaultTimeout(ctx, saveTimeout)
	defer cancel()
	unread := allCreate(writes)
	var last error // the temporary failure of the previous try
	for pauses := (retry.Backoff{First: 5 * time.Millisecond, Max: 200 * time.Millisecond}); ; {
		v := s.Version.Load()
		saved, err := once(ctx, unread)
		if unread && (errors.Is(err, db.ErrStale) || peer.Definite(err)) {
			unread = false // a resource may exist: that error comes first
			continue
		}
		err = s.gate.Judged(ctx, s.Pool, v, err)
		if last != nil && peer.GaveUp(err) {
			return nil, last // says more than an exceeded deadline
		}
		if err == nil || !passes(err) {
			return saved, err
		}
		if last = err; errors.Is(err, db.ErrStale) {
			last = peer.ErrAborted
		}
		if pauses.Wait(ctx) != nil {
			return nil, last
		}
	}
}

func passes(err error) bool {
	var refused *peer.RefusedError
	return errors.Is(err, db.ErrStale) || errors.Is(err, peer.ErrAborted) ||
		errors.As(err, &refused) && refused.All(peer.Stands(peer.Again))
}

// allCreate reports whether all writes create resources. They are expected not to exist, so that they are not
// read before: the transaction finds existing ones.
func allCreate(writes []peer.Write) bool {
	return !slices.ContainsFunc(writes, func(w peer.Write) bool { return w.Mode != peer.Create })
}

// saveOnce tries once. unread: stored resources are not read, and the transaction fails with ErrStale when
// one exists.
func (s *Writer) saveOnce(ctx context.Context, req *prepare.Request, writes []peer.Write,
	unread bool,
) ([]peer.Resource, error) {
	sv, err := s.preparer.Prepare(ctx, s.Pool, writes, unread)
	if err != nil {
		return nil, err
	}
	sv.Request = req
	if err := s.checkPinned(ctx, sv); err != nil {
		return nil, err
	}
	return Commit(ctx, s, sv, nil)
}

// Commit establishes the new references to other deployments, and then decides the attempt in the transaction
// that writes all rows. also, when it is not nil, runs in the same transaction.
func Commit(ctx context.Context, s *Writer, sv *prepare.Saving, also func(pgx.Tx) error) ([]peer.Resource, error) {
	if err := s.rights.take(ctx, s.Pool, sv); err != nil {
		return nil, err
	}
	if len(sv.Foreign) == 1 && also == nil && sv.Within == nil {
		for target := range sv.Foreign {
			if err := s.cohorts.join(ctx, target, func(ctx context.Context) error {
				return commit(ctx, s, sv, nil)
			}); err != nil {
				return nil, err
			}
			return sv.Saved, nil
		}
	}
	if err := commit(ctx, s, sv, also); err != nil {
		return nil, err
	}
	return sv.Saved, nil
}

func commit(ctx context.Context, s *Writer, sv *prepare.Saving, also func(pgx.Tx) error) error {
	if len(sv.Foreign) > 0 {
		// before other deployments establish references that could not commit
		if err := s.stillRuns(ctx, sv); err != nil {
			return err
		}
		if err := attempt.NoteTargets(ctx, s.attempts, sv); err != nil {
			return err
		}
		if err := attempt.EstablishAll(ctx, s.attempts, sv); err != nil {
			return err
		}
		crash.At("crash-save-established")
	}
	err := s.transact(ctx, sv, also)
	if len(sv.Foreign) > 0 {
		crash.At("crash-save-committed")
	}
	if err == nil {
		s.delegatedWrites.Add(int64(len(sv.Delegated)))
	}
	if err != nil && len(sv.Foreign) > 0 {
		committed, aerr := attempt.Abandon(ctx, s.attempts, sv, slices.Collect(maps.Keys(sv.Foreign)))
		if committed {
			return nil // the commit's answer was lost, not the commit
		}
		if aerr == nil && errors.Is(err, peer.ErrUnknown) {
			return peer.ErrAborted
		}
	}
	return err
}

// SaveIn is Save in one transaction with an application's own statements: the references to other
// deployments are established before it begins, and decided with it. It fails with the errors of Save, with
// the errors of the application's function, and with ErrTransaction.
func (s *Writer) SaveIn(ctx context.Context, within *gate.UserTransaction,
	writes []peer.Write,
) ([]peer.Resource, error) {
	return s.settled(ctx, writes, func(ctx context.Context, unread bool) ([]peer.Resource, error) {
		sv, err := s.preparer.Prepare(ctx, s.Pool, writes, unread)
		if err != nil {
			return nil, err
		}
		sv.Within = within
		return Commit(ctx, s, sv, nil)
	})
}
