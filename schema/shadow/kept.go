package shadow

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// A version can lack kinds, and patterns of names, that stored resources have by a version before it. They are kept: read,
// listed, planned and deleted by their names, and held to what they refer to. Nobody writes them, and nothing new refers to
// them, until a version has a place for them again.

const (
	// What the patterns of kinds were ever, and are not any more. After deriveWorkSQL, which adds kinds.
	noteShapesSQL = `
WITH i AS (
    SELECT kind_id, array_agg(shape ORDER BY shape) AS shapes FROM unnest($1::int[], $2::text[]) AS i (kind_id, shape) GROUP BY kind_id
), n AS (
    SELECT d.kind_id, COALESCE(i.shapes, '{}') AS shapes FROM dbcontroller.derivation d LEFT JOIN i USING (kind_id)
)
UPDATE dbcontroller.derivation d
SET shapes = n.shapes, dropped = ARRAY(SELECT DISTINCT s FROM unnest(d.dropped || d.shapes) AS s WHERE NOT s = ANY (n.shapes) ORDER BY s)
FROM n WHERE n.kind_id = d.kind_id AND (n.shapes <> d.shapes OR d.dropped && n.shapes)`

	// The kind that the version has for the name counts before others.
	selectKindOfSQL = `
SELECT s.kind_id FROM dbcontroller.kind k JOIN dbcontroller.shadow s ON s.kind_id = k.id AND s.name = $2
WHERE k.service = $1 ORDER BY s.kind_id <> $3 LIMIT 1`

	// What is stored, or else the kind that had names of that shape: one that was deleted is not found.
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

// Kept are resources of a kind whose names fit no pattern of the version that runs, or of which it lacks the kind.
type Kept struct {
	Kind      string
	Resources int64
	Sample    string // the first name
}

// Kept tells which stored resources the version that runs has no place for.
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

// kindOfName gives the kind that a name is of by the version that runs, or else the one under which it is kept.
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

// keptUnder gives the kind under which a resource is kept, or would be, whose name fits no pattern; without one it fails with
// unfit.
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

// unfit is the refusal of a write by a name that fits no pattern.
func (s *Store) unfit(ctx context.Context, q querier, name string, unfit error) error {
	if _, err := s.keptUnder(ctx, q, name, unfit); err != nil {
		return err
	}
	return &InvalidError{Err: fmt.Errorf("%w; what an earlier version stored under such names is kept: it can be read and deleted, "+
		"and be written by a version that has a pattern for it", unfit)}
}

// kindsToRead are the kinds of the version, by their numbers, and those of earlier versions of which something may be kept.
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

// kindToRead finds a kind by the name that any version has for it. It fails with *InvalidError.
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
