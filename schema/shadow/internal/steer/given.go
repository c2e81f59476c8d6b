package steer

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

var selectToEndSQL = db.Codes(`SELECT seq, target_uid FROM dbcontroller.work WHERE seq = ANY ($1) AND action = {end_rights}`)

// RightsToEnd returns the resources of this deployment whose rights another one has to end, by piece of work.
func (s *Steering) RightsToEnd(ctx context.Context, seqs []int64) (map[int64]uuid.UUID, error) {
	rows, err := s.Pool.Query(ctx, selectToEndSQL, seqs)
	if err != nil {
		return nil, fmt.Errorf("read the rights to end: %w", err)
	}
	uids := map[int64]uuid.UUID{}
	var seq int64
	var uid uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&seq, &uid}, func() error { uids[seq] = uid; return nil })
	return uids, err
}

// RightsEnded removes the pieces of work for rights that have ended. The answer may be of a database that was lost since: its rights do not count
// in the next epoch.
func (s *Steering) RightsEnded(ctx context.Context, seqs []int64) error { return s.Finish(ctx, seqs) }
