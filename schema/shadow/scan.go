package shadow

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// scanChange reads a row of resourcesSnapshotSQL or resourcesNewSQL; all columns are null where there is no item.
func scanChange(row pgx.CollectableRow) (r Resource, _ int64, err error) {
	var (
		seq, revision, generation *int64
		uid                       *uuid.UUID
		kind, name                *string
		state                     *State
		created, updated          *time.Time
		labels                    []byte
	)
	if err := row.Scan(&seq, &uid, &kind, &name, &state, &revision, &generation, &created, &updated, &labels, &r.Body); err != nil || seq == nil {
		return r, 0, err
	}
	r.UID, r.Kind, r.Name, r.State, r.Revision, r.Generation = *uid, *kind, *name, *state, Revision(*revision), *generation
	r.CreatedAt, r.UpdatedAt = *created, *updated
	if labels != nil {
		err = json.Unmarshal(labels, &r.Labels)
	}
	return r, *seq, err
}
