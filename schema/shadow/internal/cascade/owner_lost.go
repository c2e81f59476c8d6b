package cascade

import (
	"cmp"
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// lostIn records that an ownee lost an owner without unset_on_delete in a deletion. The record is stored
// while an owner with the flag keeps the ownee: when the same deletion takes that owner too, the ownee is
// deleted, in either order of the two losses.
type lostIn struct {
	ownee    int64
	deletion uuid.UUID
}

const (
	selectLostSQL = `SELECT ownee_id, deletion_id FROM dbcontroller.owner_lost WHERE ownee_id = ANY ($1)`

	noteLostSQL = `
INSERT INTO dbcontroller.owner_lost (ownee_id, deletion_id) SELECT * FROM unnest($1::bigint[], $2::uuid[]) ON CONFLICT DO NOTHING`

	// The ids of deletions are UUIDv7: the newest are the greatest.
	boundLostSQL = `
DELETE FROM dbcontroller.owner_lost o
WHERE ownee_id = ANY ($1) AND deletion_id < (
    SELECT deletion_id FROM dbcontroller.owner_lost n WHERE n.ownee_id = o.ownee_id ORDER BY deletion_id DESC OFFSET $2 - 1 LIMIT 1
)`

	forgetLostSQL = `DELETE FROM dbcontroller.owner_lost WHERE ownee_id = ANY ($1)`
)

// readLost reads the recorded losses of ownees. The caller holds their locks.
func readLost(ctx context.Context, tx pgx.Tx, ownees []int64) (map[lostIn]bool, error) {
	rows, err := tx.Query(ctx, selectLostSQL, ownees)
	if err != nil {
		return nil, fmt.Errorf("read lost owners: %w", err)
	}
	lost := map[lostIn]bool{}
	var l lostIn
	if _, err := pgx.ForEachRow(rows, []any{&l.ownee, &l.deletion}, func() error {
		lost[l] = true
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read lost owners: %w", err)
	}
	return lost, nil
}

// lose decides whether the loss of an owner deletes its ownee. A loss in an unknown deletion (a zero id)
// matches no other loss.
func (e *ownerEdit) lose(r prepare.OwnerRow) {
	in := lostIn{ownee: r.OwneeID}
	if cause := cmp.Or(e.change.Causes[r.UID], e.change.Cause); cause != nil {
		in.deletion = cause.ID
	}
	if r.Flags&peer.FlagUnsetOnDelete != 0 && !e.before[in] {
		return
	}
	e.deletes[r.OwneeID] = true
	if in.deletion != uuid.Nil {
		e.noted[in] = true
	}
}

// queueLost stores the new losses of ownees that keep an owner with unset_on_delete, at most the newest
// MaxOwners of each ownee, and removes the losses of ownees that keep none.
func (e *ownerEdit) queueLost(b *pgx.Batch) {
	var ownees, without []int64
	var deletions []uuid.UUID
	for in := range e.noted {
		if e.changed[in.ownee] && e.flagged[in.ownee] {
			ownees, deletions = append(ownees, in.ownee), append(deletions, in.deletion)
		}
	}
	for in := range e.before {
		if e.changed[in.ownee] && !e.flagged[in.ownee] {
			without = append(without, in.ownee)
		}
	}
	if len(ownees) > 0 {
		b.Queue(noteLostSQL, ownees, deletions)
		b.Queue(boundLostSQL, ownees, prepare.MaxOwners)
	}
	if len(without) > 0 {
		b.Queue(forgetLostSQL, without)
	}
}
