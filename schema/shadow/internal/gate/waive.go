package gate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

const comparisonWaived = "COMPARISON_WAIVED"

// WaiveComparison is an operator's decision that deletions here no longer wait for a deployment that has to compare its references
// after a failover, here or there. Targets of its references that this database has lost may then be deleted; if it compares after
// all, such references are marked dangling. It is idempotent, and without effect for a deployment that is not waited for. The
// decision is recorded with its reason and its author (by).
func (s *Gate) WaiveComparison(ctx context.Context, of schema.DeploymentID, reason, by string) error {
	id, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return err
	}
	err = s.recordDecision(ctx, id, comparisonWaived, reason, by, func(tx pgx.Tx) (bool, error) {
		tag, err := tx.Exec(ctx, ForgetUnconfirmedSQL, id)
		return tag.RowsAffected() > 0, err
	})
	if err != nil {
		return fmt.Errorf("waive the comparison of %s: %w", of, err)
	}
	s.Log.Warn("waived the comparison of references: deletions do not wait for this deployment", zap.Stringer("of", of), zap.String("by", by), zap.String("reason", reason))
	return nil
}
