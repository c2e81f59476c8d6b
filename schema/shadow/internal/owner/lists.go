package owner

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

const storedOwnersSQL = `
SELECT ownee_id, deployment_id, kind_id, name, uid, flags FROM dbcontroller.owner_reference WHERE ownee_id = ANY ($1)`

// ListDifference is the difference between the list of a resource and its owner references.
type ListDifference struct {
	Row *prepare.ShadowRow
	// NotStored are the owners of the list without an owner reference, NotListed the owners of owner
	// references that are not in it.
	NotStored []peer.OwnerReference
	NotListed []schema.FullName
	drop      []prepare.OwnerRow
}

// listed identifies an owner. The kind counts only without a uid: it may have been renamed.
type listed struct {
	owner schema.FullName
	kind  string
	uid   uuid.UUID
	flags int16
}

func listedOf(d *db.DB, owner schema.FullName, kind string, uid uuid.UUID, flags int16) listed {
	k := listed{owner: owner, uid: uid, flags: flags}
	if uid == uuid.Nil {
		k.kind = d.Names.Canonical(schema.KindID{Service: owner.Deployment.Service, Kind: kind}).Kind
	}
	return k
}

// CompareLists compares the lists of owners that users see, which are stored with the bodies, with the owner
// references that are derived from them, in the transaction that has read the resources. Both are written
// together, so that one snapshot shows them equal.
func CompareLists(ctx context.Context, d *db.DB, tx pgx.Tx,
	resources []*prepare.ShadowRow,
) (out []*ListDifference, err error) {
	all, err := storedOwners(ctx, d, tx, resources)
	if err != nil {
		return nil, err
	}
	for _, row := range resources {
		l, rows := &ListDifference{Row: row}, all[row.ID]
		for _, o := range row.Owners {
			k := listedOf(d, o.Owner, o.Kind, o.UID, o.Flags())
			if _, ok := rows[k]; !ok {
				l.NotStored = append(l.NotStored, o)
			}
			delete(rows, k)
		}
		for k, r := range rows {
			l.drop, l.NotListed = append(l.drop, r), append(l.NotListed, k.owner)
		}
		if len(l.NotStored)+len(l.drop) > 0 {
			out = append(out, l)
		}
	}
	return out, nil
}

// storedOwners reads the owner references of resources, by ownee.
func storedOwners(ctx context.Context, d *db.DB, tx pgx.Tx,
	resources []*prepare.ShadowRow,
) (map[int64]map[listed]prepare.OwnerRow, error) {
	ids := make([]int64, len(resources))
	for i, row := range resources {
		ids[i] = row.ID
	}
	rows, err := tx.Query(ctx, storedOwnersSQL, ids)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r prepare.OwnerRow, err error) {
		return r, row.Scan(&r.OwneeID, &r.DeploymentID, &r.KindID, &r.Name, &r.UID, &r.Flags)
	})
	if err != nil {
		return nil, err
	}
	out := map[int64]map[listed]prepare.OwnerRow{}
	for _, r := range all {
		at, err := d.Names.DeploymentOf(ctx, tx, r.DeploymentID)
		if err != nil {
			return nil, err
		}
		kind, err := d.Names.KindOf(ctx, tx, r.KindID)
		if err != nil {
			return nil, err
		}
		if out[r.OwneeID] == nil {
			out[r.OwneeID] = map[listed]prepare.OwnerRow{}
		}
		out[r.OwneeID][listedOf(d, schema.FullName{Deployment: at, Name: r.Name}, kind.Kind, r.UID, r.Flags)] = r
	}
	return out, nil
}

// RepairLists derives the owner references from the lists again, and returns the ids of the repaired
// resources: the resources that have not changed since they were compared. The owners of added ones are
// checked as new ones are.
func RepairLists(ctx context.Context, d *db.DB, lists []*ListDifference) (repaired map[int64]bool, err error) {
	ids, add := make([]int64, len(lists)), make([][]prepare.OwnerRow, len(lists))
	for i, l := range lists {
		ids[i] = l.Row.ID
		// the transaction must not ask for a second connection
		if add[i], err = ownerRows(ctx, d, l.NotStored); err != nil {
			return nil, err
		}
	}
	err = d.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		repaired = map[int64]bool{}
		rows, err := tx.Query(ctx, write.LockOwnSQL, ids)
		if err != nil {
			return err
		}
		locked := map[int64]peer.Revision{}
		var r prepare.ShadowRow
		_, err = pgx.ForEachRow(rows, []any{&r.ID, &r.Revision, &r.State, &r.Derivation, &r.Frozen}, func() error {
			if r.State == peer.Active {
				locked[r.ID] = r.Revision
			}
			return nil
		})
		if err != nil {
			return err
		}
		sv := &prepare.Saving{}
		for i, l := range lists {
			// a write since then has written both
			if revision, ok := locked[l.Row.ID]; ok && revision == l.Row.Revision {
				repaired[l.Row.ID] = true
				sv.Writes = append(sv.Writes, &prepare.Writing{
					Write: peer.Write{Name: l.Row.Name}, ID: l.Row.ID,
					AddOwners: add[i], DropOwners: l.drop,
				})
			}
		}
		b := &pgx.Batch{}
		prepare.QueueOwners(b, []*prepare.Saving{sv})
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("store owners again: %w", err)
	}
	return repaired, nil
}

// ownerRows returns the rows of listed owners.
func ownerRows(ctx context.Context, d *db.DB, owners []peer.OwnerReference) ([]prepare.OwnerRow, error) {
	rows := make([]prepare.OwnerRow, len(owners))
	for i, o := range owners {
		var err error
		rows[i] = prepare.OwnerRow{Name: o.Owner.Name, UID: o.UID, Flags: o.Flags()}
		if rows[i].DeploymentID, err = d.Names.Deployment(ctx, o.Owner.Deployment); err != nil {
			return nil, err
		}
		if rows[i].KindID, err = d.Names.Kind(ctx, o.KindID()); err != nil {
			return nil, err
		}
	}
	return rows, nil
}
