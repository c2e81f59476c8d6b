package shadow

import (
	"context"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/cascade"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/rights"
)

// InTx runs fn in a transaction as handlers run theirs, for tests of its fencing.
func (s *Store) InTx(ctx context.Context, fn func(pgx.Tx) error) error {
	return s.db.InTx(ctx, db.NoFeed, fn)
}

// Wake wakes all watches, as after a commit of the store.
func (s *Store) Wake() { s.db.Wake() }

// Hears reports whether the notifications of other processes' commits arrive.
func (s *Store) Hears() bool { return s.db.NotificationsAlive() }

// SelectRequestsSQL is the statement of each look for requests of rights.
var SelectRequestsSQL = rights.SelectRequestsSQL

// OwnSQL selects the id of a transaction and the epoch, when its commit waits for the disk.
const OwnSQL = db.OwnSQL

// ReferredSQL selects the ids, among some, of resources with a holder here.
var ReferredSQL = cascade.ByID.ReferredSQL

// Mark is the greatest value of the sequence mark that this process has seen.
func (s *Store) Mark() int64 { return s.db.Rollback.Seen.Load() }

// SetClock replaces the clock of the process.
func (s *Store) SetClock(now func() time.Time) { s.db.Now = now }

// Act calls ActFor and Forget for deletions with their uids alone, without a time limit: all is done when it
// returns without an error.
func (s *Store) Act(ctx context.Context, from schema.DeploymentID, uids []uuid.UUID) (map[uuid.UUID]error, error) {
	deletions := make([]schema.Deletion, len(uids))
	for i, uid := range uids {
		deletions[i].UID = uid
	}
	failed, err := s.Follow.ActFor(ctx, from, deletions, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	return failed, s.Follow.Forget(ctx, from, deletions)
}
