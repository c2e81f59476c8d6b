package attempt

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

const (
	selectPointedToSQL = `
SELECT service, region FROM dbcontroller.deployment d
WHERE pointed_to AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = d.id)`
)

// NoteTargets sets pointed_to of the targets' deployments, before references are established there. It also loads their
// ids: the following transaction must not need a second connection.
func NoteTargets(ctx context.Context, a *Attempts, sv *prepare.Saving) error {
	var ids []int32
	for d := range sv.Foreign {
		id, err := a.Names.Deployment(ctx, d)
		if err != nil {
			return err
		}
		if _, known := a.gate.NotedTargets.Load(id); !known {
			ids = append(ids, id)
		}
	}
	return a.gate.NoteReferenced(ctx, ids)
}

// Look reads the facts that other processes and restores change, with one round trip: whether the database
// has the version of the model, and the deployments of ReferencedDeployments.
func (a *Attempts) Look(ctx context.Context, model *schema.Model) (runs bool, referenced []schema.DeploymentID, err error) {
	b := &pgx.Batch{}
	b.Queue(gate.SelectRunningSQL).Query(func(rows pgx.Rows) error {
		stored, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[gate.Running])
		runs = err == nil && model.Says(stored.Version, stored.Digest)
		return err
	})
	b.Queue(selectPointedToSQL).Query(func(rows pgx.Rows) (err error) {
		referenced, err = pgx.CollectRows(rows, pgx.RowToStructByPos[schema.DeploymentID])
		return err
	})
	if err := a.Pool.SendBatch(ctx, b).Close(); err != nil {
		return false, nil, fmt.Errorf("read the version, and the referenced deployments: %w", err)
	}
	return runs, referenced, nil
}

// ReferencedDeployments returns the deployments to which this one has ever established references, without the
// decommissioned. The running version need not import them: a holder entry of this deployment stays there as long as its
// target exists.
func (a *Attempts) ReferencedDeployments(ctx context.Context) ([]schema.DeploymentID, error) {
	rows, err := a.Pool.Query(ctx, selectPointedToSQL)
	if err != nil {
		return nil, fmt.Errorf("read the referenced deployments: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowToStructByPos[schema.DeploymentID])
	if err != nil {
		return nil, fmt.Errorf("read the referenced deployments: %w", err)
	}
	return ids, nil
}
