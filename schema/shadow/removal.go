package shadow

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/db-controller/db-controller/schema"
)

// notedSQL are common table expressions of a statement that removes or marks the resources in going: they insert one cause for each
// reason and one removal for each resource. Their arguments are those of reasons.parameters.
const notedSQL = `
causes AS (
    SELECT nextval('dbcontroller.cause_id') AS id, c.*
    FROM unnest(@hows::smallint[], @via_deployments::int[], @via_uids::uuid[], @via_names::text[], @deletions::uuid[], @actors::text[], @roots::text[],
        @root_uids::uuid[], @requests::uuid[], @times::timestamptz[])
        WITH ORDINALITY AS c (how, via_deployment_id, via_uid, via_name, deletion_id, actor, root, root_uid, request_id, at, n)
), noted_causes AS (
    INSERT INTO dbcontroller.cause (id, how, via_deployment_id, via_uid, via_name, deletion_id, actor, root, root_uid, request_id, at)
    SELECT id, how, via_deployment_id, via_uid, via_name, deletion_id, actor, root, root_uid, request_id, at FROM causes
), noted AS (
    INSERT INTO dbcontroller.removal (name, uid, kind_id, cause_id)
    SELECT going.name, going.uid, going.kind_id, causes.id
    FROM going JOIN unnest(@noted::bigint[], @reasons::int[]) AS i (id, n) USING (id) JOIN causes USING (n)
)`

// reasons are the parameters of notedSQL: the distinct reasons, and the number of its reason for each member.
type reasons struct {
	ids     []int64
	of      []int32
	seen    map[reasonKey]int32
	hows    []int16
	viaDeps []*int32
	viaUIDs []*uuid.UUID
	vias    []*string
	roots   causeColumns
}

type reasonKey struct {
	how      How
	via      link
	deletion uuid.UUID
}

// reasonsOf returns the reasons of ACTIVE members. Those of members in DELETING were recorded when they were marked.
func reasonsOf(c *closure, ids []int64) *reasons {
	r := &reasons{seen: map[reasonKey]int32{}}
	for _, id := range ids {
		m := c.members[id]
		if m.state != Active {
			continue
		}
		key := reasonKey{how: m.why.how, deletion: m.why.cause.ID}
		if m.why.via != nil {
			key.via = *m.why.via
		}
		n := r.seen[key]
		if n == 0 {
			r.add(m.why)
			n = int32(len(r.hows)) //nolint:gosec // not more than members of one transaction
			r.seen[key] = n
		}
		r.ids, r.of = append(r.ids, id), append(r.of, n)
	}
	return r
}

func (r *reasons) add(why reason) {
	var deployment *int32
	var uid *uuid.UUID
	var name *string
	if why.via != nil {
		deployment, uid, name = &why.via.deploymentID, &why.via.uid, &why.via.name
	}
	r.hows, r.viaDeps, r.viaUIDs, r.vias = append(r.hows, int16(why.how)), append(r.viaDeps, deployment), append(r.viaUIDs, uid), append(r.vias, name)
	r.roots.add(why.cause)
}

// parameters returns the arguments of a statement with notedSQL: the ids in going, this deployment, and the reasons.
func (r *reasons) parameters(going []int64, self int32) named {
	return named{
		"ids": going, "self": self, "noted": r.ids, "reasons": r.of,
		"hows": r.hows, "via_deployments": r.viaDeps, "via_uids": r.viaUIDs, "via_names": r.vias,
		"deletions": r.roots.ids, "actors": r.roots.actors, "roots": r.roots.names, "root_uids": r.roots.uids,
		"requests": r.roots.requests, "times": r.roots.times,
	}
}

type causeColumns struct {
	ids           []uuid.UUID
	actors, names []string
	uids          []uuid.UUID
	requests      []*uuid.UUID
	times         []time.Time
}

func (c *causeColumns) add(x *schema.Cause) {
	var request *uuid.UUID
	if x.RequestID != uuid.Nil {
		request = &x.RequestID
	}
	c.ids, c.actors, c.names, c.uids = append(c.ids, x.ID), append(c.actors, x.Actor), append(c.names, x.Root), append(c.uids, x.RootUID)
	c.requests, c.times = append(c.requests, request), append(c.times, x.At)
}

