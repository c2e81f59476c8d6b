package admin

import (
	"context"
	"fmt"
)

// KeepEnvironment stores the last environment of the registry; the encoding is the caller's.
func (s *Admin) KeepEnvironment(ctx context.Context, environment []byte) error {
	const sql = `UPDATE dbcontroller.meta SET environment = $1 WHERE environment IS DISTINCT FROM $1`
	if _, err := s.Pool.Exec(ctx, sql, environment); err != nil {
		return fmt.Errorf("store the environment: %w", err)
	}
	return nil
}

// KeptEnvironment returns the stored environment; nil when there is none.
func (s *Admin) KeptEnvironment(ctx context.Context) (environment []byte, err error) {
	if err := s.Pool.QueryRow(ctx, `SELECT environment FROM dbcontroller.meta`).Scan(&environment); err != nil {
		return nil, fmt.Errorf("read the stored environment: %w", err)
	}
	return environment, nil
}
