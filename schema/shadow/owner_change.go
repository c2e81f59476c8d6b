package shadow

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// ownerKey is the primary key of owner_reference.
type ownerKey struct {
	owneeID      int64
	deploymentID int32
	kindID       int32
	name         string
	uid          uuid.UUID
}

func (r ownerRow) key() ownerKey {
	return ownerKey{r.owneeID, r.deploymentID, r.kindID, r.name, r.uid}
}

// pin is the uid and the kind of an existing owner, as its deployment reported them.
type pin struct {
	uid    uuid.UUID
	kindID int32
	kind   string // empty: unchanged
}

// ownerChange decides about each owner reference of some ownees. Either function may be nil.
type ownerChange struct {
	lost func(ownerRow) bool        // reports whether the owner is gone: the reference is dropped
	pin  func(ownerRow) (pin, bool) // returns the uid and kind to store
	// causes are the reported causes of the owners' deletions, by the owner's uid.
	causes map[uuid.UUID]*schema.Cause
	cause  *schema.Cause // of owners that are not in causes; may be nil
	// Version and generation of the owners' deployment, stored with pinned references.
	version    string
	generation int64
}

const (
	pinOwnerRowsSQL = `
INSERT INTO dbcontroller.owner_reference AS o (ownee_id, deployment_id, kind_id, name, uid, flags, checked, generation)
SELECT ownee_id, deployment_id, kind_id, name, uid, flags, checked, @generation
FROM unnest(@ownees::bigint[], @deployments::int[], @kinds::int[], @names::text[], @uids::uuid[], @flags::smallint[], @checked::boolean[])
    AS i (ownee_id, deployment_id, kind_id, name, uid, flags, checked)
ON CONFLICT ON CONSTRAINT owner_reference_pkey DO UPDATE
SET checked = o.checked OR EXCLUDED.checked, generation = greatest(o.generation, EXCLUDED.generation)`

	selectOwnersSQL = `
SELECT s.id, r.owners FROM dbcontroller.shadow s JOIN dbcontroller.resource r USING (id) WHERE s.id = ANY ($1) AND r.owners IS NOT NULL`
)

var writeOwnersSQL = codes(`
WITH i AS (
    SELECT * FROM unnest($1::bigint[], $2::text[]) AS i (id, owners)
), s AS (
    UPDATE dbcontroller.shadow s SET revision = nextval('dbcontroller.revision'), updated_at = now()
    FROM i WHERE s.id = i.id
    RETURNING s.id, s.uid, s.kind_id, s.name, s.revision, s.generation, s.created_at, s.block_deletion
), r AS (
    UPDATE dbcontroller.resource r SET owners = i.owners::jsonb FROM i WHERE r.id = i.id RETURNING r.id, r.labels, r.body, r.owners
)` + changeTo(`{active}`, `s JOIN r USING (id)`))

// changeOwners locks ownees, reads their owner references, and drops and pins them as the change decides. Ownees that keep
// an owner are updated. An ownee without owners is deleted with its cascades, unless every owner that it lost had
// unset_on_delete; one that a holder elsewhere blocks is marked DELETING and waits as BLOCKED.
func (s *Store) changeOwners(ctx context.Context, tx pgx.Tx, ownees []int64, change ownerChange) error {
	if len(ownees) == 0 {
		return nil
	}
	slices.Sort(ownees)
	locked, err := lockMembers(ctx, tx, slices.Compact(ownees))
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, selectOwnerRowsSQL, idsOf(locked), nil, s.cfg.OwnerGrace)
	if err != nil {
		return fmt.Errorf("read owners: %w", err)
	}
	all, err := pgx.CollectRows(rows, scanOwnerRow)
	if err != nil {
		return fmt.Errorf("read owners: %w", err)
	}
	before, err := readLost(ctx, tx, idsOf(locked))
	if err != nil {
		return err
	}
	e := s.editOwners(all, change, before)
	var collected []*member
	for _, m := range locked {
		if e.collects(m.id) {
			collected = append(collected, m)
			delete(e.changed, m.id) // the ownee itself is deleted
		}
	}
	if err := e.write(ctx, tx); err != nil {
		return err
	}
	if len(collected) == 0 {
		return nil
	}
	if err := e.giveReasons(ctx, tx, collected); err != nil {
		return err
	}
	d, err := s.decideOn(ctx, tx, collected)
	if err != nil {
		return err
	}
	return s.carryOut(ctx, tx, d)
}

