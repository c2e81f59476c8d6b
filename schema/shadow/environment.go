package shadow

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

const (
	selectPointedToSQL = `
SELECT service, region FROM dbcontroller.deployment d
WHERE pointed_to AND NOT EXISTS (SELECT FROM dbcontroller.decommissioned WHERE deployment_id = d.id)`

	pointToSQL = `UPDATE dbcontroller.deployment SET pointed_to = true WHERE id = ANY ($1) AND NOT pointed_to`
)

// noteTargets sets pointed_to of the targets' deployments, before references are established there. It also loads their
// ids: the following transaction must not need a second connection.
func (s *Store) noteTargets(ctx context.Context, sv *saving) error {
	var ids []int32
	for d := range sv.foreign {
		id, err := s.names.deployment(ctx, d)
		if err != nil {
			return err
		}
		if _, known := s.notedTargets.Load(id); !known {
			ids = append(ids, id)
		}
	}
	return s.noteReferenced(ctx, ids)
}

// noteInterest sets pointed_to of a deployment, so that this one watches its deletions.
func (s *Store) noteInterest(ctx context.Context, id int32) error {
	if _, known := s.notedTargets.Load(id); known {
		return nil
	}
	return s.noteReferenced(ctx, []int32{id})
}

func (s *Store) noteReferenced(ctx context.Context, ids []int32) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := s.pool.Exec(ctx, pointToSQL, ids); err != nil {
		return fmt.Errorf("record referenced deployments: %w", err)
	}
	for _, id := range ids {
		s.notedTargets.Store(id, true)
	}
	return nil
}

// ReferencedDeployments returns the deployments to which this one has ever established references, without the
// decommissioned. The running version need not import them: a holder entry of this deployment stays there as long as its
// target exists.
func (s *Store) ReferencedDeployments(ctx context.Context) ([]schema.DeploymentID, error) {
	rows, err := s.pool.Query(ctx, selectPointedToSQL)
	if err != nil {
		return nil, fmt.Errorf("read who is pointed to: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowToStructByPos[schema.DeploymentID])
	if err != nil {
		return nil, fmt.Errorf("read who is pointed to: %w", err)
	}
	return ids, nil
}

// KeepEnvironment stores the last environment of the registry; the encoding is the caller's.
func (s *Store) KeepEnvironment(ctx context.Context, environment []byte) error {
	const sql = `UPDATE dbcontroller.meta SET environment = $1 WHERE environment IS DISTINCT FROM $1`
	if _, err := s.pool.Exec(ctx, sql, environment); err != nil {
		return fmt.Errorf("store the environment: %w", err)
	}
	return nil
}

// KeptEnvironment returns the stored environment; nil when there is none.
func (s *Store) KeptEnvironment(ctx context.Context) (environment []byte, err error) {
	if err := s.pool.QueryRow(ctx, `SELECT environment FROM dbcontroller.meta`).Scan(&environment); err != nil {
		return nil, fmt.Errorf("read the stored environment: %w", err)
	}
	return environment, nil
}
