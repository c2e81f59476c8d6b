package follow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

const (
	selectPositionSQL = `SELECT token FROM dbcontroller.position WHERE deployment_id = $1`

	keepPositionsSQL = `
WITH i AS (
    SELECT * FROM unnest(@deployments::int[], @was::text[], @tokens::text[]) AS i (id, was, token)
), moved AS (
    UPDATE dbcontroller.position p SET token = i.token FROM i WHERE p.deployment_id = i.id AND p.token = i.was RETURNING p.deployment_id
), added AS (
    INSERT INTO dbcontroller.position (deployment_id, token) SELECT id, token FROM i WHERE was = '' ON CONFLICT (deployment_id) DO NOTHING RETURNING deployment_id
)
SELECT deployment_id FROM moved UNION ALL SELECT deployment_id FROM added`
)

// checkedPosition is the last time at which a deployment had a stored position, and the epoch of this
// database then.
type checkedPosition struct {
	at    time.Time
	epoch uuid.UUID
}

// HasPosition reports whether a position of another deployment is stored. It reads the database once a second
// at most.
func (s *Follower) HasPosition(ctx context.Context, of schema.DeploymentID) (bool, error) {
	epoch := s.gate.PresentEpoch()
	if c, ok := s.positioned.Load(of); ok && c.(checkedPosition).epoch == epoch &&
		time.Since(c.(checkedPosition).at) < time.Second {
		return true, nil
	}
	at := time.Now()
	token, err := s.Position(ctx, of)
	if err != nil || token == "" {
		return false, err
	}
	s.positioned.Store(of, checkedPosition{at, epoch})
	return true, nil
}

// Position returns the stored token of the watch of deletions of another deployment; empty when none is
// stored.
func (s *Follower) Position(ctx context.Context, of schema.DeploymentID) (token string, err error) {
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

// KeepPositions stores tokens of watches of deletions, with one statement. It reports false for a token in
// whose place another token than Was is stored.
func (s *Follower) KeepPositions(ctx context.Context, positions []peer.Position) (kept []bool, err error) {
	ids, was, tokens := make([]int32, len(positions)), make([]string, len(positions)), make([]string, len(positions))
	for i, p := range positions {
		if ids[i], err = s.Names.Deployment(ctx, p.Of); err != nil {
			return nil, err
		}
		was[i], tokens[i] = p.Was, p.Token
	}
	rows, err := s.Pool.Query(ctx, keepPositionsSQL, pgx.StrictNamedArgs{
		"deployments": ids, "was": was,
		"tokens": tokens,
	})
	if err != nil {
		return nil, fmt.Errorf("keep positions: %w", err)
	}
	stored, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return nil, fmt.Errorf("keep positions: %w", err)
	}
	kept = make([]bool, len(positions))
	for i, id := range ids {
		kept[i] = slices.Contains(stored, id)
	}
	return kept, nil
}
