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

// pointTo notes, before anything is established there, that deployments are pointed to. It also makes sure that their
// numbers are known: the transaction to come must not ask for a second connection.
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

// noteInterest notes that a deployment's deletions concern this one.
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
		return fmt.Errorf("note who is pointed to: %w", err)
	}
	for _, id := range ids {
		s.notedTargets.Store(id, true)
	}
	return nil
}

// ReferencedDeployments names the deployments that references were ever established at, whether or not the version that runs
// imports them: a holder entry of this deployment stays there as long as its target lives.
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

// KeepEnvironment keeps the registry's last word, in whatever form the caller gives it.
func (s *Store) KeepEnvironment(ctx context.Context, environment []byte) error {
	const sql = `UPDATE dbcontroller.meta SET environment = $1 WHERE environment IS DISTINCT FROM $1`
	if _, err := s.pool.Exec(ctx, sql, environment); err != nil {
		return fmt.Errorf("keep the environment: %w", err)
	}
	return nil
}

// KeptEnvironment gives it back; nil when none was kept.
func (s *Store) KeptEnvironment(ctx context.Context) (environment []byte, err error) {
	if err := s.pool.QueryRow(ctx, `SELECT environment FROM dbcontroller.meta`).Scan(&environment); err != nil {
		return nil, fmt.Errorf("read the kept environment: %w", err)
	}
	return environment, nil
}
