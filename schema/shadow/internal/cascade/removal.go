package cascade

import (
	"time"

	"github.com/google/uuid"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow/internal/db"
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
	how      peer.How
	via      link
	deletion uuid.UUID
}

// reasonsOf returns the reasons of ACTIVE members. Those of members in DELETING were recorded when they were marked.
func reasonsOf(c *closure, ids []int64) *reasons {
	r := &reasons{seen: map[reasonKey]int32{}}
	for _, id := range ids {
		m := c.Members[id]
		if m.State != peer.Active {
			continue
		}
		key := reasonKey{how: m.Why.How, deletion: m.Why.Cause.ID}
		if m.Why.Via != nil {
			key.via = *m.Why.Via
		}
		n := r.seen[key]
		if n == 0 {
			r.add(m.Why)
			n = int32(len(r.hows)) //nolint:gosec // not more than members of one transaction
			r.seen[key] = n
		}
		r.ids, r.of = append(r.ids, id), append(r.of, n)
	}
	return r
}

func (r *reasons) add(why Reason) {
	var deployment *int32
	var uid *uuid.UUID
	var name *string
	if why.Via != nil {
		deployment, uid, name = &why.Via.deploymentID, &why.Via.uid, &why.Via.name
	}
	r.hows, r.viaDeps, r.viaUIDs, r.vias = append(r.hows, int16(why.How)), append(r.viaDeps, deployment), append(r.viaUIDs, uid), append(r.vias, name)
	r.roots.add(why.Cause)
}

// parameters returns the arguments of a statement with notedSQL: the ids in going, this deployment, and the reasons.
func (r *reasons) parameters(going []int64, self int32) db.Named {
	return db.Named{
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
