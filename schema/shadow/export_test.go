package shadow

import (
	"context"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
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

// Act is ActFor for deletions of which no more than the uid is known, without an end: everything is done when it returns without
// an error.
func (s *Store) Act(ctx context.Context, from schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]error, error) {
	deletions := make([]schema.Deletion, len(uids))
	for i, uid := range uids {
		deletions[i].UID = uid
	}
	return s.ActFor(ctx, from, deletions, math.MaxInt64)
}
