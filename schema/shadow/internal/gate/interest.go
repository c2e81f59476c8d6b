package gate

import (
	"context"
	"fmt"
)

const (
	pointToSQL = `UPDATE dbcontroller.deployment SET pointed_to = true WHERE id = ANY ($1) AND NOT pointed_to`
)

// NoteInterest sets pointed_to of a deployment, so that this one watches its deletions.
func (s *Gate) NoteInterest(ctx context.Context, id int32) error {
	if _, known := s.NotedTargets.Load(id); known {
		return nil
	}
	return s.NoteReferenced(ctx, []int32{id})
}

// NoteReferenced stores that resources here refer, or may refer, to deployments.
func (s *Gate) NoteReferenced(ctx context.Context, ids []int32) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := s.Pool.Exec(ctx, pointToSQL, ids); err != nil {
		return fmt.Errorf("record referenced deployments: %w", err)
	}
	for _, id := range ids {
		s.NotedTargets.Store(id, true)
	}
	return nil
}
