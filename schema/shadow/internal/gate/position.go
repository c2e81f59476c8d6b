package gate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

const (
	selectPositionSQL = `SELECT token FROM dbcontroller.position WHERE deployment_id = $1`

	keepPositionSQL = `
INSERT INTO dbcontroller.position AS p (deployment_id, token) VALUES (@deployment, @token)
ON CONFLICT (deployment_id) DO UPDATE SET token = EXCLUDED.token WHERE p.token = @was`
)

// Position returns the stored token of the watch of deletions of another deployment; empty when none is stored.
func (s *Gate) Position(ctx context.Context, of schema.DeploymentID) (token string, err error) {
	id, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return "", err
	}
	err = s.Pool.QueryRow(ctx, selectPositionSQL, id).Scan(&token)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("read the kept position of %s: %w", of, err)
	}
	return token, nil
}

// KeepPosition stores a token of the watch of deletions of another deployment, unless another token than was is stored.
func (s *Gate) KeepPosition(ctx context.Context, of schema.DeploymentID, was, token string) (kept bool, err error) {
	id, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return false, err
	}
	tag, err := s.Pool.Exec(ctx, keepPositionSQL, pgx.StrictNamedArgs{"deployment": id, "was": was, "token": token})
	if err != nil {
		return false, fmt.Errorf("keep the position of %s: %w", of, err)
	}
	return tag.RowsAffected() > 0, nil
}
