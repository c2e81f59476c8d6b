package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// A version can lack kinds or patterns of stored resources that an earlier version had. These resources are kept: they
// can be read, listed, planned and deleted by their names, and their references stay in force. They cannot be written or
// referred to anew until a version has their kind and pattern again.

const (
	// dropped: the shapes of names that earlier versions had and this one lacks. After deriveWorkSQL, which adds kinds.
	noteShapesSQL = `
WITH i AS (
    SELECT kind_id, array_agg(shape ORDER BY shape) AS shapes FROM unnest($1::int[], $2::text[]) AS i (kind_id, shape) GROUP BY kind_id
), n AS (
    SELECT d.kind_id, COALESCE(i.shapes, '{}') AS shapes FROM dbcontroller.derivation d LEFT JOIN i USING (kind_id)
)
UPDATE dbcontroller.derivation d
SET shapes = n.shapes, dropped = ARRAY(SELECT DISTINCT s FROM unnest(d.dropped || d.shapes) AS s WHERE NOT s = ANY (n.shapes) ORDER BY s)
FROM n WHERE n.kind_id = d.kind_id AND (n.shapes <> d.shapes OR d.dropped && n.shapes)`

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

	selectServiceKindsSQL = `SELECT id FROM dbcontroller.kind WHERE service = $1 AND NOT id = ANY ($2) ORDER BY kind`

	selectKeptSQL = `
SELECT k.kind, count(*), min(s.name)
FROM dbcontroller.derivation d JOIN dbcontroller.kind k ON k.id = d.kind_id
JOIN dbcontroller.shadow s ON s.kind_id = d.kind_id
    AND s.name ~ ANY (SELECT '^' || replace(shape, '*', '[^/]+') || '$' FROM unnest(d.dropped) AS shape)
WHERE d.dropped <> '{}' GROUP BY k.kind ORDER BY k.kind`
)

// Kept counts the kept resources of a kind: the running version lacks the kind, or a pattern for their names.
type Kept struct {
	Kind      string
	Resources int64
	Sample    string // the first name
}

// Kept returns the kept resources by kind.
func (s *Store) Kept(ctx context.Context) ([]Kept, error) {
	rows, err := s.pool.Query(ctx, selectKeptSQL)
	if err != nil {
		return nil, fmt.Errorf("read what is kept: %w", err)
	}
	kept, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Kept])
	if err != nil {
		return nil, fmt.Errorf("read what is kept: %w", err)
	}
	for i := range kept {
		kept[i].Kind = s.kindNow(kept[i].Kind)
	}
	return kept, nil
}

// kindOfName returns the kind of a name by the running version, or else the kind under which it is kept.
func (s *Store) kindOfName(ctx context.Context, name string) (int32, error) {
	v, err := s.current()
	if err != nil {
		return 0, err
	}
	kind, unfit := v.model.KindOf(name)
	if unfit != nil {
		return s.keptUnder(ctx, s.pool, name, unfit)
	}
	id, err := s.names.kind(ctx, kind.ID)
	if err != nil || !v.keeps {
		return id, err
	}
	err = s.pool.QueryRow(ctx, selectKindOfSQL, s.self.Service, name, id).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return id, err
}

// keptUnder returns the kind under which a resource whose name fits no pattern is kept, or would be. Without such a kind
// it fails with unfit.
func (s *Store) keptUnder(ctx context.Context, q querier, name string, unfit error) (int32, error) {
	if schema.CheckName(name) != nil {
		return 0, &InvalidError{Err: unfit}
	}
	rows, err := q.Query(ctx, selectKeptUnderSQL, s.self.Service, name)
	if err != nil {
		return 0, fmt.Errorf("look %s up: %w", name, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return 0, fmt.Errorf("look %s up: %w", name, err)
	}
	if len(ids) == 0 {
		return 0, &InvalidError{Err: unfit}
	}
	return ids[0], nil
}

// unfit returns the refusal of a write to a name that fits no pattern.
func (s *Store) unfit(ctx context.Context, q querier, name string, unfit error) error {
	if _, err := s.keptUnder(ctx, q, name, unfit); err != nil {
		return err
	}
	return &InvalidError{Err: fmt.Errorf("%w; what an earlier version stored under such names is kept: it can be read and deleted, "+
		"and be written by a version that has a pattern for it", unfit)}
}

// kindsToRead returns the ids and names of the version's kinds, and of the kinds with resources that may be kept.
func (s *Store) kindsToRead(ctx context.Context, v *version) (ids []int32, names []string, err error) {
	for _, name := range v.model.KindNames() {
		id, err := s.names.kind(ctx, schema.KindID{Service: s.self.Service, Kind: name})
		if err != nil {
			return nil, nil, err
		}
		ids, names = append(ids, id), append(names, name)
	}
	if !v.keeps {
		return ids, names, nil
	}
	rows, err := s.pool.Query(ctx, selectServiceKindsSQL, s.self.Service, ids)
	if err != nil {
		return nil, nil, fmt.Errorf("read kinds: %w", err)
	}
	kept, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return nil, nil, fmt.Errorf("read kinds: %w", err)
	}
	for _, id := range kept {
		kind, err := s.names.kindOf(ctx, s.pool, id)
		if err != nil {
			return nil, nil, err
		}
		ids, names = append(ids, id), append(names, kind.Kind)
	}
	return ids, names, nil
}

// kindToRead returns the id and the present name of a kind, by its name in any version. It fails with *InvalidError.
func (s *Store) kindToRead(ctx context.Context, v *version, name string) (int32, string, error) {
	now := s.kindNow(name)
	ids, names, err := s.kindsToRead(ctx, v)
	if err != nil {
		return 0, "", err
	}
	if i := slices.Index(names, now); i >= 0 {
		return ids[i], now, nil
	}
	_, err = v.model.Kind(now)
	return 0, "", &InvalidError{Resource: "kind", Err: err}
}
