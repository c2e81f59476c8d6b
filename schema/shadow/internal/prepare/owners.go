package prepare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
	"github.com/db-controller/db-controller/schema/violation"
)

// MaxOwners is the maximum number of owners of a resource.
const MaxOwners = 100

// OwnerRow is a row of dbcontroller.owner_reference.
type OwnerRow struct {
	OwneeID      int64
	DeploymentID int32
	KindID       int32
	Name         string
	UID          uuid.UUID
	Flags        int16
	Checked      bool
	Generation   int64
	CreatedAt    time.Time
	Over         bool // the grace period, which began at CreatedAt, has ended
}

// compareOwners computes the owner references that a write adds and drops. A requested one without a uid
// matches a stored one of the same name and kind, with or without a uid.
func (p *Preparer) compareOwners(ctx context.Context, model *schema.Model, wr *Writing) error {
	var had []peer.OwnerReference
	if wr.Before != nil {
		had = wr.Before.Owners
	}
	if len(wr.Owners)+len(had) == 0 {
		return nil
	}
	if len(wr.Owners) > MaxOwners {
		return &peer.InvalidError{
			Resource: wr.Name,
			Err:      violation.In(ownersPath, fmt.Errorf("more than %d owners", MaxOwners)),
		}
	}
	left := slices.Clone(had)
	var owners []peer.OwnerReference
	for i, o := range wr.Owners {
		if err := p.checkOwner(model, wr, o); err != nil {
			return InvalidOwner(wr, i, err)
		}
		o.Version = ""
		root := model.Root(o.KindID())
		same := func(h peer.OwnerReference) bool {
			return h.Owner == o.Owner && model.Root(h.KindID()) == root && (h.UID == o.UID || o.UID == uuid.Nil)
		}
		if slices.ContainsFunc(wr.Owners[:i], func(h peer.OwnerReference) bool { // a missing uid matches any
			return h.Owner == o.Owner && model.Root(h.KindID()) == root && (h.UID == o.UID || o.UID == uuid.Nil ||
				h.UID == uuid.Nil)
		}) {
			return InvalidOwner(wr, i, fmt.Errorf("owner %s is listed twice", o.Owner))
		}
		if at := slices.IndexFunc(left, same); at >= 0 {
			h := left[at]
			left = slices.Delete(left, at, at+1)
			o.UID, o.Version, o.Kind = h.UID, h.Version, h.Kind
			owners = append(owners, o)
			if h.Flags() == o.Flags() {
				continue
			}
			if h.UnsetOnDelete && !o.UnsetOnDelete || o.Requires && !h.Requires {
				wr.takes(ownersPath, o.Owner)
			}
		} else {
			if err := p.gate.CheckNamedOwner(ctx, o.KindID(), o.Owner.Name); err != nil {
				return err
			}
			owners = append(owners, o)
			wr.NewOwners = append(wr.NewOwners, o.Owner)
			if !o.UnsetOnDelete || o.Requires {
				wr.takes(ownersPath, o.Owner)
			}
			if o.UID != uuid.Nil {
				wr.PinnedOwners = append(wr.PinnedOwners, PinnedOwner{i, o})
			}
		}
		row, err := p.ownerRow(ctx, o)
		if err != nil {
			return err
		}
		wr.AddOwners = append(wr.AddOwners, row)
	}
	for _, h := range left {
		row, err := p.ownerRow(ctx, h)
		if err != nil {
			return err
		}
		wr.DropOwners = append(wr.DropOwners, row)
	}
	if len(left) > 0 { // the dropped owners kept the resource while they lived: now it goes with the others alone
		for _, o := range owners {
			if !o.UnsetOnDelete || o.Requires {
				wr.takes(ownersPath, o.Owner)
			}
		}
	}
	var err error
	wr.Owners = owners
	wr.OwnersText, err = OwnersJSON(owners)
	return err
}

// PinnedOwner is an owner that a write names with its uid, at a place in the list of owners.
type PinnedOwner struct {
	At int
	peer.OwnerReference
}

// InvalidOwner returns the error of an owner reference of a write.
func InvalidOwner(wr *Writing, i int, err error) error {
	field := fmt.Sprintf("%s[%d]", ownersPath, i)
	return &peer.InvalidError{Resource: wr.Name, Err: violation.In(field, fmt.Errorf("%s: %w", field, err))}
}

func (p *Preparer) checkOwner(model *schema.Model, wr *Writing, o peer.OwnerReference) error {
	if err := schema.CheckKind(o.Kind); err != nil {
		return err
	}
	if _, err := schema.ParseFullName(o.Owner.String()); err != nil {
		return err
	}
	if o.Owner.Deployment == p.Self && o.Owner.Name == wr.Name {
		return errors.New("a resource cannot own itself")
	}
	if o.Owner.Deployment.Service != p.Self.Service {
		return nil // CheckOwners at its deployment decides whether the kind can own
	}
	kind, err := model.KindOf(o.Owner.Name)
	switch {
	case err != nil:
		return err
	case kind.ID != model.Canonical(o.KindID()):
		return fmt.Errorf("%s is of kind %s, not %s", o.Owner.Name, kind.ID.Kind, o.Kind)
	case kind.Unconstrained:
		return fmt.Errorf("kind %s cannot own resources: its constraints are disabled", o.Kind)
	}
	return nil
}

