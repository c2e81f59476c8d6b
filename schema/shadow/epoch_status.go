package shadow

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
)

// EpochStatus is what operators want to know of the database's epochs.
type EpochStatus struct {
	ID      uuid.UUID
	Since   time.Time
	Ordinal int64 // 1 for the first
	// Awaiting: the registry has to say who may refer to resources here.
	Awaiting bool
	// Unconfirmed have not compared their references since this database, or theirs, was failed over; until they have,
	// nothing is deleted here.
	Unconfirmed []schema.DeploymentID
	// Dangling is how many references were found whose targets went without them.
	Dangling int64
}

const epochStatusSQL = `
SELECT e.id, e.noticed_at, (SELECT count(*) FROM dbcontroller.epoch), m.awaiting,
    ARRAY(SELECT service || '/' || region FROM dbcontroller.deployment d WHERE ` + awaitedSQL + ` ORDER BY 1),
    (SELECT count(*) FROM dbcontroller.reference WHERE dangling)
FROM dbcontroller.meta m JOIN dbcontroller.epoch e ON e.id = m.epoch ORDER BY e.seq DESC LIMIT 1`

// Epoch tells in which epoch the database is.
func (s *Store) Epoch(ctx context.Context) (e EpochStatus, err error) {
	var names []string
	if err := s.pool.QueryRow(ctx, epochStatusSQL).Scan(&e.ID, &e.Since, &e.Ordinal, &e.Awaiting, &names, &e.Dangling); err != nil {
		return e, fmt.Errorf("read the epoch: %w", err)
	}
	for _, name := range names {
		id, err := schema.ParseDeploymentID(name)
		if err != nil {
			return e, err
		}
		e.Unconfirmed = append(e.Unconfirmed, id)
	}
	return e, nil
}
