package db

import (
	"context"

	"github.com/db-controller/db-controller/schema"
)

func (s *DB) DeploymentsOf(ctx context.Context, q Querier, ids []int32) ([]schema.DeploymentID, error) {
	var out []schema.DeploymentID
	for _, id := range ids {
		d, err := s.Names.DeploymentOf(ctx, q, id)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}
