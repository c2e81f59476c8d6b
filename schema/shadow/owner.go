package shadow

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
)

// MaxOwners is how many owners a resource may have.
const MaxOwners = 100

// ownerRow is a row of dbcontroller.owner_reference.
type ownerRow struct {
	owneeID      int64
	deploymentID int32
	kindID       int32
	name         string
	uid          uuid.UUID
	flags        int16
	checked      bool
	generation   int64
	createdAt    time.Time
	over         bool // the grace period, which began with createdAt, has ended
}

// compareOwners computes the owner references that a write adds and drops. A requested one without a uid matches the stored
// one of the same name and kind, whatever the uid of that.
func (s *Store) compareOwners(ctx context.Context, model *schema.Model, wr *writing) error {
	var had []OwnerReference
	if wr.before != nil {
		had = wr.before.owners
	}
	if len(wr.Owners)+len(had) == 0 {
		return nil
	}
	if len(wr.Owners) > MaxOwners {
		return &InvalidError{Resource: wr.Name, Err: fmt.Errorf("more than %d owners", MaxOwners)}
	}
	left := slices.Clone(had)
	var now []OwnerReference
	for i, o := range wr.Owners {
		if err := s.checkOwner(model, wr, o); err != nil {
			return &InvalidError{Resource: fmt.Sprintf("%s: owner_references[%d]", wr.Name, i), Err: err}
		}
		o.Version = ""
		root := model.Root(o.kindID())
		same := func(h OwnerReference) bool {
			return h.Owner == o.Owner && model.Root(h.kindID()) == root && (h.UID == o.UID || o.UID == uuid.Nil)
		}
		if slices.ContainsFunc(wr.Owners[:i], func(h OwnerReference) bool { // a missing uid matches any
			return h.Owner == o.Owner && model.Root(h.kindID()) == root && (h.UID == o.UID || o.UID == uuid.Nil || h.UID == uuid.Nil)
		}) {
			return &InvalidError{Resource: fmt.Sprintf("%s: owner_references[%d]", wr.Name, i), Err: fmt.Errorf("owner %s is listed twice", o.Owner)}
		}
		if at := slices.IndexFunc(left, same); at >= 0 {
			h := left[at]
			left = slices.Delete(left, at, at+1)
			o.UID, o.Version, o.Kind = h.UID, h.Version, h.Kind
			now = append(now, o)
			if h.flags() == o.flags() {
				continue
			}
		} else {
			now = append(now, o)
		}
		row, err := s.ownerRow(ctx, o)
		if err != nil {
			return err
		}
		wr.addOwners = append(wr.addOwners, row)
	}
	for _, h := range left {
		row, err := s.ownerRow(ctx, h)
		if err != nil {
			return err
		}
		wr.dropOwners = append(wr.dropOwners, row)
	}
	var err error
	wr.Owners = now
	wr.owners, err = ownersJSON(now)
	return err
}

func (s *Store) checkOwner(model *schema.Model, wr *writing, o OwnerReference) error {
	if err := schema.CheckKind(o.Kind); err != nil {
		return err
	}
	if _, err := schema.ParseFullName(o.Owner.String()); err != nil {
		return err
	}
	if o.Owner.Deployment == s.self && o.Owner.Name == wr.Name {
		return errors.New("a resource cannot own itself")
	}
	if o.Owner.Deployment.Service != s.self.Service {
		return nil // CheckOwners at its deployment decides whether the kind can own
	}
	kind, err := model.KindOf(o.Owner.Name)
	switch {
	case err != nil:
		return err
	case kind.ID != model.Canonical(o.kindID()):
		return fmt.Errorf("%s is of kind %s, not %s", o.Owner.Name, kind.ID.Kind, o.Kind)
	case kind.Unconstrained:
		return fmt.Errorf("kind %s cannot own resources: its constraints are disabled", o.Kind)
	}
	return nil
}

func (s *Store) ownerRow(ctx context.Context, o OwnerReference) (row ownerRow, err error) {
	row = ownerRow{name: o.Owner.Name, uid: o.UID, flags: o.flags()}
	if row.deploymentID, err = s.names.deployment(ctx, o.Owner.Deployment); err != nil {
		return row, err
	}
	row.kindID, err = s.names.kind(ctx, o.kindID())
	return row, err
}

func ownersJSON(owners []OwnerReference) (*string, error) {
	if len(owners) == 0 {
		return nil, nil //nolint:nilnil // null stands for none
	}
	raw, err := json.Marshal(owners)
	text := string(raw)
	return &text, err
}

const dropOwnersSQL = `
DELETE FROM dbcontroller.owner_reference o
USING unnest($1::bigint[], $2::int[], $3::int[], $4::text[], $5::uuid[]) AS i (ownee_id, deployment_id, kind_id, name, uid)
WHERE o.ownee_id = i.ownee_id AND o.deployment_id = i.deployment_id AND o.name = i.name AND o.uid = i.uid
    AND (o.kind_id = i.kind_id OR o.uid <> '00000000-0000-0000-0000-000000000000')` // a uid identifies the owner, also when its kind was renamed

// One piece of work for each ownee and owner's deployment.
var addOwnersSQL = codes(`
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

type ownerColumns struct {
	ownees             []int64
	deployments, kinds []int32
	names              []string
	uids               []uuid.UUID
	flags, shards      []int16
}

func (c *ownerColumns) add(owneeID int64, shard int16, rows ...ownerRow) {
	for _, r := range rows {
		c.ownees, c.deployments, c.kinds = append(c.ownees, owneeID), append(c.deployments, r.deploymentID), append(c.kinds, r.kindID)
		c.names, c.uids = append(c.names, r.name), append(c.uids, r.uid)
		c.flags, c.shards = append(c.flags, r.flags), append(c.shards, shard)
	}
}

func queueOwners(b *pgx.Batch, sv *saving) {
	var add, drop ownerColumns
	for _, wr := range sv.writes {
		shard := int16(schema.Shard(wr.Name))
		add.add(wr.id, shard, wr.addOwners...)
		drop.add(wr.id, shard, wr.dropOwners...)
	}
	if d := drop; len(d.ownees) > 0 {
		b.Queue(dropOwnersSQL, d.ownees, d.deployments, d.kinds, d.names, d.uids)
	}
	if a := add; len(a.ownees) > 0 {
		b.Queue(addOwnersSQL, named{
			"ownees": a.ownees, "deployments": a.deployments, "kinds": a.kinds, "names": a.names, "uids": a.uids, "flags": a.flags, "shards": a.shards,
		})
	}
}
