package cascade

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/internal/postgres"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/shadow/internal/plan"
	"github.com/db-controller/db-controller/schema/shadow/internal/prepare"
)

// Pin is the uid and the kind of an existing owner, as its deployment reported them.
type Pin struct {
	UID    uuid.UUID
	KindID int32
	Kind   string // empty: unchanged
}

// OwnerChange decides about each owner reference of some ownees. Either function may be nil.
type OwnerChange struct {
	Lost func(prepare.OwnerRow) bool        // reports whether the owner is gone: the reference is dropped
	Pin  func(prepare.OwnerRow) (Pin, bool) // returns the uid and kind to store
	// Stays is true when a person drops the references: an ownee stays without them.
	Stays bool
	// Causes are the reported causes of the owners' deletions, by the owner's uid.
	Causes map[uuid.UUID]*schema.Cause
	Cause  *schema.Cause // of owners that are not in causes; may be nil
	// Version and generation of the owners' deployment, stored with pinned references.
	Version    string
	Generation int64
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

var writeOwnersSQL = db.Codes(`
WITH i AS (
    SELECT * FROM unnest($1::bigint[], $2::text[]) AS i (id, owners)
), s AS (
    UPDATE dbcontroller.shadow s SET revision = nextval('dbcontroller.revision'), updated_at = now()
    FROM i WHERE s.id = i.id
    RETURNING s.id, s.uid, s.kind_id, s.name, s.revision, s.generation, s.created_at, s.block_deletion, s.finalizers, s.hidden
), r AS (
    UPDATE dbcontroller.resource r SET owners = i.owners::jsonb FROM i WHERE r.id = i.id RETURNING r.id, r.labels, r.body, r.owners, r.status, r.status_generation
)` + db.ChangeTo(`{active}`, `s JOIN r USING (id) WHERE NOT hidden`))

// ChangeOwners locks ownees, reads their owner references, and drops and pins them as the change decides.
// Ownees that keep an owner are updated. An ownee without owners is deleted with its cascades, unless every
// owner that it lost had unset_on_delete; an ownee that a holder elsewhere blocks is marked DELETING and
// waits as BLOCKED.
func (s *Actor) ChangeOwners(ctx context.Context, tx pgx.Tx, ownees []int64, change OwnerChange) error {
	if len(ownees) == 0 {
		return nil
	}
	slices.Sort(ownees)
	locked, err := LockMembers(ctx, tx, slices.Compact(ownees))
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, SelectOwnerRowsSQL, IDsOf(locked), nil, s.Tuning.Load().OwnerGrace, s.Now())
	if err != nil {
		return fmt.Errorf("read owners: %w", err)
	}
	all, err := pgx.CollectRows(rows, ScanOwnerRow)
	if err != nil {
		return fmt.Errorf("read owners: %w", err)
	}
	before, err := readLost(ctx, tx, IDsOf(locked))
	if err != nil {
		return err
	}
	e := s.editOwners(all, change, before)
	if err := e.heedFrozen(ctx, tx, locked); err != nil {
		return err
	}
	var collected []*plan.Member
	for _, m := range locked {
		if e.collects(m.ID) {
			collected = append(collected, m)
			delete(e.changed, m.ID) // the ownee itself is deleted
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

// ownerEdit collects the effects of an OwnerChange on the owner references of some ownees.
type ownerEdit struct {
	store  *Actor
	change OwnerChange
	// changed are the ownees with dropped or pinned rows.
	changed map[int64]bool
	drop    []prepare.OwnerRow
	pinned  []prepare.OwnerRow
	becomes map[prepare.OwnerKey]Pin  // by the key before
	taken   map[prepare.OwnerKey]bool // the keys after
	lost    map[prepare.OwnerKey]bool
	left    map[int64]int  // number of remaining owners, by ownee
	deletes map[int64]bool // ownees that lost an owner without unset_on_delete, now or earlier in the same deletion
	flagged map[int64]bool // ownees that keep an owner with unset_on_delete
	// Losses of owners without unset_on_delete: recorded by earlier transactions, and new ones.
	before, noted map[lostIn]bool
}

func (s *Actor) editOwners(all []prepare.OwnerRow, change OwnerChange, before map[lostIn]bool) *ownerEdit {
	e := &ownerEdit{
		store: s, change: change, flagged: map[int64]bool{}, before: before, noted: map[lostIn]bool{},
		changed: map[int64]bool{}, becomes: map[prepare.OwnerKey]Pin{}, taken: map[prepare.OwnerKey]bool{},
		lost: map[prepare.OwnerKey]bool{}, left: map[int64]int{}, deletes: map[int64]bool{},
	}
	for _, r := range all {
		if change.Lost != nil && change.Lost(r) {
			e.changed[r.OwneeID], e.lost[r.Key()] = true, true
			if e.drop = append(e.drop, r); !change.Stays {
				e.lose(r)
			}
			continue
		}
		e.left[r.OwneeID]++
		e.flagged[r.OwneeID] = e.flagged[r.OwneeID] || r.Flags&peer.FlagUnsetOnDelete != 0
		if change.Pin == nil {
			continue
		}
		if p, ok := change.Pin(r); ok {
			e.changed[r.OwneeID], e.becomes[r.Key()] = true, p
			pinned := prepare.OwnerKey{
				OwneeID: r.OwneeID, DeploymentID: r.DeploymentID, KindID: p.KindID, Name: r.Name,
				UID: p.UID,
			}
			if e.taken[pinned] { // two references, with and without uid, name the same owner
				e.left[r.OwneeID]--
				if r.Key() != pinned {
					e.drop = append(e.drop, r)
				}
				continue
			}
			e.taken[pinned] = true
			if r.UID != p.UID || r.KindID != p.KindID {
				e.drop = append(e.drop, r)
			}
			// DropOwners finds rows by uid: a DropOwners that arrived before the uid was stored did not find
			// this row. So an owner counts as checked only when the question already named its uid.
			r.Checked = r.Checked || r.UID == p.UID
			r.UID, r.KindID = p.UID, p.KindID
			e.pinned = append(e.pinned, r)
		}
	}
	return e
}

// giveReasons records, for each ownee that is deleted, the lost owner with the greatest uid as the reason.
// All ownees of an owner that never had a uid here share one new cause.
func (e *ownerEdit) giveReasons(ctx context.Context, tx pgx.Tx, collected []*plan.Member) error {
	last := map[int64]prepare.OwnerKey{}
	for k := range e.lost {
		if l, ok := last[k.OwneeID]; !ok || bytes.Compare(k.UID[:], l.UID[:]) > 0 {
			last[k.OwneeID] = k
		}
	}
	unnamed := map[prepare.OwnerKey]*schema.Cause{} // of owners whose uid was never stored
	for _, m := range collected {
		k := last[m.ID]
		deployment, err := e.store.Names.DeploymentOf(ctx, tx, k.DeploymentID)
		if err != nil {
			return err
		}
		cause := CauseOr(cmp.Or(e.change.Causes[k.UID], e.change.Cause), deployment, k.Name, k.UID)
		if cause.ID == uuid.Nil {
			of := prepare.OwnerKey{DeploymentID: k.DeploymentID, KindID: k.KindID, Name: k.Name}
			if unnamed[of] == nil {
				cause.ID, unnamed[of] = uuid.Must(uuid.NewV7()), cause
			}
			cause = unnamed[of]
		}
		m.Why = plan.Reason{How: peer.Disowning, Cause: cause, Via: &plan.Link{
			DeploymentID: k.DeploymentID, UID: k.UID,
			Name: k.Name,
		}}
	}
	return nil
}

func (e *ownerEdit) collects(ownee int64) bool {
	return e.changed[ownee] && e.left[ownee] == 0 && e.deletes[ownee]
}

func (e *ownerEdit) write(ctx context.Context, tx pgx.Tx) error {
	b := &pgx.Batch{}
	var drop, pinned prepare.OwnerColumns
	for _, r := range e.drop {
		drop.Add(r.OwneeID, 0, r)
	}
	var checked []bool
	for _, r := range e.pinned {
		pinned.Add(r.OwneeID, 0, r)
		checked = append(checked, r.Checked)
	}
	if d := drop; len(d.Ownees) > 0 {
		b.Queue(prepare.DropOwnersSQL, d.Ownees, d.Deployments, d.Kinds, d.Names, d.UIDs)
	}
	if p := pinned; len(p.Ownees) > 0 {
		b.Queue(pinOwnerRowsSQL, db.Named{
			"ownees": p.Ownees, "deployments": p.Deployments, "kinds": p.Kinds, "names": p.Names, "uids": p.UIDs,
			"flags":      p.Flags,
			"generation": e.change.Generation, "checked": checked,
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

// ownersOf has the stored owners of an ownee.
type ownersOf struct {
	ownee  int64
	owners []peer.OwnerReference
}

// rewrite returns the ids of the ownees whose resource.owners changes, and the new values as JSON; nil for
// none.
func (e *ownerEdit) rewrite(ctx context.Context, tx pgx.Tx) (ids []int64, texts []*string, err error) {
	if len(e.changed) == 0 {
		return nil, nil, nil
	}
	found, err := readOwners(ctx, tx, slices.Sorted(maps.Keys(e.changed)))
	if err != nil {
		return nil, nil, err
	}
	lost, becomes, err := e.byName(ctx, tx)
	if err != nil {
		return nil, nil, err
	}
	for _, x := range found {
		left, differs := e.rewritten(x, lost, becomes)
		if !differs {
			continue
		}
		text, err := prepare.OwnersJSON(left)
		if err != nil {
			return nil, nil, err
		}
		ids, texts = append(ids, x.ownee), append(texts, text)
	}
	return ids, texts, nil
}

func readOwners(ctx context.Context, tx pgx.Tx, ownees []int64) ([]ownersOf, error) {
	rows, err := tx.Query(ctx, selectOwnersSQL, ownees)
	if err != nil {
		return nil, fmt.Errorf("read owners: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x ownersOf, err error) {
		var raw []byte
		if err = row.Scan(&x.ownee, &raw); err != nil {
			return x, err
		}
		return x, postgres.DecodeJSON(raw, &x.owners)
	})
	if err != nil {
		return nil, fmt.Errorf("read owners: %w", err)
	}
	return found, nil
}

// rewritten returns the owners of an ownee without the lost ones and with the pins of the others, and whether
// they differ.
func (e *ownerEdit) rewritten(x ownersOf, lost map[seenOwner]bool,
	becomes map[seenOwner]Pin,
) (left []peer.OwnerReference, differs bool) {
	for _, o := range x.owners {
		k := e.seenKey(x.ownee, o)
		if lost[k] {
			differs = true
			continue
		}
		if p, ok := becomes[k]; ok {
			if p.Kind == "" {
				p.Kind = o.Kind
			}
			differs = differs || o.UID != p.UID || o.Kind != p.Kind || o.Version != e.change.Version
			o.UID, o.Kind, o.Version = p.UID, p.Kind, e.change.Version
			if slices.ContainsFunc(left, func(n peer.OwnerReference) bool {
				return n.Owner == o.Owner && n.Kind == o.Kind && n.UID == o.UID
			}) {
				continue // a second reference to the same owner
			}
		}
		left = append(left, o)
	}
	return left, differs
}

// seenOwner identifies an entry of resource.owners; the kind is by its oldest name.
type seenOwner struct {
	owneeID int64
	owner   schema.FullName
	kind    string
	uid     uuid.UUID
}

func (e *ownerEdit) seenKey(ownee int64, o peer.OwnerReference) seenOwner {
	return seenOwner{ownee, o.Owner, e.store.Names.Root(o.KindID()).Kind, o.UID}
}

func (e *ownerEdit) byName(ctx context.Context, tx pgx.Tx) (map[seenOwner]bool, map[seenOwner]Pin, error) {
	name := func(k prepare.OwnerKey) (seenOwner, error) {
		d, err := e.store.Names.DeploymentOf(ctx, tx, k.DeploymentID)
		if err != nil {
			return seenOwner{}, err
		}
		kind, err := e.store.Names.KindOf(ctx, tx, k.KindID)
		return seenOwner{k.OwneeID, schema.FullName{Deployment: d, Name: k.Name}, e.store.Names.Root(kind).Kind, k.UID},
			err
	}
	lost, becomes := map[seenOwner]bool{}, map[seenOwner]Pin{}
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

// SelectOwnerRowsSQL: $4 is the time by the process's clock. A grace period is over when it is so by this
// clock and by the database's, since either may have jumped.
const SelectOwnerRowsSQL = `
SELECT ownee_id, deployment_id, kind_id, name, uid, flags, checked, generation, created_at, created_at + $3 <= least(now(), $4::timestamptz)
FROM dbcontroller.owner_reference WHERE ownee_id = ANY ($1) AND ($2::int IS NULL OR deployment_id = $2)`

// ScanOwnerRow reads a row of SelectOwnerRowsSQL.
func ScanOwnerRow(row pgx.CollectableRow) (r prepare.OwnerRow, err error) {
	err = row.Scan(&r.OwneeID, &r.DeploymentID, &r.KindID, &r.Name, &r.UID, &r.Flags, &r.Checked, &r.Generation,
		&r.CreatedAt, &r.Over)
	return r, err
}
