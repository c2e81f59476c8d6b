package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/db-controller/db-controller/internal/requestid"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/gate"
)

const selectOperatorDecisionsSQL = `
SELECT d.service, d.region, w.what, w.reason, w.said_by, w.said_at
FROM dbcontroller.word w JOIN dbcontroller.deployment d ON d.id = w.deployment_id ORDER BY w.seq DESC LIMIT 100`

// OperatorDecision is a stored decision of an operator about another deployment.
type OperatorDecision struct {
	Deployment       schema.DeploymentID
	What, Reason, By string
	At               time.Time
}

// OperatorDecisions returns the last 100 decisions, newest first.
func (s *Operations) OperatorDecisions(ctx context.Context) ([]OperatorDecision, error) {
	rows, err := s.Pool.Query(ctx, selectOperatorDecisionsSQL)
	if err != nil {
		return nil, fmt.Errorf("read the operators' decisions: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w OperatorDecision, err error) {
		err = row.Scan(&w.Deployment.Service, &w.Deployment.Region, &w.What, &w.Reason, &w.By, &w.At)
		return w, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the operators' decisions: %w", err)
	}
	return out, nil
}

const comparisonWaived = "COMPARISON_WAIVED"

// WaiveComparison is an operator's decision that deletions here do not wait any more for a deployment that
// has to compare its references after a failover, here or there. Targets of its references that this database
// has lost may then be deleted; if it compares after all, such references are marked dangling. It is
// idempotent, and without effect for a deployment that is not waited for. The decision is recorded with its
// reason and its author (by).
func (s *Operations) WaiveComparison(ctx context.Context, of schema.DeploymentID, reason, by string) error {
	id, err := s.Names.Deployment(ctx, of)
	if err != nil {
		return err
	}
	err = s.gate.RecordDecision(ctx, id, comparisonWaived, reason, by, func(tx pgx.Tx) (bool, error) {
		tag, err := tx.Exec(ctx, gate.ForgetUnconfirmedSQL, id)
		return tag.RowsAffected() > 0, err
	})
	if err != nil {
		return fmt.Errorf("waive the comparison of %s: %w", of, err)
	}
	s.Log.Warn("waived the comparison of references: deletions do not wait for this deployment",
		zap.Stringer("for", of), zap.String("by", by), zap.String("reason", reason), requestid.Field(ctx))
	return nil
}
