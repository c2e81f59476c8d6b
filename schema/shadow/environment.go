package shadow

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

const selectPointedToSQL = `
SELECT d.service, d.region FROM dbcontroller.deployment d
WHERE EXISTS (SELECT FROM dbcontroller.foreign_target f WHERE f.deployment_id = d.id)`

// PointedTo names the deployments that stored references point to, whether or not the version that runs imports them.
func (s *Store) PointedTo(ctx context.Context) ([]schema.DeploymentID, error) {
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
