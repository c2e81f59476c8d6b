package shadow

import (
	"context"
	"fmt"
)

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
