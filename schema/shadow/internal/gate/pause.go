package gate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

const (
	pauseSQL  = `UPDATE dbcontroller.deployment SET paused = $2 WHERE id = $1 AND paused <> $2`
	pausedSQL = `SELECT service, region FROM dbcontroller.deployment WHERE paused ORDER BY service, region`

	deletionsPaused  = "DELETIONS_PAUSED"
	deletionsResumed = "DELETIONS_RESUMED"
)

// Pause is an operator's decision that nothing is marked or removed here (of this deployment), or that nothing is done here for the
// deletions of another deployment; or that this goes on. Transactions that have checked the pause before end. It is idempotent; the
// decision is recorded with its reason and its author (by).
func (s *Gate) Pause(ctx context.Context, of schema.DeploymentID, paused bool, reason, by string) error {
	id, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return err
	}
	what := deletionsResumed
	if paused {
		what = deletionsPaused
	}
	err = s.RecordDecision(ctx, id, what, reason, by, func(tx pgx.Tx) (bool, error) {
		tag, err := tx.Exec(ctx, pauseSQL, id, paused)
		return tag.RowsAffected() > 0, err
	})
	if err != nil {
		return fmt.Errorf("pause deletions of %s: %w", of, err)
	}
	s.Log.Warn("an operator has decided about deletions", zap.String("what", what), zap.Stringer("of", of), zap.String("by", by), zap.String("reason", reason), requestid.Field(ctx))
	return nil
}

// Paused lists the deployments whose deletions are paused here; this deployment among them if nothing is deleted.
func (s *Gate) Paused(ctx context.Context) ([]schema.DeploymentID, error) {
	rows, err := s.Pool.Query(ctx, pausedSQL)
	if err != nil {
		return nil, fmt.Errorf("read the pauses: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[schema.DeploymentID])
}

// CheckNotPaused fails with *UnavailableError while the deletions of another deployment are paused here.
func (s *Gate) CheckNotPaused(ctx context.Context, from schema.DeploymentID) error {
	var paused bool
	err := s.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM dbcontroller.deployment WHERE service = $1 AND region = $2 AND paused)`, from.Service, from.Region).Scan(&paused)
	if err == nil && paused {
		err = &peer.UnavailableError{Deployments: []schema.DeploymentID{from}, Err: peer.ErrPaused}
	}
	return err
}
