package read

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
)

// HeldReference is a stored reference with the name of its target.
type HeldReference struct {
	HolderID   int64
	FieldID    int32
	TargetID   int64
	Behaviour  schema.Behaviour
	Attempt    *uuid.UUID
	Dangling   bool   // the target was deleted without acting upon the reference
	Deployment *int32 // null: a local target
	KindID     *int32 // null, like name and uid: the target is gone
	Name       *string
	UID        *uuid.UUID
	// the attempt of the proxy that stands for a blocking reference; null: it has a blockade of its own
	Right  *uuid.UUID
	Target schema.FullName // set by compare
}

var selectHeldSQL = db.Codes(`
SELECT r.holder_id, r.field_id, r.target_id, r.behaviour, r.attempt, r.dangling, f.deployment_id,
       COALESCE(f.kind_id, t.kind_id), COALESCE(f.name, t.name), COALESCE(f.uid, t.uid),
       CASE WHEN r.delegated AND r.behaviour = {block} THEN f.block_attempt END
FROM dbcontroller.reference r
LEFT JOIN dbcontroller.foreign_target f ON f.id = r.target_id
LEFT JOIN dbcontroller.shadow t ON t.id = r.target_id
WHERE r.holder_id = ANY ($1)`)

func scanHeld(row pgx.CollectableRow) (h HeldReference, err error) {
	err = row.Scan(&h.HolderID, &h.FieldID, &h.TargetID, &h.Behaviour, &h.Attempt, &h.Dangling, &h.Deployment,
		&h.KindID, &h.Name, &h.UID, &h.Right)
	return h, err
}

// Held reads the references of holders, by holder id.
func Held(ctx context.Context, q db.Querier, holders []int64) (map[int64][]HeldReference, error) {
	rows, err := q.Query(ctx, selectHeldSQL, holders)
	if err != nil {
		return nil, fmt.Errorf("read references: %w", err)
	}
	all, err := pgx.CollectRows(rows, scanHeld)
	held := map[int64][]HeldReference{}
	for _, h := range all {
		held[h.HolderID] = append(held[h.HolderID], h)
	}
	return held, err
}
