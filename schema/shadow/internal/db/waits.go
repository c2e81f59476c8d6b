package db

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

var waitsForSQL = Codes(`
SELECT d.service, d.region FROM dbcontroller.deployment d WHERE d.id IN (
    SELECT deployment_id FROM dbcontroller.notice WHERE target_id = @id
    UNION ALL SELECT deployment_id FROM dbcontroller.blockade WHERE target_id = @id AND expires_at IS NOT NULL
    UNION ALL SELECT deployment_id FROM dbcontroller.owner_reference WHERE ownee_id = @id AND NOT checked
    UNION ALL SELECT e.deployment_id FROM dbcontroller.ownee_entry e JOIN dbcontroller.shadow s ON s.id = e.owner_id
    WHERE e.owner_id = @id AND s.state = {deleting}
    UNION ALL SELECT deployment_id FROM dbcontroller.work w
    WHERE w.action IN ({finalise}, {check_owners}, {drop_owners}, {derive}) AND w.target_id = @id
        OR w.action IN ({release}, {let_go}) AND w.holder_uid = @uid
        OR w.action = {confirm} AND w.attempt IN (SELECT attempt FROM dbcontroller.reference WHERE holder_id = @id)
) ORDER BY d.service, d.region`)

// WaitsFor returns the deployments that a resource waits for, this one among them if its own work is
// outstanding.
func WaitsFor(ctx context.Context, q Querier, id int64, uid uuid.UUID) ([]schema.DeploymentID, error) {
	rows, err := q.Query(ctx, waitsForSQL, Named{"id": id, "uid": uid})
	if err != nil {
		return nil, fmt.Errorf("read the deployments that %s waits for: %w", uid, err)
	}
	waitsFor, err := pgx.CollectRows(rows, pgx.RowToStructByPos[schema.DeploymentID])
	if err != nil {
		return nil, fmt.Errorf("read the deployments that %s waits for: %w", uid, err)
	}
	return waitsFor, nil
}
