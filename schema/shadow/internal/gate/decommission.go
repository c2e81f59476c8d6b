package gate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// Decommissioned is an operator's decision that a deployment never comes back. Only an operator
// decommissions: an unreachable deployment, or a deployment that the registry does not list, is not
// decommissioned.
type Decommissioned struct {
	Deployment schema.DeploymentID
	// Blocking is the behaviour of BLOCK references to its resources: schema.Unset or schema.CascadeDelete.
	// References with another behaviour act as on the deletion of their target.
	Blocking schema.Behaviour
	// Reason has 1 to 1000 bytes.
	Reason string
	// By is the operator's identity; At the time of the decision, by this database's clock. Both are set by
	// Decommissioned.
	By string
	At time.Time
	// Working reports that CleanUpDecommissioned has not finished.
	Working bool
}

const (
	// Recovery does not wait for a decommissioned deployment.
	ForgetUnconfirmedSQL = `UPDATE dbcontroller.deployment SET unconfirmed = false, uncompared = false WHERE id = $1 AND (unconfirmed OR uncompared)`
	IsDecommissionedSQL  = `SELECT EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = $1)`
)

var selectDecommissionedSQL = db.Codes(`
SELECT d.service, d.region, x.blocking, x.reason, x.said_by, x.said_at,
    EXISTS (SELECT FROM dbcontroller.work w WHERE w.action = {clean_up_decommissioned} AND w.deployment_id = x.deployment_id)
FROM dbcontroller.decommissioned x JOIN dbcontroller.deployment d ON d.id = x.deployment_id
ORDER BY d.service, d.region`)

// Decommissioned lists the decommissioned deployments, by service and region.
func (s *Gate) Decommissioned(ctx context.Context) ([]Decommissioned, error) {
	rows, err := s.Pool.Query(ctx, selectDecommissionedSQL)
	if err != nil {
		return nil, fmt.Errorf("read the decommissioned deployments: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Decommissioned, err error) {
		err = row.Scan(&d.Deployment.Service, &d.Deployment.Region, &d.Blocking, &d.Reason, &d.By, &d.At, &d.Working)
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the decommissioned deployments: %w", err)
	}
	return out, nil
}

// IsDecommissioned reports whether this process knows a deployment to be decommissioned. Another process may
// know it a little earlier, so transactions that must not accept such a deployment check the table
// themselves.
func (s *Gate) IsDecommissioned(id schema.DeploymentID) bool {
	decommissioned := s.decommissioned.Load()
	return decommissioned != nil && slices.Contains(*decommissioned, id)
}

// LoadDecommissioned reads the decommissioned deployments.
func (s *Gate) LoadDecommissioned(ctx context.Context) error {
	all, err := s.Decommissioned(ctx)
	if err != nil {
		return err
	}
	decommissioned := make([]schema.DeploymentID, len(all))
	for i, d := range all {
		decommissioned[i] = d.Deployment
	}
	s.decommissioned.Store(&decommissioned)
	return nil
}
