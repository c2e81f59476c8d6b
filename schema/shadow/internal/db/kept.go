package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
)

const (

	// The version's own kind for the name comes first.
	selectKindOfSQL = `
SELECT s.kind_id FROM dbcontroller.kind k JOIN dbcontroller.shadow s ON s.kind_id = k.id AND s.name = $2
WHERE k.service = $1 ORDER BY s.kind_id <> $3 LIMIT 1`

	// The kind of the stored resource, or else the kind that had names of that shape, so that a deleted one is not found.
	selectKeptUnderSQL = `
(SELECT s.kind_id FROM dbcontroller.kind k JOIN dbcontroller.shadow s ON s.kind_id = k.id AND s.name = $2 WHERE k.service = $1 LIMIT 1)
UNION ALL
(SELECT d.kind_id FROM dbcontroller.derivation d
WHERE $2 ~ ANY (SELECT '^' || replace(shape, '*', '[^/]+') || '$' FROM unnest(d.dropped) AS shape) LIMIT 1)`
)

// KindOfName returns the kind of a name by the running version, or else the kind under which it is kept.
func (s *DB) KindOfName(ctx context.Context, name string) (int32, error) {
	v, err := s.Current()
	if err != nil {
		return 0, err
	}
	kind, unfit := v.Model.KindOf(name)
	if unfit != nil {
		return s.KeptUnder(ctx, s.Pool, name, unfit)
	}
	id, err := s.Names.Kind(ctx, kind.ID)
	if err != nil || !v.Keeps {
		return id, err
	}
	err = s.Pool.QueryRow(ctx, selectKindOfSQL, s.Self.Service, name, id).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return id, err
}

// KeptUnder returns the kind under which a resource whose name fits no pattern is kept, or would be. Without such a kind
// it fails with unfit.
func (s *DB) KeptUnder(ctx context.Context, q Querier, name string, unfit error) (int32, error) {
	if schema.CheckName(name) != nil {
		return 0, &peer.InvalidError{Err: unfit}
	}
	rows, err := q.Query(ctx, selectKeptUnderSQL, s.Self.Service, name)
	if err != nil {
		return 0, fmt.Errorf("look %s up: %w", name, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return 0, fmt.Errorf("look %s up: %w", name, err)
	}
	if len(ids) == 0 {
		return 0, &peer.InvalidError{Err: unfit}
	}
	return ids[0], nil
}
