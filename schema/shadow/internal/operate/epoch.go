package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

// EpochStatus describes the present epoch of the database and its recovery, for operators.
type EpochStatus struct {
	ID      uuid.UUID
	Since   time.Time
	Ordinal int64 // 1 for the first
	// Awaiting reports that recovery has not started: it needs the registry's list of deployments (Recover).
	Awaiting bool
	// Unconfirmed are the deployments that have not compared their references since this database, or theirs,
	// failed over; nothing is deleted here until they have.
	Unconfirmed []schema.DeploymentID
	// Dangling is the number of references whose target is gone because a database lost commits.
	Dangling int64
	// Now is the clock of the database.
	Now time.Time
}

const epochStatusSQL = `
SELECT e.id, e.noticed_at, (SELECT count(*) FROM dbcontroller.epoch), m.awaiting,
    ARRAY(SELECT service || '/' || region FROM dbcontroller.deployment d WHERE ` + gate.AwaitedSQL + ` ORDER BY 1),
    (SELECT count(*) FROM dbcontroller.reference WHERE dangling), clock_timestamp()
FROM dbcontroller.meta m JOIN dbcontroller.epoch e ON e.id = m.epoch ORDER BY e.seq DESC LIMIT 1`

// Epoch returns the status of the present epoch.
func (s *Operations) Epoch(ctx context.Context) (e EpochStatus, err error) {
	var names []string
	if err := s.Pool.QueryRow(ctx, epochStatusSQL).Scan(&e.ID, &e.Since, &e.Ordinal, &e.Awaiting, &names, &e.Dangling,
		&e.Now); err != nil {
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
