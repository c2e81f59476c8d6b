package shadow

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// InTx runs fn as a handler's transaction, for tests of what surrounds it.
func (s *Store) InTx(ctx context.Context, fn func(pgx.Tx) error) error {
	return s.inTx(ctx, noFeed, fn)
}

// Hears tells whether what other processes commit is heard of.
func (s *Store) Hears() bool { return s.hears() }

// Mark is the greatest number that this process has seen.
func (s *Store) Mark() int64 { return s.marks.seen.Load() }

// SaveUnder is Save under a given attempt, once.
func (s *Store) SaveUnder(ctx context.Context, attempt AttemptID, writes []Write) ([]Resource, error) {
	sv, err := s.prepare(ctx, s.pool, writes)
	if err != nil {
		return nil, err
	}
	sv.attempt = attempt
	return s.commit(ctx, sv, nil)
}

// TidyAt is Tidy by a given clock of the process.
func (s *Store) TidyAt(ctx context.Context, now time.Time) (bool, error) { return s.tidy(ctx, now) }
