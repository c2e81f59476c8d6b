package shadow

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/schema"
)

const comparisonWaived = "COMPARISON_WAIVED"

// WaiveComparison takes an operator's word that deletions here do not wait any more for a deployment that has to compare its
// references after a failover, here or there. What it refers to and is not known here may be deleted; when it compares after
// all, such references are marked as dangling. Said again, or of one that is not waited for, it changes nothing.
func (s *Store) WaiveComparison(ctx context.Context, of schema.DeploymentID, reason, by string) error {
	id, err := s.names.deployment(ctx, of)
	if err != nil {
		return err
	}
	err = s.said(ctx, id, comparisonWaived, reason, by, func(tx pgx.Tx) (bool, error) {
		tag, err := tx.Exec(ctx, forgetUnconfirmedSQL, id)
		return tag.RowsAffected() > 0, err
	})
	if err != nil {
		return fmt.Errorf("waive the comparison of %s: %w", of, err)
	}
	s.log.Warn("a comparison is not waited for any more", zap.Stringer("of", of), zap.String("by", by), zap.String("reason", reason))
	return nil
}
