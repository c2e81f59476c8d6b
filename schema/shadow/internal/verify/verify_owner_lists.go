package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
	"github.com/db-controller/db-controller/schema/shadow/internal/write"
)

// The list of owners that users see is stored with the body, and owner_reference is derived from it. They are written together, so that
// one snapshot shows them equal.

const storedOwnersSQL = `
SELECT ownee_id, deployment_id, kind_id, name, uid, flags FROM dbcontroller.owner_reference WHERE ownee_id = ANY ($1)`

// ownerList is the difference between the list of a resource and its rows.
type ownerList struct {
	row   *prepare.ShadowRow
	add   []peer.OwnerReference
	drop  []prepare.OwnerRow
	found []Difference
}

// listedOwner identifies an owner of a list. The kind counts only without a uid: it may have been renamed.
type listedOwner struct {
	owner schema.FullName
	kind  string
	uid   uuid.UUID
	flags int16
}

// compareOwnerLists compares the lists of a page with their rows, in the transaction that has read the page.
func (v *verifying) compareOwnerLists(ctx context.Context, tx pgx.Tx, page *bodyPage) error {
	stored, err := v.storedOwners(ctx, tx, page)
	if err != nil {
		return err
	}
	for _, row := range page.rows {
		l := &ownerList{row: row}
		rows := stored[row.ID]
		for _, o := range row.Owners {
			k := v.listed(o.Owner, o.Kind, o.UID, o.Flags())
			if _, ok := rows[k]; !ok {
				l.add = append(l.add, o)
				l.found = append(l.found, v.ownerDifference(OwnerNotStored, row, o.Owner))
			}
			delete(rows, k)
		}
		for k, r := range rows {
			l.drop = append(l.drop, r)
			l.found = append(l.found, v.ownerDifference(OwnerNotListed, row, k.owner))
		}
		if len(l.found) > 0 {
			page.ownerLists = append(page.ownerLists, l)
		}
	}
	return nil
}

func (v *verifying) ownerDifference(kind DifferenceKind, row *prepare.ShadowRow, owner schema.FullName) Difference {
	return Difference{Kind: kind, Holder: v.store.selfName(row.Name), Target: owner, Path: "@owner"}
}

func (v *verifying) listed(owner schema.FullName, kind string, uid uuid.UUID, flags int16) listedOwner {
	k := listedOwner{owner: owner, uid: uid, flags: flags}
	if uid == uuid.Nil {
		k.kind = v.store.Names.Canonical(schema.KindID{Service: owner.Deployment.Service, Kind: kind}).Kind
	}
	return k
}

// storedOwners reads the rows of a page, by ownee.
func (v *verifying) storedOwners(ctx context.Context, tx pgx.Tx, page *bodyPage) (map[int64]map[listedOwner]prepare.OwnerRow, error) {
	ids := make([]int64, len(page.rows))
	for i, row := range page.rows {
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
	out := map[int64]map[listedOwner]prepare.OwnerRow{}
	for _, r := range all {
		at, err := v.store.Names.DeploymentOf(ctx, tx, r.DeploymentID)
		if err != nil {
			return nil, err
		}
		kind, err := v.store.Names.KindOf(ctx, tx, r.KindID)
		if err != nil {
			return nil, err
		}
		if out[r.OwneeID] == nil {
			out[r.OwneeID] = map[listedOwner]prepare.OwnerRow{}
		}
		out[r.OwneeID][v.listed(schema.FullName{Deployment: at, Name: r.Name}, kind.Kind, r.UID, r.Flags)] = r
	}
	return out, nil
}

// repairOwnerLists derives the rows from the lists again. The owners of added rows are checked as new ones are.
func (v *verifying) repairOwnerLists(ctx context.Context, page *bodyPage) error {
	if !v.how.Repair || len(page.ownerLists) == 0 {
		return nil
	}
	ids, add := make([]int64, len(page.ownerLists)), make([][]prepare.OwnerRow, len(page.ownerLists))
	for i, l := range page.ownerLists {
		var err error
		if ids[i] = l.row.ID; len(l.add) > 0 { // the transaction must not ask for a second connection
			add[i], err = v.ownerRows(ctx, l.add)
		}
		if err != nil {
			return err
		}
	}
	err := v.store.InTx(ctx, db.WorkFeed, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, write.LockOwnSQL, ids)
		if err != nil {
			return err
		}
		unchanged := map[int64]bool{}
		var r prepare.ShadowRow
		_, err = pgx.ForEachRow(rows, []any{&r.ID, &r.Revision, &r.State, &r.Derivation}, func() error {
			unchanged[r.ID] = r.State == peer.Active && slices.ContainsFunc(page.rows, func(b *prepare.ShadowRow) bool {
				return b.ID == r.ID && b.Revision == r.Revision
			})
			return nil
		})
		if err != nil {
			return err
		}
		sv := &prepare.Saving{}
		for n, l := range page.ownerLists {
			for i := range l.found {
				l.found[i].Repaired = unchanged[l.row.ID]
			}
			if unchanged[l.row.ID] { // a write since then has written both
				sv.Writes = append(sv.Writes, &prepare.Writing{Write: peer.Write{Name: l.row.Name}, ID: l.row.ID, AddOwners: add[n], DropOwners: l.drop})
			}
		}
		b := &pgx.Batch{}
		prepare.QueueOwners(b, []*prepare.Saving{sv})
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("store owners again: %w", err)
	}
	return nil
}

// ownerRows returns the rows of listed owners.
func (v *verifying) ownerRows(ctx context.Context, owners []peer.OwnerReference) ([]prepare.OwnerRow, error) {
	rows := make([]prepare.OwnerRow, len(owners))
	for i, o := range owners {
		var err error
		rows[i] = prepare.OwnerRow{Name: o.Owner.Name, UID: o.UID, Flags: o.Flags()}
		if rows[i].DeploymentID, err = v.store.Names.Deployment(ctx, o.Owner.Deployment); err != nil {
			return nil, err
		}
		if rows[i].KindID, err = v.store.Names.Kind(ctx, o.KindID()); err != nil {
			return nil, err
		}
	}
	return rows, nil
}
