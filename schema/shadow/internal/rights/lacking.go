package rights

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/rows"
)

// AskedOf returns the right that rows with a value of a strict reference need.
func AskedOf(r rows.Reference, v rows.Value) Asked {
	return Asked{Target: v.Target.FullName, Kind: v.Target.Kind, Block: r.Strict().Blocks()}
}

// WithoutRight returns those of some values whose right is not there.
func (s *Rights) WithoutRight(ctx context.Context, r rows.Reference, values []rows.Value) (lacking []rows.Value, err error) {
	var asked []Asked
	var named []rows.Value
	for _, v := range values {
		if v.Named {
			asked, named = append(asked, AskedOf(r, v)), append(named, v)
		} else {
			lacking = append(lacking, v)
		}
	}
	if len(asked) == 0 {
		return lacking, nil
	}
	held, err := s.Held(ctx, asked)
	for i, v := range named {
		if err == nil && !held[i] {
			lacking = append(lacking, v)
		}
	}
	return lacking, err
}

const (
	insertLackingSQL = `
INSERT INTO dbcontroller.lacking (kind_id, path, digest, texts, target)
SELECT $1, $2, i.digest, i.texts, i.target FROM unnest($3::uuid[], $4::text[], $5::text[]) AS i (digest, texts, target) ORDER BY i.digest
ON CONFLICT (kind_id, path, digest) DO UPDATE SET due = least(lacking.due, now())`

	askAgainSQL = `UPDATE dbcontroller.lacking SET due = '-infinity' WHERE split_part(target, '/', 3) = $1 AND split_part(target, '/', 4) = $2`
)

const selectNotedSQL = `SELECT digest FROM dbcontroller.lacking WHERE kind_id = $1 AND path = $2 AND digest = ANY ($3)`

// Unknown returns those of some values that have no right, and are not noted as lacking.
func (s *Rights) Unknown(ctx context.Context, r rows.Reference, values []rows.Value) ([]rows.Value, error) {
	lacking, err := s.WithoutRight(ctx, r, values)
	if err != nil || len(lacking) == 0 {
		return nil, err
	}
	digests := make([]uuid.UUID, len(lacking))
	for i, v := range lacking {
		if digests[i], _, err = digestOf(v); err != nil {
			return nil, err
		}
	}
	found, err := s.Pool.Query(ctx, selectNotedSQL, r.Table.KindID, r.Path(), digests)
	if err != nil {
		return nil, fmt.Errorf("read values without a right: %w", err)
	}
	noted, err := pgx.CollectRows(found, pgx.RowTo[uuid.UUID])
	var unknown []rows.Value
	for i, v := range lacking {
		if !slices.Contains(noted, digests[i]) {
			unknown = append(unknown, v)
		}
	}
	return unknown, err
}

// digestOf returns the texts of a value as a JSON array, and a digest of them.
func digestOf(v rows.Value) (digest uuid.UUID, texts string, err error) {
	raw, err := json.Marshal(v.Values)
	return uuid.NewSHA1(uuid.NameSpaceOID, raw), string(raw), err
}

// Lack notes values of a strict reference that rows have without a right: they are asked for until the right is there, or no row has them.
func (s *Rights) Lack(ctx context.Context, r rows.Reference, values []rows.Value) error {
	if len(values) == 0 {
		return nil
	}
	digests, texts, targets := make([]uuid.UUID, len(values)), make([]string, len(values)), make([]*string, len(values))
	for i, v := range values {
		var err error
		if digests[i], texts[i], err = digestOf(v); err != nil {
			return err
		}
		if v.Named {
			name := v.Target.FullName.String()
			targets[i] = &name
		}
	}
	if _, err := s.Pool.Exec(ctx, insertLackingSQL, r.Table.KindID, r.Path(), digests, texts, targets); err != nil {
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
