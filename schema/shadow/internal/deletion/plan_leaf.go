package deletion

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// countLeaves answers the commonest question of a look-ahead in one statement: targets of other deployments with holders here that concern
// nobody else. It reports false when one does, or the question is another one: then nothing is counted.
func (p *planning) countLeaves(ctx context.Context) (counted bool, err error) {
	s, q := p.store, p.question
	if !q.CountLeaves || len(q.Targets) > db.FewRows {
		return false, nil
	}
	deployments, uids := make([]int32, len(q.Targets)), make([]uuid.UUID, len(q.Targets))
	for i, t := range q.Targets {
		if t.Deployment == s.Self {
			return false, nil
		}
		if deployments[i], err = s.Names.Deployment(ctx, t.Deployment); err != nil {
			return false, err
		}
		uids[i] = t.UID
	}
	var leaves int
	var concerned bool
	b := &pgx.Batch{}
	b.Queue(db.GenericPlansSQL)
	b.Queue(read.CountLeavesSQL, deployments, uids, q.Limit+1, s.SelfID).QueryRow(func(row pgx.Row) error { return row.Scan(&leaves, &concerned) })
	if err := s.Pool.SendBatch(ctx, b).Close(); err != nil || concerned {
		return false, err
	}
	p.plan = &peer.Plan{Leaves: min(leaves, q.Limit), Truncated: leaves > q.Limit}
	return true, nil
}