func (p *Preparer) ownerRow(ctx context.Context, o peer.OwnerReference) (row OwnerRow, err error) {
	row = OwnerRow{Name: o.Owner.Name, UID: o.UID, Flags: o.Flags()}
	if err := p.gate.CheckNamed(ctx, o.Owner.Deployment); err != nil {
		return row, err
	}
	if err := p.gate.CheckNamedKind(ctx, o.KindID()); err != nil {
		return row, err
	}
	if row.DeploymentID, err = p.Names.Deployment(ctx, o.Owner.Deployment); err != nil {
		return row, err
	}
	row.KindID, err = p.Names.Kind(ctx, o.KindID())
	return row, err
}

// OwnersJSON returns owners as they are stored; nil for none.
func OwnersJSON(owners []peer.OwnerReference) (*string, error) {
	if len(owners) == 0 {
		return nil, nil //nolint:nilnil // null stands for none
	}
	raw, err := json.Marshal(owners)
	text := string(raw)
	return &text, err
}

const DropOwnersSQL = `
DELETE FROM dbcontroller.owner_reference o
USING unnest($1::bigint[], $2::int[], $3::int[], $4::text[], $5::uuid[]) AS i (ownee_id, deployment_id, kind_id, name, uid)
WHERE o.ownee_id = i.ownee_id AND o.deployment_id = i.deployment_id AND o.name = i.name AND o.uid = i.uid
    AND (o.kind_id = i.kind_id OR o.uid <> '00000000-0000-0000-0000-000000000000')` // a uid identifies the owner, also when its kind was renamed

// One piece of work for each ownee and owner's deployment.
var addOwnersSQL = db.Codes(`
WITH i AS (
    SELECT * FROM unnest(@ownees::bigint[], @deployments::int[], @kinds::int[], @names::text[], @uids::uuid[], @flags::smallint[], @shards::smallint[])
        AS i (ownee_id, deployment_id, kind_id, name, uid, flags, shard)
), o AS (
    INSERT INTO dbcontroller.owner_reference AS r (ownee_id, deployment_id, kind_id, name, uid, flags)
    SELECT ownee_id, deployment_id, kind_id, name, uid, flags FROM i
    ON CONFLICT ON CONSTRAINT owner_reference_pkey DO UPDATE SET flags = EXCLUDED.flags,
        -- The requires flag was added: the owner was not checked for it yet, and a new grace period begins.
        checked = r.checked AND (EXCLUDED.flags & {requires_owner} = 0 OR r.flags & {requires_owner} <> 0),
        created_at = CASE WHEN EXCLUDED.flags & {requires_owner} = 0 OR r.flags & {requires_owner} <> 0 THEN r.created_at ELSE now() END
)
INSERT INTO dbcontroller.work (action, shard, deployment_id, target_id)
SELECT DISTINCT {check_owners}, shard, deployment_id, ownee_id FROM i`)

// OwnerColumns are rows of owner_reference as columns for unnest.
type OwnerColumns struct {
	Ownees             []int64
	Deployments, Kinds []int32
	Names              []string
	UIDs               []uuid.UUID
	Flags, Shards      []int16
}

// Add adds the owner references of one ownee.
func (c *OwnerColumns) Add(owneeID int64, shard int16, rows ...OwnerRow) {
	for _, r := range rows {
		c.Ownees, c.Deployments, c.Kinds = append(c.Ownees, owneeID), append(c.Deployments, r.DeploymentID),
			append(c.Kinds, r.KindID)
		c.Names, c.UIDs = append(c.Names, r.Name), append(c.UIDs, r.UID)
		c.Flags, c.Shards = append(c.Flags, r.Flags), append(c.Shards, shard)
	}
}

// QueueOwners queues the statements that add and drop the owner references of writes.
func QueueOwners(b *pgx.Batch, savings []*Saving) {
	var add, drop OwnerColumns
	for _, wr := range AllWrites(savings) {
		shard := int16(schema.Shard(wr.Name))
		add.Add(wr.ID, shard, wr.AddOwners...)
		drop.Add(wr.ID, shard, wr.DropOwners...)
	}
	if d := drop; len(d.Ownees) > 0 {
		b.Queue(DropOwnersSQL, d.Ownees, d.Deployments, d.Kinds, d.Names, d.UIDs)
	}
	if a := add; len(a.Ownees) > 0 {
		b.Queue(addOwnersSQL, db.Named{
			"ownees": a.Ownees, "deployments": a.Deployments, "kinds": a.Kinds, "names": a.Names, "uids": a.UIDs,
			"flags": a.Flags, "shards": a.Shards,
		})
	}
}

// OwnerKey is the primary key of owner_reference.
type OwnerKey struct {
	OwneeID      int64
	DeploymentID int32
	KindID       int32
	Name         string
	UID          uuid.UUID
}

// Key identifies the owner reference.
func (r OwnerRow) Key() OwnerKey {
	return OwnerKey{r.OwneeID, r.DeploymentID, r.KindID, r.Name, r.UID}
}
