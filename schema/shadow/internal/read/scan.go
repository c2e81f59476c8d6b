package read

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// scanChange scans a row of resourcesSnapshotSQL or resourcesNewSQL, and returns its resource and sequence number. In a row without
// an item all columns are null: the sequence number is 0.
func scanChange(row pgx.CollectableRow) (r peer.Resource, _ int64, err error) {
	var (
		seq, revision, generation *int64
		uid                       *uuid.UUID
		kind, name                *string
		state                     *peer.State
		created, updated          *time.Time
		blocks                    *bool
		labels, owners            []byte
	)
	if err := row.Scan(&seq, &uid, &kind, &name, &state, &revision, &generation, &created, &updated, &labels, &r.Body, &owners, &blocks); err != nil || seq == nil {
		return r, 0, err
	}
	r.UID, r.Kind, r.Name, r.State, r.Revision, r.Generation = *uid, *kind, *name, *state, peer.Revision(*revision), *generation
	r.CreatedAt, r.UpdatedAt = *created, *updated
	if r.State == peer.Gone {
		r.Body = nil
		return r, *seq, nil
	}
	r.BlockDeletion = *blocks
	if err := db.Decode(labels, &r.Labels); err != nil {
		return r, 0, err
	}
	return r, *seq, db.Decode(owners, &r.Owners)
}