// ownerEdit collects the effects of an ownerChange on the owner references of some ownees.
type ownerEdit struct {
	store  *Store
	change ownerChange
	// changed are the ownees with dropped or pinned rows.
	changed map[int64]bool
	drop    []ownerRow
	pinned  []ownerRow
	becomes map[ownerKey]pin  // by the key before
	taken   map[ownerKey]bool // the keys after
	lost    map[ownerKey]bool
	left    map[int64]int  // number of remaining owners, by ownee
	deletes map[int64]bool // ownees that lost an owner without unset_on_delete, now or earlier in the same deletion
	flagged map[int64]bool // ownees that keep an owner with unset_on_delete
	// Losses of owners without unset_on_delete: recorded by earlier transactions, and new ones.
	before, noted map[lostIn]bool
}

func (s *Store) editOwners(all []ownerRow, change ownerChange, before map[lostIn]bool) *ownerEdit {
	e := &ownerEdit{store: s, change: change, flagged: map[int64]bool{}, before: before, noted: map[lostIn]bool{}, changed: map[int64]bool{}, becomes: map[ownerKey]pin{}, taken: map[ownerKey]bool{}, lost: map[ownerKey]bool{}, left: map[int64]int{}, deletes: map[int64]bool{}}
	for _, r := range all {
		if change.lost != nil && change.lost(r) {
			e.changed[r.owneeID], e.lost[r.key()] = true, true
			e.drop = append(e.drop, r)
			e.lose(r)
			continue
		}
		e.left[r.owneeID]++
		e.flagged[r.owneeID] = e.flagged[r.owneeID] || r.flags&flagUnsetOnDelete != 0
		if change.pin == nil {
			continue
		}
		if p, ok := change.pin(r); ok {
			e.changed[r.owneeID], e.becomes[r.key()] = true, p
			pinned := ownerKey{r.owneeID, r.deploymentID, p.kindID, r.name, p.uid}
			if e.taken[pinned] { // two references, with and without uid, name the same owner
				e.left[r.owneeID]--
				if r.key() != pinned {
					e.drop = append(e.drop, r)
				}
				continue
			}
			e.taken[pinned] = true
			if r.uid != p.uid || r.kindID != p.kindID {
				e.drop = append(e.drop, r)
			}
			// DropOwners finds rows by uid: one that arrived before the uid was stored did not find this row. So an owner
			// counts as checked only when the question already named its uid.
			r.checked = r.checked || r.uid == p.uid
			r.uid, r.kindID = p.uid, p.kindID
			e.pinned = append(e.pinned, r)
		}
	}
	return e
}

// giveReasons records, for each ownee that is deleted, the lost owner with the greatest uid as the reason. All ownees of an
// owner that never had a uid here share one new cause.
func (e *ownerEdit) giveReasons(ctx context.Context, tx pgx.Tx, collected []*member) error {
	last := map[int64]ownerKey{}
	for k := range e.lost {
		if l, ok := last[k.owneeID]; !ok || bytes.Compare(k.uid[:], l.uid[:]) > 0 {
			last[k.owneeID] = k
		}
	}
	unnamed := map[ownerKey]*schema.Cause{} // of owners whose uid was never stored
	for _, m := range collected {
		k := last[m.id]
		deployment, err := e.store.names.deploymentOf(ctx, tx, k.deploymentID)
		if err != nil {
			return err
		}
		cause := causeOr(cmp.Or(e.change.causes[k.uid], e.change.cause), deployment, k.name, k.uid)
		if cause.ID == uuid.Nil {
			of := ownerKey{deploymentID: k.deploymentID, kindID: k.kindID, name: k.name}
			if unnamed[of] == nil {
				cause.ID, unnamed[of] = uuid.Must(uuid.NewV7()), cause
			}
			cause = unnamed[of]
		}
		m.why = reason{how: Disowning, cause: cause, via: &link{k.deploymentID, k.uid, k.name}}
	}
	return nil
}

func (e *ownerEdit) collects(ownee int64) bool {
	return e.changed[ownee] && e.left[ownee] == 0 && e.deletes[ownee]
}

