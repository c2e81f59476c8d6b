package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/read"
)

// Stuck is a resource in DELETING that waits.
type Stuck struct {
	Kind, Name string
	UID        uuid.UUID
	Since      time.Time
	Conditions []read.Condition
}

var stuckSQL = db.Codes(`
SELECT kind_id, name, uid, updated_at FROM dbcontroller.shadow WHERE state = {deleting} AND updated_at < now() - $1::interval ORDER BY updated_at, id LIMIT $2`)

// Stuck returns the resources that have been in DELETING for longer than a time, the oldest first, with the reasons.
func (s *Inspector) Stuck(ctx context.Context, longer time.Duration, limit int) ([]Stuck, error) {
	rows, err := s.Pool.Query(ctx, stuckSQL, longer, limit)
	if err != nil {
		return nil, fmt.Errorf("read the stuck resources and work: %w", err)
	}
	var kinds []int32
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x Stuck, err error) {
		var kind int32
		err = row.Scan(&kind, &x.Name, &x.UID, &x.Since)
		kinds = append(kinds, kind)
		return x, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the stuck resources and work: %w", err)
	}
	for i := range found {
		kind, err := s.Names.KindOf(ctx, s.Pool, kinds[i])
		if err != nil {
			return nil, err
		}
		found[i].Kind = s.KindNow(kind.Kind)
		if found[i].Conditions, err = s.read.Conditions(ctx, found[i].Name); err != nil {
			return nil, err
		}
	}
	return found, nil
}
