package read

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// A version can lack kinds or patterns of stored resources that an earlier version had. These resources are
// kept: they can be read, listed, planned and deleted by their names, and their references stay in force.
// They cannot be written or referred to anew until a version has their kind and pattern again.

const (
	// dropped: the shapes of names that earlier versions had and this one lacks. After deriveWorkSQL, which
	// adds kinds.
	NoteShapesSQL = `
WITH i AS (
    SELECT kind_id, array_agg(shape ORDER BY shape) AS shapes FROM unnest($1::int[], $2::text[]) AS i (kind_id, shape) GROUP BY kind_id
), n AS (
    SELECT d.kind_id, COALESCE(i.shapes, '{}') AS shapes FROM dbcontroller.derivation d LEFT JOIN i USING (kind_id)
)
UPDATE dbcontroller.derivation d
SET shapes = n.shapes, dropped = ARRAY(SELECT DISTINCT s FROM unnest(d.dropped || d.shapes) AS s WHERE NOT s = ANY (n.shapes) ORDER BY s)
FROM n WHERE n.kind_id = d.kind_id AND (n.shapes <> d.shapes OR d.dropped && n.shapes)`

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
func (s *Reader) Kept(ctx context.Context) ([]Kept, error) {
	rows, err := s.Pool.Query(ctx, selectKeptSQL)
	if err != nil {
		return nil, fmt.Errorf("read the kept resources: %w", err)
	}
	kept, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Kept])
	if err != nil {
		return nil, fmt.Errorf("read the kept resources: %w", err)
	}
	for i := range kept {
		kept[i].Kind = s.KindNow(kept[i].Kind)
	}
	return kept, nil
}

// Unfit returns the refusal of a write to a name that fits no pattern.
func Unfit(ctx context.Context, d *db.DB, q db.Querier, name string, unfit error) error {
	if _, err := d.KeptUnder(ctx, q, name, unfit); err != nil {
		return err
	}
	return &peer.InvalidError{Err: fmt.Errorf(
		"%w; resources that an earlier version stored under such names are kept: each can be read and deleted, "+
			"and be written by a version that has a pattern for it", unfit)}
}

// kindsToRead returns the ids and names of the version's kinds, and of the kinds with resources that may be
// kept.
func (s *Reader) kindsToRead(ctx context.Context, v *db.Version) (ids []int32, names []string, err error) {
	for _, name := range v.Model.KindNames() {
		id, err := s.Names.Kind(ctx, schema.KindID{Service: s.Self.Service, Kind: name})
		if err != nil {
			return nil, nil, err
		}
		ids, names = append(ids, id), append(names, name)
	}
	if !v.Keeps {
		return ids, names, nil
	}
	rows, err := s.Pool.Query(ctx, selectServiceKindsSQL, s.Self.Service, ids)
	if err != nil {
		return nil, nil, fmt.Errorf("read kinds: %w", err)
	}
	kept, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return nil, nil, fmt.Errorf("read kinds: %w", err)
	}
	for _, id := range kept {
		kind, err := s.Names.KindOf(ctx, s.Pool, id)
		if err != nil {
			return nil, nil, err
		}
		ids, names = append(ids, id), append(names, kind.Kind)
	}
	return ids, names, nil
}

// kindToRead returns the id and the present name of a kind, by its name in any version. It fails with
// *InvalidError, or with ErrAborted when another version than v runs and may have the kind.
func (s *Reader) kindToRead(ctx context.Context, v *db.Version, name string) (int32, string, error) {
	current := s.KindNow(name)
	ids, names, err := s.kindsToRead(ctx, v)
	if err != nil {
		return 0, "", err
	}
	if i := slices.Index(names, current); i >= 0 {
		return ids[i], current, nil
	}
	if err := s.gate.CheckRuns(ctx, s.Pool, v); err != nil {
		return 0, "", err
	}
	_, err = v.Model.Kind(current)
	return 0, "", &peer.InvalidError{Resource: "kind", Err: err}
}