// causeOr returns the reported cause of a deletion; when it is nil, a cause with the deleted resource itself as the root.
func causeOr(told *schema.Cause, deployment schema.DeploymentID, name string, uid uuid.UUID) *schema.Cause {
	if told != nil {
		return told
	}
	return &schema.Cause{ID: uid, Root: schema.FullName{Deployment: deployment, Name: name}.String(), RootUID: uid, At: time.Now()}
}

// causeRow scans causeColumnsSQL: a row of cause, or nulls.
type causeRow struct {
	id, rootUID, requestID *uuid.UUID
	actor, root            *string
	at                     *time.Time
}

// Select list and joins for the cause of the deletion of a shadow s in DELETING.
const (
	causeColumnsSQL = `x.deletion_id, x.actor, x.root, x.root_uid, x.request_id, x.at`
	causeOfSQL      = ` LEFT JOIN dbcontroller.removal r ON r.name = s.name AND r.uid = s.uid LEFT JOIN dbcontroller.cause x ON x.id = r.cause_id `
)

func (r *causeRow) dest() []any {
	return []any{&r.id, &r.actor, &r.root, &r.rootUID, &r.requestID, &r.at}
}

// cause returns nil when no cause is stored.
func (r *causeRow) cause() *schema.Cause {
	if r.id == nil {
		return nil
	}
	c := &schema.Cause{ID: *r.id, Actor: *r.actor, Root: *r.root, RootUID: *r.rootUID, At: *r.at}
	if r.requestID != nil {
		c.RequestID = *r.requestID
	}
	return c
}

// Removal records why a resource was or is being deleted.
type Removal struct {
	Kind      string
	Name      string
	UID       uuid.UUID
	How       How
	DecidedAt time.Time
	// Via is the deleted target or owner; its deployment has the next link of the chain. Zero for the root.
	Via    schema.FullName
	ViaUID uuid.UUID     // zero also for an owner whose uid was never known
	Cause  *schema.Cause // nil when its retention has ended
	// Gone: the resource is removed; otherwise it is in DELETING.
	Gone bool
}

const selectRemovalsSQL = `
SELECT r.kind_id, r.name, r.uid, x.how, r.decided_at, x.via_deployment_id, x.via_uid, x.via_name, s.id IS NULL, ` + causeColumnsSQL + `
FROM dbcontroller.removal r
LEFT JOIN dbcontroller.cause x ON x.id = r.cause_id LEFT JOIN dbcontroller.shadow s ON s.uid = r.uid
WHERE r.name = $1 AND ($2 OR r.uid = $3)
ORDER BY r.decided_at DESC, r.uid LIMIT $4`

// Removals returns the removals of the resources with a name, newest first, at most limit; with a non-zero uid only that of this
// resource.
func (s *Store) Removals(ctx context.Context, name string, uid uuid.UUID, limit int) ([]Removal, error) {
	rows, err := s.pool.Query(ctx, selectRemovalsSQL, name, uid == uuid.Nil, uid, limit)
	if err != nil {
		return nil, fmt.Errorf("read removals: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f foundRemoval, err error) {
		return f, row.Scan(append([]any{&f.kind, &f.Name, &f.UID, &f.how, &f.DecidedAt, &f.viaDeployment, &f.viaUID, &f.viaName, &f.Gone}, f.cause.dest()...)...)
	})
	if err != nil {
		return nil, fmt.Errorf("read removals: %w", err)
	}
	out := make([]Removal, len(all))
	for i := range all {
		if out[i], err = s.removal(ctx, &all[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

type foundRemoval struct {
	Removal
	kind          int32
	how           *How
	viaDeployment *int32
	viaUID        *uuid.UUID
	viaName       *string
	cause         causeRow
}

func (s *Store) removal(ctx context.Context, f *foundRemoval) (r Removal, err error) {
	kind, err := s.names.kindOf(ctx, s.pool, f.kind)
	if err != nil {
		return r, err
	}
	r = f.Removal
	r.Kind, r.Cause = s.kindNow(kind.Kind), f.cause.cause()
	if f.how != nil {
		r.How = *f.how
	}
	if f.viaDeployment != nil {
		r.ViaUID, r.Via.Name = *f.viaUID, *f.viaName
		r.Via.Deployment, err = s.names.deploymentOf(ctx, s.pool, *f.viaDeployment)
	}
	return r, err
}