func (e *ownerEdit) write(ctx context.Context, tx pgx.Tx) error {
	b := &pgx.Batch{}
	var drop, pinned ownerColumns
	for _, r := range e.drop {
		drop.add(r.owneeID, 0, r)
	}
	var checked []bool
	for _, r := range e.pinned {
		pinned.add(r.owneeID, 0, r)
		checked = append(checked, r.checked)
	}
	if d := drop; len(d.ownees) > 0 {
		b.Queue(dropOwnersSQL, d.ownees, d.deployments, d.kinds, d.names, d.uids)
	}
	if p := pinned; len(p.ownees) > 0 {
		b.Queue(pinOwnerRowsSQL, named{
			"ownees": p.ownees, "deployments": p.deployments, "kinds": p.kinds, "names": p.names, "uids": p.uids, "flags": p.flags,
			"generation": e.change.generation, "checked": checked,
		})
	}
	e.queueLost(b)
	ids, owners, err := e.rewrite(ctx, tx)
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		b.Queue(writeOwnersSQL, ids, owners)
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("write owners: %w", err)
	}
	return nil
}

// rewrite returns the ids of the ownees whose resource.owners changes, and the new values as JSON; nil for none.
func (e *ownerEdit) rewrite(ctx context.Context, tx pgx.Tx) (ids []int64, texts []*string, err error) {
	var changed []int64
	for id := range e.changed {
		changed = append(changed, id)
	}
	slices.Sort(changed)
	if len(changed) == 0 {
		return nil, nil, nil
	}
	rows, err := tx.Query(ctx, selectOwnersSQL, changed)
	if err != nil {
		return nil, nil, fmt.Errorf("read owners: %w", err)
	}
	type seen struct {
		id     int64
		owners []OwnerReference
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x seen, err error) {
		var raw []byte
		if err = row.Scan(&x.id, &raw); err != nil {
			return x, err
		}
		return x, decode(raw, &x.owners)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read owners: %w", err)
	}
	lost, becomes, err := e.byName(ctx, tx)
	if err != nil {
		return nil, nil, err
	}
	for _, x := range found {
		var now []OwnerReference
		differs := false
		for _, o := range x.owners {
			k := e.seenKey(x.id, o)
			if lost[k] {
				differs = true
				continue
			}
			if p, ok := becomes[k]; ok {
				if p.kind == "" {
					p.kind = o.Kind
				}
				differs = differs || o.UID != p.uid || o.Kind != p.kind || o.Version != e.change.version
				o.UID, o.Kind, o.Version = p.uid, p.kind, e.change.version
				if slices.ContainsFunc(now, func(n OwnerReference) bool { return n.Owner == o.Owner && n.Kind == o.Kind && n.UID == o.UID }) {
					continue // a second reference to the same owner
				}
			}
			now = append(now, o)
		}
		if differs {
			text, err := ownersJSON(now)
			if err != nil {
				return nil, nil, err
			}
			ids, texts = append(ids, x.id), append(texts, text)
		}
	}
	return ids, texts, nil
}

// seenOwner identifies an entry of resource.owners; the kind is by its oldest name.
type seenOwner struct {
	owneeID int64
	owner   schema.FullName
	kind    string
	uid     uuid.UUID
}

func (e *ownerEdit) seenKey(ownee int64, o OwnerReference) seenOwner {
	return seenOwner{ownee, o.Owner, e.store.names.root(o.kindID()).Kind, o.UID}
}

// kindNow returns the current version's name of a kind of this service; stored is the kind's oldest name.
func (s *Store) kindNow(stored string) string {
	return s.names.canonical(schema.KindID{Service: s.self.Service, Kind: stored}).Kind
}

func (e *ownerEdit) byName(ctx context.Context, tx pgx.Tx) (map[seenOwner]bool, map[seenOwner]pin, error) {
	name := func(k ownerKey) (seenOwner, error) {
		d, err := e.store.names.deploymentOf(ctx, tx, k.deploymentID)
		if err != nil {
			return seenOwner{}, err
		}
		kind, err := e.store.names.kindOf(ctx, tx, k.kindID)
		return seenOwner{k.owneeID, schema.FullName{Deployment: d, Name: k.name}, e.store.names.root(kind).Kind, k.uid}, err
	}
	lost, becomes := map[seenOwner]bool{}, map[seenOwner]pin{}
	for k := range e.lost {
		n, err := name(k)
		if err != nil {
			return nil, nil, err
		}
		lost[n] = true
	}
	for k, p := range e.becomes {
		n, err := name(k)
		if err != nil {
			return nil, nil, err
		}
		becomes[n] = p
	}
	return lost, becomes, nil
}
