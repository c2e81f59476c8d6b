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
	selectReferencedSQL = `SELECT d.id, d.service, d.region FROM dbcontroller.deployment d WHERE ` +
		gate.ReferencedSQL + ` ORDER BY d.id`
)

// NoteTargets sets pointed_to of the targets' deployments, before references are established there. It also
// loads their ids: the following transaction must not need a second connection.
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
func (a *Attempts) Look(ctx context.Context, model *schema.Model) (runs bool, referenced []schema.DeploymentID,
	err error,
) {
	b := &pgx.Batch{}
	b.Queue(gate.SelectRunningSQL).Query(func(rows pgx.Rows) error {
		stored, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[gate.Running])
		runs = err == nil && model.Says(stored.Version, stored.Digest)
		return err
	})
	b.Queue(selectReferencedSQL).Query(func(rows pgx.Rows) (err error) {
		referenced, err = a.referenced(rows)
		return err
	})
	if err := a.Pool.SendBatch(ctx, b).Close(); err != nil {
		return false, nil, fmt.Errorf("read the version, and the referenced deployments: %w", err)
	}
	return runs, referenced, nil
}

// ReferencedDeployments returns the deployments to which this one has ever established references, without
// the decommissioned. The running version need not import them: a holder entry of this deployment stays there
// as long as its target exists.
func (a *Attempts) ReferencedDeployments(ctx context.Context) ([]schema.DeploymentID, error) {
	rows, err := a.Pool.Query(ctx, selectReferencedSQL)
	if err != nil {
		return nil, fmt.Errorf("read the referenced deployments: %w", err)
	}
	deployments, err := a.referenced(rows)
	if err != nil {
		return nil, fmt.Errorf("read the referenced deployments: %w", err)
	}
	return deployments, nil
}

// referenced returns the deployments of selectReferencedSQL, from which looks differ from now on.
func (a *Attempts) referenced(rows pgx.Rows) (deployments []schema.DeploymentID, err error) {
	var ids []int32
	var id int32
	var d schema.DeploymentID
	_, err = pgx.ForEachRow(rows, []any{&id, &d.Service, &d.Region}, func() error {
		ids, deployments = append(ids, id), append(deployments, d)
		return nil
	})
	if err == nil {
		a.gate.ReferencedRead(ids)
	}
	return deployments, err
}
