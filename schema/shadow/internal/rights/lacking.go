package rights

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// askedOf returns the right that rows with a value of a reference need.
func askedOf(r rows.Reference, v rows.Value) Asked {
	return Asked{Target: v.Target.FullName, Kind: v.Target.Kind, Block: r.Declared().Blocks()}
}

// withoutRight returns the values whose right is not there.
func (s *Rights) withoutRight(ctx context.Context, r rows.Reference,
	values []rows.Value,
) (lacking []rows.Value, err error) {
	var asked []Asked
	var named []rows.Value
	for _, v := range values {
		if v.Named {
			asked, named = append(asked, askedOf(r, v)), append(named, v)
		} else {
			lacking = append(lacking, v)
		}
	}
	if len(asked) == 0 {
		return lacking, nil
	}
	held, err := s.held(ctx, asked)
	for i, v := range named {
		if err == nil && !held[i] {
			lacking = append(lacking, v)
		}
	}
	return lacking, err
}

// textsSQL writes a JSON array t as statements write it.
const textsSQL = `to_json(ARRAY(SELECT json_array_elements_text(t::json)))::text`

// OFFSET 0 makes each value look by the index: a join would compare it with all values of the reference.
const (
	insertLackingSQL = `
INSERT INTO dbcontroller.lacking (kind_id, path, texts, target, before)
SELECT $1, $2, i.texts, i.target, true FROM (SELECT ` + textsSQL + ` AS texts, n FROM unnest($3::text[], $4::text[]) AS i (t, n)) AS i (texts, target)
WHERE NOT EXISTS (SELECT FROM dbcontroller.lacking l WHERE l.kind_id = $1 AND l.path = $2 AND md5(l.texts) = md5(i.texts) AND l.due <= now() OFFSET 0)`

	askAgainSQL = `UPDATE dbcontroller.lacking SET due = '-infinity' WHERE split_part(target, '/', 3) = $1 AND split_part(target, '/', 4) = $2`

	selectNotedSQL = `
SELECT i.n - 1 FROM unnest($3::text[]) WITH ORDINALITY AS i (t, n)
WHERE EXISTS (SELECT FROM dbcontroller.lacking l WHERE l.kind_id = $1 AND l.path = $2 AND md5(l.texts) = md5(` + textsSQL + `) OFFSET 0)`
)

// Unknown returns the values that have no right, and are not noted as lacking.
func (s *Rights) Unknown(ctx context.Context, r rows.Reference, values []rows.Value) ([]rows.Value, error) {
	lacking, err := s.withoutRight(ctx, r, values)
	if err != nil || len(lacking) == 0 {
		return nil, err
	}
	texts := make([]string, len(lacking))
	for i, v := range lacking {
		texts[i] = v.Texts()
	}
	found, err := s.Pool.Query(ctx, selectNotedSQL, r.Table.KindID, r.Path(), texts)
	if err != nil {
		return nil, fmt.Errorf("read values without a right: %w", err)
	}
	noted, err := pgx.CollectRows(found, pgx.RowTo[int])
	var unknown []rows.Value
	for i, v := range lacking {
		if !slices.Contains(noted, i) {
			unknown = append(unknown, v)
		}
	}
	return unknown, err
}

// Lack notes values of a reference that a walk has found without a right: they are asked for until the right
// is there, or no row has them.
func (s *Rights) Lack(ctx context.Context, r rows.Reference, values []rows.Value) error {
	if len(values) == 0 {
		return nil
	}
	texts, targets := make([]string, len(values)), make([]string, len(values))
	for i, v := range values {
		texts[i], targets[i] = v.Texts(), v.Target.FullName.String()
	}
	if _, err := s.Pool.Exec(ctx, insertLackingSQL, r.Table.KindID, r.Path(), texts, targets); err != nil {
		return fmt.Errorf("note values without a right: %w", err)
	}
	return nil
}

// askAgain makes the values that name targets at a deployment due: it may have them again.
func (s *Rights) askAgain(ctx context.Context, at schema.DeploymentID) error {
	if _, err := s.Pool.Exec(ctx, askAgainSQL, at.Service, at.Region); err != nil {
		return fmt.Errorf("ask for values without a right again: %w", err)
	}
	return nil
}
