package shadow

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// scanChange reads a row of resourcesSnapshotSQL or resourcesNewSQL; all columns are null where there is no item.
func (s *Store) scanChange(ctx context.Context) func(pgx.CollectableRow) (Resource, int64, error) {
	return func(row pgx.CollectableRow) (r Resource, _ int64, err error) {
		var (
			seq, revision, generation *int64
			uid                       *uuid.UUID
			kindID                    *int32
			name                      *string
			state                     *State
			created, updated          *time.Time
			labels                    []byte
		)
		if err := row.Scan(&seq, &uid, &kindID, &name, &state, &revision, &generation, &created, &updated, &labels, &r.Body); err != nil || seq == nil {
			return r, 0, err
		}
		r.UID, r.Name, r.State, r.Revision, r.Generation = *uid, *name, *state, Revision(*revision), *generation
		r.CreatedAt, r.UpdatedAt = *created, *updated
		// A kind of a row was stored before the row, so a miss means that another process stored it: on a connection
		// of its own, since this one is in the middle of its rows.
		kind, err := s.names.kindOf(ctx, s.pool, *kindID)
		if err != nil {
			return r, 0, err
		}
		r.Kind = kind.Kind
		if labels != nil {
			err = json.Unmarshal(labels, &r.Labels)
		}
		return r, *seq, err
	}
}
